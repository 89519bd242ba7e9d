"""Databases, Redis servers, and the ways to them that a test can break."""
