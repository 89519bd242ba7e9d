"""Reads TypeScript, and makes JavaScript of it. Nothing of the source is run: the API and the worker both read it."""
