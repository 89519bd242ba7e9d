"""MCP servers for tests: the official package's own, and one that keeps to no rule."""
