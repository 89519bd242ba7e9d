"""The client of MCP servers: lists and calls their tools, within limits of time, bytes and number."""
