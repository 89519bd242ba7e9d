"""What a process is: its settings, its logs, its version and the parts that it is built from."""
