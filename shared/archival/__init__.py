"""Archival memory, for the API and the worker: storing, searching, and the embedding models."""
