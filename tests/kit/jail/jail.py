"""A jail on this machine for one worker and its hostile tools, and the view of it from outside.

It has users, processes, files and a network of its own: a sandbox that fails lets a tool out into the jail, where the
test finds it and nothing is harmed. No device of its network leads anywhere. Everything in it ends with the jail.
"""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest

from shared.domain.tools import SandboxTier
from tests.kit.environments import UV
from tests.kit.jail.keeper import FOLDER, USERS
from tests.kit.jail.plants import secret
from tests.kit.project.source_tree import ROOT

FIRST_UID = 2_000_000
"""Users that no machine has. Each test process has its own, because some limits count all that a user does."""
FILES = {"/tmp": 1024, "/dev/shm": 64, "/run": 16, "/var/tmp": 64, str(FOLDER): 64}
"""The folders of the jail that can be written to, and their MiB."""
TOP_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
LINE_BYTES = 1 << 22
ANSWER_S = 120.0
LONGEST_PATH = 3000


Answer = asyncio.Future[dict[str, Any]]


class WorkerLost(Exception):
    """The worker in the jail ended, or does not answer."""


@dataclass(frozen=True)
class Seen:
    """A process of the jail. `inside` is its number there."""

    pid: int
    inside: int
    uid: int
    command: str
    private_mb: float


def command(keeper: list[str]) -> list[str]:
    """How a jail is started here: as root without a user namespace, so that its worker can be a real ordinary user."""
    bubblewrap = ["bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if os.getuid() != 0:
        bubblewrap += ["--unshare-user"]
    bubblewrap += ["--die-with-parent", "--new-session", "--hostname", "jail", "--ro-bind", "/usr", "/usr"]
    for name in TOP_FOLDERS:
        path = Path("/", name)
        if path.is_symlink():
            bubblewrap += ["--symlink", str(path.readlink()), str(path)]
        elif path.exists():
            bubblewrap += ["--ro-bind", str(path), str(path)]
    bubblewrap += ["--ro-bind", "/etc", "/etc", "--proc", "/proc", "--dev", "/dev"]
    for folder, megabytes in FILES.items():
        mode = "0755" if folder == str(FOLDER) else "1777"
        bubblewrap += ["--perms", mode, "--size", str(megabytes << 20), "--tmpfs", folder]
    for folder in (Path(sys.base_prefix), Path(sys.prefix), ROOT):
        for parent in reversed(folder.parents[:-1]):  # those that bubblewrap makes by itself are for root alone
            bubblewrap += ["--perms", "0755", "--dir", str(parent)]
        bubblewrap += ["--ro-bind", str(folder), str(folder)]
    return [*bubblewrap, "--chdir", str(ROOT), "--", sys.executable, *keeper]


def first_uid(*, as_root: bool) -> int:
    """The worker's user, by this machine's number, if the tests run as root."""
    return FIRST_UID + os.getpid() * USERS % (1 << 30) if as_root else FIRST_UID + os.getpid()


@cache
def why_impossible() -> str:
    """The reason why this machine can have no jail; empty if it can."""
    if sys.platform != "linux" or shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    tried = subprocess.run(command(["-c", ""]), capture_output=True, check=False)
    return "" if tried.returncode == 0 else f"bubblewrap: {tried.stderr.decode(errors='replace').strip()[:300]}"


def need_a_jail() -> None:
    """Skips the test if there can be no jail; fails it in CI."""
    if reason := why_impossible():
        message = f"no jail for hostile tools on this machine ({reason})"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{message}. CI runs every test.", pytrace=False)
        pytest.skip(message)


class Jail:
    """One jail with its worker. Made by `jail`."""

    def __init__(self, process: asyncio.subprocess.Process, token: str) -> None:
        self._process = process
        self.token = token
        self.targets: dict[str, Any] = {}
        self._answers: dict[int, Answer] = {}
        self._last_id = 0

    def request(self, do: str, **details: Any) -> tuple[int, Answer]:
        """Asks the worker for something: the number of the request, and its answer."""
        self._last_id += 1
        answer = self._answers[self._last_id] = asyncio.get_running_loop().create_future()
        assert self._process.stdin
        if self._process.stdin.is_closing():
            answer.set_exception(WorkerLost("the worker is gone"))
        else:
            self._process.stdin.write(json.dumps({"id": self._last_id, "do": do} | details).encode() + b"\n")
        return self._last_id, answer

    async def look(self) -> dict[str, Any]:
        """The worker's own view of itself."""
        return await self.answered(self.request("look")[1], ANSWER_S)

    async def answered(self, answer: Answer, seconds: float) -> dict[str, Any]:
        await asyncio.wait([answer], timeout=seconds)
        if not answer.done():
            raise WorkerLost(f"the worker gave no answer in {seconds:g} s")
        return answer.result()

    def cancel(self, call: int) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"do": "cancel", "call": call}).encode() + b"\n")

    def processes(self) -> list[Seen]:
        """Everything that runs in the jail. Dead processes that were not reaped do not count."""
        found: list[Seen] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess, OSError):
                    found.extend(seen(process))
        return found

    def shared_mb(self) -> float:
        """Memory of files without a disk: of the whole machine, for the kernel counts no other way."""
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Shmem:")) / 1024

    def worker(self) -> int:
        """The worker's process, as this machine numbers it."""
        return next(process.pid for process in self.processes() if process.inside == self.targets["worker"])

    def files(self) -> dict[str, tuple[int, ...]]:
        """Returns every file that a tool in the jail could have written, with size, mode, user and time of change."""
        keeper = psutil.Process(self._process.pid).children(recursive=True)[0].pid
        root = Path(f"/proc/{keeper}/root")
        found: dict[str, tuple[int, ...]] = {}
        for top in FILES:
            device = Path(f"{root}{top}").lstat().st_dev
            for folder, folders, names in os.walk(f"{root}{top}"):
                here = Path(folder)
                folders[:] = [name for name in folders if device_of(here / name) == device]
                for path in (here, *(here / name for name in names)):
                    found["/" + str(path.relative_to(root))] = seen_file(path)
                if len(folder) > LONGEST_PATH:
                    folders.clear()
        return found

    async def read_answers(self) -> None:
        assert self._process.stdout
        while line := await self._process.stdout.readline():
            answer = json.loads(line)
            if "worker_ended" in answer:
                break
            waiting = self._answers.pop(answer["id"], None)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(WorkerLost("the worker ended"))
                waiting.exception()


