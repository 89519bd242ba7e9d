"""The tools that the runs call. Each writes its start and its end into one file, so that starts can be counted."""

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

IDEMPOTENT = frozenset({NOTE_AGAIN})

FIELDS: dict[str, dict[str, Any]] = {
    NOTE: {},
    NOTE_AGAIN: {"idempotent": True},
    NOTE_TOGETHER: {"enable_parallel_execution": True},
    TAKE_SECONDS: {},
    ASK_FIRST: {"default_requires_approval": True},
    ASK_IN_TIME: {"default_requires_approval": True, "approval_expires_s": 2, "on_approval_expiry": "deny"},
    ASK_OR_CANCEL: {"default_requires_approval": True, "approval_expires_s": 2, "on_approval_expiry": "cancel"},
}
"""What is said of each tool when it is made."""

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
"""What a submission says of the tools that its client runs itself."""

_SOURCE = '''
def {name}(key: str, seconds: float) -> str:
    """Writes down that it was started.

    Args:
        key (str): The name of this call.
        seconds (float): How long it takes.
    """
    import os
    import time

    def write(word):
        with open("/proc/self/stat") as stat:
            born = stat.read().rpartition(")")[2].split()[19]
        line = f"{{word}} {{key}} {{os.getpid()}} {{born}} {{time.time()}}\\n"
        starts = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(starts, line.encode())
        os.close(starts)

    write("start")
    time.sleep(seconds)
    write("end")
    return key
'''


def source_of(name: str, log: Path) -> str:
    """The source of a tool that writes to `log`."""
    return _SOURCE.format(name=name, log=str(log))


@dataclass(frozen=True)
class Start:
    """One start of a tool: its process, told apart from a later one of the same number by when it was born."""

    key: str
    pid: int
    born: int
    at: float

    def is_alive(self) -> bool:
        """Whether this very process still runs."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return False
        return int(stat[19]) == self.born and stat[0] not in ("Z", "X")


class StartLog:
    """What the tools have written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def starts(self) -> dict[str, list[Start]]:
        """The starts so far, by the key of the call."""
        found: dict[str, list[Start]] = defaultdict(list)
        for line in self.path.read_text().splitlines():
            word, key, pid, born, at = line.split()
            if word == "start":
                found[key].append(Start(key, int(pid), int(born), float(at)))
        return found


def kill_left_over(starts: dict[str, list[Start]]) -> None:
    """Ends tools that outlived everything; they are ours, each is known by its number and birth."""
    for start in (one for some in starts.values() for one in some if one.is_alive()):
        os.kill(start.pid, 9)
