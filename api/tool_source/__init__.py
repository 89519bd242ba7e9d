"""A tool's source text becomes what a model is told about it. Parsed, never executed: the source is a tenant's."""
