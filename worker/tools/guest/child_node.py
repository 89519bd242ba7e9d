"""Executes Node.js for one JavaScript call, in a process that is already isolated.

It is loaded by path into an interpreter that has only the standard library. Landlock lets the call execute only this
program and its loader, so it can never run another one. `child_javascript.js` reads the call from standard input, and
writes the same frame as `child_call.py`.
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
"""The descriptor to which Node.js writes the result."""
OPEN_FILES = 128
ADDRESSES = 64 << 30
"""Bytes of address space. V8 reserves much and uses little of it, so the limit of data bounds memory; this one bounds
the kernel's page tables."""
STACK = 8 << 20
HEAP_PART = 0.6
"""The heap's share of a call's memory. The rest is for Node.js itself, its threads, and buffers outside the heap."""
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
    # Some of the agent's variables would control Node.js itself, so `child_javascript.js` sets them later.
    environment = {name: os.environ[name] for name in ("PATH", "LANG", "HOME", "TMPDIR")}
    environment["UV_USE_IO_URING"] = "0"
    limit(limits)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
    os.execve(node["executable"], command, environment)  # noqa: S606 - without a shell on purpose


def limit(limits: dict[str, Any]) -> None:
    """Sets limits as `child_call.prepare` does. RLIMIT_DATA counts private memory; the filter refuses shared memory."""
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
