"""What both the API and the worker do with runs."""
