"""Tools in the form in which programs write them, calls of them, and checks that their processes have ended."""

import inspect
import textwrap
from pathlib import Path
from typing import Any

from shared.domain.ids import ProjectId
from worker.tools.outcomes import ToolInvocation

PLAIN_TOOLS = {"sandbox": "process", "tool_user": "root"}
"""Settings for tests whose tools write files that the test reads. A sandbox with walls allows only a call's own files,
and if the tests run as root, only root may write the test's folder."""


def roll_dice(num_sides: int) -> str:
    """
    Rolls one die.

    Args:
        num_sides (int): How many sides it has.

    Returns:
        str: What came up.
    """
    return str(num_sides)


def launch(target: str) -> str:
    """
    Launches something that cannot be called back.

    Args:
        target (str): Where it goes.
    """
    return target


ROLL_DICE = inspect.getsource(roll_dice)
ROLL_SLOWLY = ROLL_DICE.replace("roll_dice", "roll_slowly").replace(
    "    return", "    import time\n\n    time.sleep(0.5)\n    return"
)
"""The same tool, which takes half a second."""
LAUNCH = inspect.getsource(launch)


def tool_call(source: str, *, environment: dict[str, str] | None = None, **arguments: Any) -> ToolInvocation:
    """A call of the function `tool` in `source`."""
    source = textwrap.dedent(source)
    return ToolInvocation(
        project_id=ProjectId("default"),
        source_code=source,
        function="tool",
        arguments=arguments,
        environment=environment or {},
    )


def is_alive(pid: int) -> bool:
    """Whether a process is alive. A zombie is dead: only its number is left."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def written_pids(path: Path, count: int) -> list[int]:
    """The process ids that a tool has written, one per line, once there are `count` of them; before that, none."""
    found = path.read_text().split() if path.exists() else []
    return [int(pid) for pid in found] if len(found) >= count else []


def named_processes(name: str) -> list[int]:
    """The processes that have given themselves this name, of up to 15 characters."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            its_name = (entry / "comm").read_text().rstrip("\n")
        except OSError:
            continue
        if its_name == name and is_alive(int(entry.name)):
            found.append(int(entry.name))
    return found
