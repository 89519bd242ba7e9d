"""The HTTP side of Holdfast. It imports `shared`, and never `worker`, except in the `dev` command."""
