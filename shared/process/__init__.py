"""What a process is: its settings, its logs, its version and what it is built from."""
