"""Calls tools: a runner for each kind."""
