"""Letta's operations, one module per noun. Only `api.application` imports them."""
