"""The zygote: a process without secrets that forks once per tool call, and reports to the worker how each call ended.

It has one thread, no environment, and two descriptors: the worker's socket and the machine's `/proc`. It gets its
program over a descriptor, because it may not see this project's files. Only its forks run foreign code.

    worker --start, with four pipes--> zygote --fork--> call: isolation, then the payload, then the tool
    worker <--the call's pidfd-------- zygote
    worker <--how it ended------------ zygote            (after it has reaped the call)

A call begins only after the worker has its pidfd, because the worker sends the payload after that. If the worker closes
the socket or dies, the zygote ends, and every call with it.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import time
import traceback

TYPE_CHECKING = False  # typing takes milliseconds to load
if TYPE_CHECKING:
    from typing import Any

CALL: Any = importlib.import_module("child_call")
NODE: Any = importlib.import_module("child_node")
WALLS: Any = importlib.import_module("child_isolation")

CONTROL, PROC, FIRST_FREE = 3, 4, 5
RESULT = 3
"""The descriptor of a call's result; 0 to 2 are its standard ones."""
HIGHEST = 1 << 16
BLOCKED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
MESSAGE_BYTES = 1 << 16
NICE = 10
WALLS_FAILED = 71
"""Exit status of a call that could not be isolated; its error output says why."""


PRELOADED = (
    *("ast", "asyncio", "base64", "calendar", "concurrent.futures", "contextlib", "copy", "csv", "dataclasses"),
    *("datetime", "decimal", "difflib", "enum", "fractions", "hashlib", "heapq", "hmac", "html", "inspect"),
    *("itertools", "linecache", "math", "pathlib", "random", "secrets", "shutil", "statistics", "string", "tempfile"),
    *("textwrap", "threading", "traceback", "typing", "unicodedata", "urllib.parse", "uuid", "zoneinfo"),
)
"""The modules of the standard library that tools use most. Every call is a fork of the zygote, so they cost it no
time."""


def processor_time_by_ticks(pid: int) -> float:
    """Returns the process's seconds of processor time by the clock of its limit. `pid`: not yet reaped.

    RLIMIT_CPU counts whole ticks of the kernel's timer, but `wait4` returns measured time. On a busy machine, a process
    that runs at most ticks reaches its limit at half of the measured time (seen: 0.58 of 1 s). The clock's number is
    MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_PROF) of linux/posix-timers.h.
    """
    try:
        return time.clock_gettime(~pid << 3)
    except OSError:
        return 0.0


