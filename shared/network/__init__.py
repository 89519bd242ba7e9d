"""Outgoing connections: their permitted destinations, and the certificates that they trust."""
