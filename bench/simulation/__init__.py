"""Simulates a fleet under load from the costs of one process."""
