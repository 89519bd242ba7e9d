"""Makes a tool's declaration for the model from its source text. Parsed, never executed: the source is a tenant's."""
