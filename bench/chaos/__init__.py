"""Injects faults into a running deployment, and checks every promise: `python -m bench.chaos --help`."""
