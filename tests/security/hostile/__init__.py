"""The hostile tools, by what they attack."""
