"""Archives and their passages, and the indices in which passages are found."""
