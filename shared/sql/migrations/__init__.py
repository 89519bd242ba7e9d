"""Migrations of the database, applied in order by `holdfast migrate`."""
