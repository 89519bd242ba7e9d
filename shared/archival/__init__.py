"""Archival memory, for the API and the worker alike: storing, finding, and the embedding models behind it."""
