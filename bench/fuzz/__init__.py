"""Requests and texts that nobody would write, for as long as somebody has time for them."""
