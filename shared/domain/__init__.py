"""The nouns and rules of Holdfast. No I/O, no clock, no randomness in here."""
