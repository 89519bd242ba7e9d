"""The project's own files, for the tests that hold its rules."""
