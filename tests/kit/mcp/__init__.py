"""MCP servers for tests: the official package's own, and one that breaks the protocol's rules."""
