"""Holdfast as a server of the Model Context Protocol: each agent is a tool, and a call of it is a run."""
