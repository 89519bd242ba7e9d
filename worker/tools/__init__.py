"""Running tools: one isolated process per call."""
