"""The workers, which execute runs. It imports `shared`, and never `api`."""
