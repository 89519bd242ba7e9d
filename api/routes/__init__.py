"""Routes: parse, call, answer. What a route decides beyond that belongs elsewhere."""
