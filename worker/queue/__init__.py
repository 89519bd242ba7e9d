"""How a worker finds runs and keeps them its own."""
