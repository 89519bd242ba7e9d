"""Access control: a request's key, the key's permissions, and the project whose rows the request sees."""
