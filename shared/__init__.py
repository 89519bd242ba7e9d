"""What the API and the worker must agree on. Imports neither of them."""
