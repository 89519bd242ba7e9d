"""A jail in which hostile tools run, and the view of a test from outside."""
