"""What clients do with runs: submit, read, cancel."""