class Zygote:
    """Serves one worker. `ZygotePlan.program` makes `plan`."""

    def __init__(self, plan: dict[str, Any], control: socket.socket) -> None:
        self._plan = plan
        self._control = control
        self._network: Any = importlib.import_module("child_network") if plan["network"] else None
        self._user = (os.getuid(), os.getgid())
        self._running: dict[int, tuple[int, int]] = {}

    def serve(self) -> None:
        """Starts and reaps calls until the worker closes the socket."""
        self._tell({"ready": os.getpid(), "landlock": WALLS.landlock_version()})
        poll = select.poll()
        poll.register(CONTROL, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor != CONTROL:
                    poll.unregister(descriptor)
                    self._bury(descriptor)
                elif not self._answer(poll):
                    return

    def _answer(self, poll: select.poll) -> bool:
        message, pipes, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 8)
        if not message:
            return False
        call = json.loads(message)
        listening = None
        try:
            if self._network:
                listening = self._network.listening()
            pid = self._fork(call, pipes, listening.getsockname()[1] if listening else 0)
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            self._tell({"id": call["id"], "failed": str(error)})
        else:
            self._running[pidfd] = (call["id"], pid)
            poll.register(pidfd, select.POLLIN)
            sent = [pidfd, *([listening.fileno()] if listening else [])]
            socket.send_fds(self._control, [json.dumps({"id": call["id"]}).encode()], sent)
        if listening:
            listening.close()
        for pipe in pipes:
            os.close(pipe)
        return True

    def _bury(self, pidfd: int) -> None:
        call_id, pid = self._running.pop(pidfd)
        os.close(pidfd)
        by_ticks = processor_time_by_ticks(pid)
        _, status, used = os.wait4(pid, 0)
        processor_s = max(by_ticks, used.ru_utime + used.ru_stime)
        self._tell({"id": call_id, "status": status, "processor_s": processor_s})

    def _tell(self, message: dict[str, Any]) -> None:
        self._control.send(json.dumps(message).encode())

    def _fork(self, call: dict[str, Any], pipes: list[int], proxy_port: int) -> int:
        """Returns the call's process id. In the call's process it never returns."""
        itself = os.getpid()
        pid = WALLS.fork_apart() if self._plan["namespaces"] else os.fork()
        if pid == 0:
            try:
                self._become_call(call, pipes, itself, proxy_port)
            except BaseException:  # noqa: BLE001 - a call without isolation must not return to the zygote's loop
                os.write(2, traceback.format_exc(limit=-1).encode())
            finally:
                os._exit(WALLS_FAILED)
        return pid

    def _become_call(self, call: dict[str, Any], pipes: list[int], zygote: int, proxy_port: int) -> None:
        plan = self._plan
        scratch, run_folder = call["scratch"] or WALLS.SCRATCH, call["run_folder"]
        os.setsid()
        os.nice(NICE)
        payload, result, *output = pipes
        for number, pipe in enumerate((payload, *output)):
            os.dup2(pipe, number)
        if plan["namespaces"]:
            shown = (plan["run_folders"], run_folder, plan["run_folder"]) if run_folder else None
            WALLS.stand_apart(PROC, *self._user, plan["scratch_bytes"], shown)
            run_folder = run_folder and plan["run_folder"]
        else:
            os.chdir(scratch)
        os.dup2(result, RESULT)
        os.closerange(RESULT + 1, HIGHEST)
        WALLS.die_with_parent(0 if plan["namespaces"] else zygote)
        os.environ.clear()
        os.environ.update({"PATH": os.defpath, "LANG": "C.UTF-8", "HOME": scratch, "TMPDIR": scratch})
        if proxy_port:
            os.environ.update(self._network.environment(proxy_port, plan["certificates"]))
        # A call with limits executes Node.js, so they have to be set before.
        node: dict[str, Any] = {"readable": [], "executable_files": []}
        if "limits" in call:
            node = plan["node"] | call
        WALLS.close_off(
            readable=plan["readable"] + node["readable"],
            writable=[scratch, run_folder] if run_folder else [scratch],
            refuse_metadata=not plan["namespaces"],
            executable=node["executable_files"],
            proxy_port=proxy_port,
        )
        if "limits" in call:
            NODE.run(node, RESULT, BLOCKED)
        CALL.run(RESULT, BLOCKED)


def main(plan: dict[str, Any], control: int, proc: int) -> None:
    """Serves one worker. Never returns."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
        moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 64) for descriptor in (control, proc)]
        for place, descriptor in zip((CONTROL, PROC), moved, strict=True):
            os.dup2(descriptor, place, inheritable=False)
        os.closerange(FIRST_FREE, HIGHEST)
        os.environ.clear()
        WALLS.become_user(plan["user"])
        WALLS.die_with_parent(plan["worker"])
        WALLS.SECCOMP.control(WALLS.LIBC, WALLS.PR_SET_NO_NEW_PRIVS, 1)
        WALLS.SECCOMP.control(WALLS.LIBC, WALLS.PR_SET_DUMPABLE, 0)
        for name in PRELOADED if plan["preload"] else ():
            importlib.import_module(name)
        if plan["network"]:
            importlib.import_module("child_network")
        gc.collect()
        gc.freeze()
        Zygote(plan, socket.socket(fileno=CONTROL)).serve()
    except BaseException:  # noqa: BLE001 - the worker reads every error from the error output
        traceback.print_exc(limit=-1)
        os._exit(1)
    os._exit(0)
