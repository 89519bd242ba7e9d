"""Breaks a running deployment on purpose, and checks every promise meanwhile: `python -m bench.chaos --help`."""
