"""The largest requests that each route accepts, and how long each of them holds the event loop."""
