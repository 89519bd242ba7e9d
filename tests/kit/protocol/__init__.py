"""Lease, fence and log, with a test that controls time and the order of round trips."""