def device_of(path: Path) -> int | None:
    """None: it is gone already."""
    try:
        return path.lstat().st_dev
    except FileNotFoundError:
        return None


def seen_file(path: Path) -> tuple[int, ...]:
    try:
        state = path.lstat()
    except FileNotFoundError:
        return ()
    changed = 0 if stat.S_ISDIR(state.st_mode) else state.st_mtime_ns  # of a folder, its own entries tell
    return state.st_size, state.st_mode, state.st_uid, changed


def seen(process: psutil.Process) -> list[Seen]:
    status = Path(f"/proc/{process.pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    if fields["State"].split()[0] in "ZX" and int(fields["Threads"]) <= 1:  # a process may go on without its first one
        return []
    inside = [int(number) for number in fields["NSpid"].split()]
    private_kb = int(fields.get("RssAnon", "0 kB").split()[0])
    arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode(errors="replace")
    command = arguments.replace("\0", " ").strip() or fields["Name"].strip()
    uid = int(fields["Uid"].split()[0])
    return [Seen(process.pid, inside[min(1, len(inside) - 1)], uid, command, private_kb / 1024)]


@contextlib.asynccontextmanager
async def jail(tier: SandboxTier, *, as_root: bool = False) -> AsyncGenerator[Jail]:
    """A jail whose worker runs its tools in that tier. Everything in it is dead afterwards.

    `as_root`: the worker is root, as far as it can tell. Only root can make such a jail.
    """
    token = secrets.token_hex(8)
    environment = {
        "PATH": os.defpath,
        "HOME": str(FOLDER),
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAIL_TOKEN": token,
        "JAIL_TIER": tier,
        "JAIL_UV": UV,
        "HOLDFAST_DATABASE_URL": f"postgresql://holdfast:{secret('environment', token)}@127.0.0.1/holdfast",
        "OPENAI_API_KEY": secret("environment", token),
    }
    until, end = os.pipe()
    who = "root" if as_root else "user" if os.getuid() == 0 else "own"
    keeper = ["-m", "tests.kit.jail.keeper", who, str(first_uid(as_root=as_root)), str(until)]
    process = await asyncio.create_subprocess_exec(
        *command(keeper),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        limit=LINE_BYTES,
        pass_fds=(until,),
        env={"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    os.close(until)
    os.write(end, json.dumps(environment).encode() + b"\n")
    made = Jail(process, token)
    try:
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(made.read_answers(), name="read-answers")
            made.targets = (await made.look())["targets"]
            yield made
            reading.cancel()
    finally:
        os.close(end)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        await process.wait()
