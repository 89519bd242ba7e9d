"""Agents of an operator's own code as bodies of runs: their processes, their journals, and their shown turns."""
