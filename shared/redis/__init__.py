"""Everything that Holdfast keeps in Redis. All of it can be lost: the truth is in SQL."""
