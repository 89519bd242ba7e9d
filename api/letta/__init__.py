"""Letta's wire: its JSON and the translation to and from the domain. Only this package knows that JSON."""
