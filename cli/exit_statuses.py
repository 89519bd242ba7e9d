"""How a command ends, for scripts: docs/command-line.md has the same table.

Click has 2 for a command line that it cannot read, and a shell has 130 for a process that Ctrl-C has ended.
"""

OK = 0

FAILURE = 1
"""Something else is amiss, such as a server or a database that does not answer. Starting it again may help."""

MISTAKE = 2
"""Somebody has to ask otherwise, or set it up otherwise; starting it again does not help."""

RUN_FAILED = 3
"""The run that the command followed has failed."""

RUN_CANCELLED = 4
"""The run that the command followed was cancelled."""

WAITS_FOR_APPROVAL = 5
"""The run that the command followed waits for a decision."""

INTERRUPTED = 130
"""Ctrl-C has ended the command; a run that it followed goes on."""
