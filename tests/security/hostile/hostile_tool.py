"""A tool as somebody uploads it who means harm, and what it may count on.

Its function `tool` is given `planted`: what the worker must keep from it, and where. It answers "ESCAPED: …" when its
attack worked and "HELD: …" when it was stopped; to die, to time out or to be out of memory is to be held too. Every
attack is bounded, so that a sandbox that fails wrecks neither the machine nor the test.
"""

import textwrap
from dataclasses import dataclass
from typing import Any

from shared.domain.ids import ProjectId, RunId
from worker.tools.outcomes import ToolInvocation

PROJECT = ProjectId("project-of-all")
"""Hostile and honest calls are of one project: between two there are more walls."""

TOOLKIT = '''
import ctypes, os, platform, sys, time

LIBC = ctypes.CDLL(None, use_errno=True)
INTEL = platform.machine() == "x86_64"

def kernel(numbers, *arguments):
    """A system call by its numbers on x86-64 and aarch64, past the C library. Raises OSError."""
    number = numbers if isinstance(numbers, int) else numbers[0 if INTEL else 1]
    if number is None:
        raise OSError(38, "not on this machine")
    wide = [ctypes.c_long(part) if isinstance(part, int) else part for part in arguments]
    found = LIBC.syscall(ctypes.c_long(number), *wide)
    if found == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found

def verdict(attempts):
    """Makes each attempt. One that neither raises nor answers False or None has worked."""
    worked, refused = [], []
    for name, attempt in attempts.items():
        try:
            answer = attempt()
        except (OSError, MemoryError, OverflowError) as error:
            refused.append(f"{name}: {error!r}"[:80])
        else:
            (refused if answer is None or answer is False else worked).append(f"{name}: {answer!r}"[:120])
    return ("ESCAPED: " + "; ".join(worked)) if worked else ("HELD: " + "; ".join(refused))

def read(path, size=65536):
    """The beginning of a file, if there is a planted text in it."""
    with open(path, "rb") as file:
        found = file.read(size)
    return found[-200:] if b"planted" + b"-" in found else None

def child(action, seconds=5.0):
    """Runs `action` in a process of its own. What it answers, if it was true in time."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = action()
            if answer is not None and answer is not False:
                os.write(writing, repr(answer).encode()[:200])
        except BaseException:
            pass
        os._exit(0)
    os.close(writing)
    said = os.read(reading, 300)
    os.close(reading)
    os.waitpid(pid, 0)
    return said or None

def leave(planted, command="sleep 20"):
    """Becomes a program that the test recognises."""
    os.execv("/bin/sh", ["/bin/sh", "-c", command + "; : " + planted["tag"]])
'''
LINGER = """
def hostile(planted):
    said = tool(planted)
    while planted["linger"]:
        time.sleep(1)
    return said
"""


@dataclass(frozen=True)
class HostileTool:
    name: str
    attack: str
    source: str
    open_without_walls: bool = True
    """The attack works, and is found out, on a sandbox that is no more than a process of the same user."""
    alone: bool = False
    """It takes so much of the machine that nothing else is tried beside it."""
    growth_mb: float = 500.0
    """Of the memory in the jail, at most, if it runs alone: a call has 256 MB, and forks of Python take their part."""
    timeout_s: float = 20.0
    prelude: str = ""
    """Code of its own in front of `source`."""
    has_network: bool = False
    has_run_folder: bool = False
    """It shares a folder with other calls of a run, in which it is alone."""
    says: bool = True
    """It gives a verdict if it ends by itself. Of the others only the traces tell."""

    def invocation(self, planted: dict[str, Any], *, linger: bool) -> ToolInvocation:
        """The call. `linger`: after its attack it waits to be cancelled."""
        return ToolInvocation(
            project_id=PROJECT,
            source_code=TOOLKIT + self.prelude + textwrap.dedent(self.source) + LINGER,
            function="hostile",
            arguments={"planted": planted | {"tag": f"hostile-{self.name}", "name": self.name, "linger": linger}},
            has_network=self.has_network,
            run_id=RunId(f"run-{self.name}") if self.has_run_folder else None,
            timeout_s=60.0 if linger else self.timeout_s,
        )
