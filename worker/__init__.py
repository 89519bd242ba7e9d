"""Lives a run. Imports `shared`, never `api`."""
