"""Callbacks and webhooks: notify a client's receiver of the end of a run."""
