"""What happens to a run, from its submission to its end, in SQL."""
