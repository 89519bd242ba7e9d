"""Agents of an operator's own code, and a folder in which their processes report how far they are."""
