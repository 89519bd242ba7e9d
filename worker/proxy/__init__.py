"""The way out of a call that may have a network: a proxy of its own in the worker, which knows where it may connect."""
