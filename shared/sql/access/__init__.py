"""Keys, who owns what for those that see single agents only, and the record of who did what."""
