"""The parts of the command `holdfast` that need no worker."""
