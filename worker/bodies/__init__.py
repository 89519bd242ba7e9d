"""The bodies of runs: the agent loop, a compaction, a single question to a model, a single call of a tool."""
