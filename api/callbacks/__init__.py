"""Telling a receiver of the client's how a run has ended."""
