"""What makes the calls of tools: a runner for each kind of them."""
