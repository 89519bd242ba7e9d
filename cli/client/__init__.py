"""Commands of the API's callers. They use its paths alone, so they do nothing that a caller could not."""
