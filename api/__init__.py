"""Talks HTTP. Imports `shared`, never `worker` (but for the `dev` command)."""
