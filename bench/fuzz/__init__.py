"""Fuzzing: generated requests and texts, for a given time."""
