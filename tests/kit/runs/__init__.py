"""Runs, agents and tools in a database, brought to where a test begins."""
