"""A conversation that is far longer than its window, with a check of the agent's memory at its end: `python -m
bench.long_conversation --help`."""
