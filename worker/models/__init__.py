"""Model providers, translated to our own small events. No provider's types leave this folder."""
