"""A conversation that is far longer than its window, and what the agent must remember at its end: `python -m
bench.long_conversation --help`."""
