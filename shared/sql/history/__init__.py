"""Histories: their messages, and the queue of runs that want to extend them."""
