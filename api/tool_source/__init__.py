"""Derives a tool's declaration for the model from its source text. The source is a tenant's: it is parsed and never
executed."""
