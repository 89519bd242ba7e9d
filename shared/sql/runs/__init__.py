"""The life of a run in SQL, from its submission to its end."""
