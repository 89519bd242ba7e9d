"""Commands for the API's callers. They use its public routes alone, so any caller can do what they do."""
