"""The largest requests that each route takes, and how long the event loop is held by what comes of them."""
