"""Hostile tools against the sandbox, in a jail."""
