"""Agents of other frameworks, which tests run in environments of their own."""
