"""Two projects on one server, and everything that one of them could ask for that is the other's."""
