"""Becomes Node.js for one JavaScript call, in the process that the walls have been built around.

Loaded by path into an interpreter that has nothing but the standard library. Landlock lets the call execute this one
program and its loader, so what it can become later is the same program in the same walls. The call itself is read by
`child_javascript.js`, from standard input; it writes the same frame as `child_call.py`.
"""

from __future__ import annotations

import os
import resource
import signal

TYPE_CHECKING = False  # typing takes milliseconds to load
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

RESULT = 3
"""Where the other program finds the descriptor of its result."""
OPEN_FILES = 128
ADDRESSES = 64 << 30
"""Bytes of address space: V8 sets much of it aside and uses little, so the limit of data is what bounds memory. This
one bounds the tables that the kernel keeps for it."""
STACK = 8 << 20
HEAP_PART = 0.6
"""Of the memory that a call may use. The rest is for the program itself, its threads, and buffers outside the heap."""
LEAST_HEAP_MB = 16


def run(node: dict[str, Any], result_fd: int, blocked: Iterable[int]) -> None:
    """Never returns. `node`: `{"executable", "harness", "limits"}`. Raises `OSError`."""
    limits = node["limits"]
    if result_fd != RESULT:
        os.dup2(result_fd, RESULT)
    os.set_inheritable(RESULT, True)
    heap_mb = max(LEAST_HEAP_MB, int(limits["memory_bytes"] * HEAP_PART) >> 20)
    flags = ["--input-type=commonjs", "--no-addons", "--no-warnings", f"--max-old-space-size={heap_mb}"]
    command = [node["executable"], *flags, "-e", node["harness"]]
    # Of the variables that the agent has, some would steer the program itself: it sets those later.
    environment = {name: os.environ[name] for name in ("PATH", "LANG", "HOME", "TMPDIR")}
    environment["UV_USE_IO_URING"] = "0"
    limit(limits)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
    os.execve(node["executable"], command, environment)  # noqa: S606 - no shell is meant


def limit(limits: dict[str, Any]) -> None:
    """As `child_call.prepare` does. Memory is what is private and can be written: shared memory is refused."""
    wanted = [
        (resource.RLIMIT_DATA, limits["memory_bytes"]),
        (resource.RLIMIT_AS, ADDRESSES),
        (resource.RLIMIT_STACK, STACK),
        (resource.RLIMIT_CPU, limits["processor_s"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
    ]
    if os.getuid() != 0:
        wanted.append((resource.RLIMIT_NPROC, limits["threads"]))
    for kind, most in wanted:
        hard = resource.getrlimit(kind)[1]
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (value, value))
