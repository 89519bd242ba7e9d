"""The client of MCP servers: asks them for their tools and has them called, within bounds of time, bytes and number."""
