"""API keys, the owner lookup for keys that see single agents only, and the audit log."""
