"""Commands for the API's callers. They use its public routes alone, so any other program can do the same."""
