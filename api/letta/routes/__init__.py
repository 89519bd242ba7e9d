"""Letta's operations, a module per noun. `api.application` alone reads them."""
