"""The bodies of runs: the agent loop, a compaction, a single request to a model, a single tool call."""
