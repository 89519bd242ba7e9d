"""Submits, reads and cancels runs for the clients of every dialect."""
