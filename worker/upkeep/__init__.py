"""What the workers look after beside their runs."""
