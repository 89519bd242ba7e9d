"""The code that the API and the worker share. It imports neither of them."""
