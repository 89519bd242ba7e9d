"""Agents of an operator's own code, and a stage on which their processes say where they are."""
