"""The tools that the runs call, and the file with a line for each start.

A tool without isolation writes its line itself. An isolated one has no access to the file, so its worker writes the
line (`counted_worker.py`). A tool that escaped would be counted by both, and so be found.
"""

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NOTE, NOTE_AGAIN, NOTE_TOGETHER, TAKE_SECONDS, ASK_FIRST, ASK_IN_TIME, ASK_OR_CANCEL = (
    "note",
    "note_again",
    "note_together",
    "take_seconds",
    "ask_first",
    "ask_in_time",
    "ask_or_cancel",
)

NOTE_CHECKED = "note_checked"
"""A tool with a probe. Only agents in code have it."""

LOOK_UP, BOOK, MULL, REMOVE, REFUSE, HANG_UP = "look_up", "book", "mull", "remove", "refuse", "hang_up"
"""The tools of the MCP servers: one that only reads, one that acts, a slow one, one that a person must allow, one that
answers with an error, and one whose connection breaks in the middle of its answer."""

OF_SERVERS = (LOOK_UP, BOOK, MULL, REMOVE, REFUSE, HANG_UP)

REFUSAL = "it cannot be done here"
"""The answer of `REFUSE`."""

IDEMPOTENT = frozenset({NOTE_AGAIN, LOOK_UP})

STARTS_AGAIN = IDEMPOTENT | {NOTE_CHECKED}
"""Tools of which a call may start more than once."""

STARTS = "CHAOS_STARTS"
"""The variable that gives a worker the path of the file."""

FIELDS: dict[str, dict[str, Any]] = {
    NOTE: {},
    NOTE_AGAIN: {"idempotent": True},
    NOTE_TOGETHER: {"enable_parallel_execution": True},
    TAKE_SECONDS: {},
    ASK_FIRST: {"default_requires_approval": True},
    ASK_IN_TIME: {"default_requires_approval": True, "approval_expires_s": 2, "on_approval_expiry": "deny"},
    ASK_OR_CANCEL: {"default_requires_approval": True, "approval_expires_s": 2, "on_approval_expiry": "cancel"},
}
"""The fields with which each tool is made."""

ON_CLIENT = "on_client"
CLIENT_TOOLS = [
    {
        "name": ON_CLIENT,
        "description": "Is run by the client.",
        "parameters": {
            "type": "object",
            "properties": {"key": {"type": "string"}, "seconds": {"type": "number"}},
            "required": ["key"],
        },
    }
]
"""The client's own tools in a submission."""

_SOURCE = '''
def {name}(key: str, seconds: float) -> str:
    """Writes down that it was started.

    Args:
        key (str): The name of this call.
        seconds (float): How long it takes.
    """
    import os
    import time

    try:
        with open("/proc/self/stat") as stat:
            born = stat.read().rpartition(")")[2].split()[19]
        starts = os.open({log!r}, os.O_WRONLY | os.O_APPEND)
    except OSError:
        pass  # there are walls around this call
    else:
        os.write(starts, f"{{key}} {{os.getpid()}} {{born}} {{time.time()}}\\n".encode())
        os.close(starts)
    time.sleep(seconds)
    return key
'''


def source_of(name: str, log: Path) -> str:
    """Returns the source of a tool that writes to `log` if it can."""
    return _SOURCE.format(name=name, log=str(log))


def write_start(log: str, key: str, pid: int, born_at: int, at: float) -> None:
    """Adds the line of one start. `at`: seconds since the epoch."""
    starts = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.write(starts, f"{key} {pid} {born_at} {at}\n".encode())
    os.close(starts)


def birth_of(pid: int) -> int | None:
    """Returns when this process began, in ticks since the machine's start; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if stat[0] in ("Z", "X") else int(stat[19])


@dataclass(frozen=True)
class Start:
    """One start of a tool: its process. The time of birth tells it apart from a later one with the same id."""

    key: str
    pid: int
    born: int
    at: float

    def is_alive(self) -> bool:
        """Whether this very process still runs."""
        return self.born == birth_of(self.pid)

    def state(self) -> str:
        """Returns the state of the process with this number and where it waits, as the kernel names them."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            return f"{stat[0]} {Path(f'/proc/{self.pid}/wchan').read_text()}"
        except OSError:
            return "gone"


class StartLog:
    """The file of starts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def starts(self) -> dict[str, list[Start]]:
        """Reads the starts so far, by the call's key."""
        found: dict[str, list[Start]] = defaultdict(list)
        for line in self.path.read_text().splitlines():
            key, pid, began, at = line.split()
            found[key].append(Start(key, int(pid), int(began), float(at)))
        return found


def kill_left_over(starts: dict[str, list[Start]]) -> None:
    """Kills tools that are still running. They are ours: each is identified by its id and birth."""
    for start in (one for some in starts.values() for one in some if one.is_alive()):
        os.kill(start.pid, 9)
