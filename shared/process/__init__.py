"""The parts of every process: its settings, its logs, its version and its common services."""
