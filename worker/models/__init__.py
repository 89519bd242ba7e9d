"""Model providers behind our own small events. Nothing of a provider's types leaves this folder."""
