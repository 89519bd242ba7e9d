"""The process that has imported a module of agents, and forks a child for each attempt of a run.

It communicates only with its worker, over one socket. It has no thread and no event loop, so that forking is sound. If
the worker is gone, the host ends at the end of its socket, and its children end with it.
"""

import ctypes
import gc
import importlib
import inspect
import io
import json
import os
import select
import signal
import socket
import stat
import sys
import threading
import traceback
from contextlib import suppress
from glob import glob
from typing import Any, cast

from holdfast.agents.adapters import ADAPTERS, warnings_of
from holdfast.agents.child import LONGEST_TRACEBACK, execute
from holdfast.agents.errors import error_fields
from holdfast.agents.memory import MemoryWatch, private_bytes
from holdfast.agents.registry import REGISTERED, Agent
from holdfast.agents.shared import execute_several

LONGEST_REQUEST = 65536
LONGEST_REASON = 2000
LARGEST_SAYING = 100_000
"""The most bytes of the description of all agents: half of what the socket takes at once."""
PR_SET_PDEATHSIG = 1
MIB = 1 << 20


def serve(module: str, control: socket.socket, max_mb: int) -> None:
    """Imports the module and serves the worker until it is gone. A process with more than `max_mb` MiB of its own is
    ended; 0: there is no limit."""
    ours = {control.fileno()}
    trace = ""
    try:
        flaws = [*_flaws(module, ours), *_flaws_of_system(max_mb)]
    except BaseException as error:  # noqa: BLE001 - a module may raise anything, and its worker says what it was
        kind, text = error_fields(error).values()
        flaws = [f"{module} cannot be imported: {kind}: {text[:LONGEST_REASON]}"]
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            flaws[0] += "; start from the folder that has it, or name that folder in PYTHONPATH"
        else:
            trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    agents = [{**one.described(), "shares": _shares(one)} for one in REGISTERED.values()]
    said: dict[str, Any] = {"agents": agents, "warnings": _warnings(module) if module in sys.modules else []}
    if (size := len(json.dumps(said))) > LARGEST_SAYING:
        flaws.append(
            f"{module} registers {len(agents)} agents, whose names and descriptions have {size} bytes together, "
            f"{LARGEST_SAYING} are allowed: shorten the descriptions, or use several modules"
        )
        said = {"agents": [], "warnings": []}
    if flaws:
        unfit = {"t": "unfit", "reasons": flaws, **said}
        trace = trace[-LONGEST_TRACEBACK:]
        _say(control, {**unfit, "traceback": trace if len(json.dumps(trace)) < LARGEST_SAYING // 2 else ""})
        return
    libc = ctypes.CDLL(None, use_errno=True)
    gc.collect()
    gc.freeze()
    sys.stdout.flush()  # else each process prints it once more
    _say(control, {"t": "ready", **said})
    children: dict[int, int] = {}
    try:
        _answer(control, children, MemoryWatch(max_mb * MIB), libc)
    finally:
        for child in children:
            _kill_all_of(child)


def _flaws(module: str, ours: set[int]) -> list[str]:
    """Imports the module. Returns the reasons why no host can use it, one sentence each. Raises the module's errors."""
    flaws: list[str] = []
    before = _open_sockets() | ours
    importlib.import_module(module)
    if not REGISTERED:
        flaws.append(f"{module} registers no agent: use @agent or register of holdfast.agents")
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if others:
        flaws.append(f"{module} starts a thread at its import ({', '.join(others)}), which no fork would have")
    if len(_open_sockets() - before) > 0:
        flaws.append(f"{module} opens a connection at its import, which every run would share: open it in the run")
    return flaws


def _warnings(module: str) -> list[str]:
    """Returns warnings about agents and variables that work differently from their framework's documents."""
    registered = [(f"the agent {one.name!r}", one.made_of) for one in REGISTERED.values()]
    variables = [
        (f"the variable {name!r}", value)
        for name, value in vars(sys.modules[module]).items()
        if not inspect.isclass(value) and not inspect.ismodule(value)
    ]
    return warnings_of([*registered, *variables])


def _shares(agent: Agent) -> bool:
    """Whether runs of the agent may share a process. They may not if an adapter changes agents in place, because any
    agent of the module may use it; nor with the worker's models, whose variables name one run."""
    changes = any(not one.can_share and one.module in sys.modules for one in ADAPTERS)
    return not changes and agent.models != "worker"


def _flaws_of_system(max_mb: int) -> list[str]:
    if max_mb:
        try:
            private_bytes("self")
        except OSError as error:
            return [f"HOLDFAST_AGENTS_MAX_MB needs /proc/PID/smaps_rollup, which cannot be read here: {error.strerror}"]
    return []


def _open_sockets() -> set[int]:
    found: set[int] = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - of numbers
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.add(int(name))
    return found


def _answer(control: socket.socket, children: dict[int, int], watch: MemoryWatch, libc: Any) -> None:
    """Forks and buries children on the worker's requests, and ends those that are too large, whose size `children` then
    contains. A dead child stays a zombie until the worker has ended its group, so that its number is not reused."""
    while True:
        readable, _, _ = select.select([control], [], [], watch.pause_s)
        for pid, size in watch.too_large([pid for pid, ended_at in children.items() if not ended_at]).items():
            children[pid] = size
            _kill_all_of(pid)
        if not readable:
            continue
        data, descriptors, _, _ = socket.recv_fds(control, LONGEST_REQUEST, 1)
        if not data:
            return
        request = json.loads(data)
        if request["t"] == "fork":
            pid = _forked(request["agent"], descriptors[0], control, libc)
            children[pid] = 0
            pidfd = os.pidfd_open(pid)
            socket.send_fds(control, [json.dumps({"t": "forked", "pid": pid}).encode()], [pidfd])
            os.close(pidfd)
        else:
            pid = request["pid"]
            _kill_all_of(pid)
            _, status = os.waitpid(pid, 0)
            status, size = os.waitstatus_to_exitcode(status), children.pop(pid)
            _say(control, {"t": "buried", "pid": pid, "status": status, "grown_mb": size // MIB})


def _forked(agent: str, descriptor: int, control: socket.socket, libc: Any) -> int:
    """Forks a process for a run of this agent; for an empty name, for several runs of any agents. Returns its id."""
    host = os.getpid()
    pid = os.fork()
    if pid:
        os.close(descriptor)
        _lead_group(pid)
        return pid
    try:
        _lead_group(0)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != host:
            os._exit(1)
        control.close()
        connection = socket.socket(fileno=descriptor)
        execute(agent, connection) if agent else execute_several(connection)
    except BaseException:  # noqa: BLE001 - the child must never go on as a second host
        traceback.print_exc()
    finally:
        os._exit(1)


def _lead_group(child: int) -> None:
    """Makes the child the leader of its group. Both processes do this: the host may bury a child that has not run yet,
    and must find its group."""
    with suppress(ProcessLookupError):
        os.setpgid(child, child)


def _kill_all_of(leader: int) -> None:
    """Kills the process with its group, and the processes that it has started in other groups, as a browser or
    `start_new_session` does. The group is stopped meanwhile, so that it starts no more of them."""
    _signal_group(leader, signal.SIGSTOP)
    started = _started_by(leader)
    _signal_group(leader, signal.SIGKILL)
    _kill(started)


def _kill(processes: list[int]) -> None:
    for pid in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _signal_group(leader: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _started_by(pid: int) -> list[int]:
    """Returns the processes that this one has started, and their descendants while the parents are alive."""
    found: list[int] = []
    left = [pid]
    while left:
        for tasks in glob(f"/proc/{left.pop()}/task/*/children"):  # noqa: PTH207 - of numbers
            with suppress(OSError), open(tasks, encoding="ascii") as file:  # noqa: PTH123 - as above
                left += (new := [int(one) for one in file.read().split()])
                found += new
    return found


def _say(control: socket.socket, message: Any) -> None:
    with suppress(OSError):
        control.send(json.dumps(message).encode())


def main() -> None:
    """Starts the host. Its arguments are the number of its control socket's descriptor, the MiB that a process may have
    and the module's name."""
    # Line by line: an agent's process is killed, and lines of several processes must not be mixed.
    cast("io.TextIOWrapper", sys.stdout).reconfigure(line_buffering=True)
    try:
        serve(sys.argv[4], socket.socket(fileno=int(sys.argv[2])), int(sys.argv[3]))
    finally:
        _kill(_started_by(os.getpid()))
