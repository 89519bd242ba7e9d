"""How a worker finds runs and keeps other workers from them."""
