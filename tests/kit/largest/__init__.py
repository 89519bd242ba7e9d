"""The largest requests that each route accepts, and the time for which each of them holds the event loop."""
