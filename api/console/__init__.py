"""The console: a page for people, served beside the API. It asks the API as any other caller does, and nothing else."""
