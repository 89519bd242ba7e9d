"""The command line: commands for operators, who have a server's settings, and for callers, who have its address."""
