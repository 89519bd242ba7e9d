"""The story of a run in its worker."""
