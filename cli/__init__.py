"""The command line: commands of operators, who have the settings, and of the API's callers, who have an address."""
