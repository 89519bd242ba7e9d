"""The egress proxy: the worker runs one for each call with a network, and connects only to allowed hosts."""
