"""Runs, agents and tools in a database, in the state in which a test begins."""
