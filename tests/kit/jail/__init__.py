"""A jail in which hostile tools run, and what a test sees of it from outside."""
