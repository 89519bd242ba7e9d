"""Derives a tool's declaration for the model from its source text. The source belongs to a tenant: it is parsed and
never executed."""
