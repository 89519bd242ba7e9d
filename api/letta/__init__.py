"""Letta's wire: its JSON and the translation to and from the domain. Nothing outside this folder knows that JSON."""
