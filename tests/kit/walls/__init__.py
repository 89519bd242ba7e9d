"""Two projects on one server, and every request of one project for the other's data."""
