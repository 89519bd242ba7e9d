"""What runs do: the agent loop, a compaction, one question to a model, one call of a tool."""
