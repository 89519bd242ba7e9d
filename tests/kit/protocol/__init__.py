"""Lease, fence and log under a time and an order of round trips that a test plays."""
