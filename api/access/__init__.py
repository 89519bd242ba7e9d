"""Whether a request is let in: its key, what the key may do, and whose rows it sees."""
