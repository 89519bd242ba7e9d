"""Model providers, translated to events of our own. No provider's types leave this folder."""
