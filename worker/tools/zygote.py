"""A zygote seen from the worker: its start, its calls and its end. `child_zygote.py` is the zygote itself."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from shared.concurrency import AnswerTimeout
from shared.domain.tools import SandboxTier
from worker.tools.interpreter import Interpreter, NodeProgram
from worker.tools.outcomes import CallLimits, CappedPipe

# The start of a zygote: its command line, its program, and the files that its calls may see.


GUEST = Path(__file__).parent / "guest"
PROGRAM = (
    "child_objects",
    "child_call",
    "child_seccomp",
    "child_isolation",
    "child_network",
    "child_node",
    "child_zygote",
)
BOOTSTRAP = """
import json, sys, types
with open(int(sys.argv[1]), encoding="utf-8") as file:
    program = json.load(file)
for name, source in program["modules"].items():
    module = sys.modules[name] = types.ModuleType(name)
    module.__file__ = name + ".py"
    exec(compile(source, module.__file__, "exec"), module.__dict__)
sys.modules["child_zygote"].main(program["plan"], int(sys.argv[2]), int(sys.argv[3]))
"""
"""The first code of a zygote: makes modules of the texts that the worker has sent."""

ENVIRONMENT = {"PATH": os.defpath, "LANG": "C.UTF-8"}
"""The whole environment of a zygote and of bubblewrap, because a process's initial environment is visible in /proc."""


CERTIFICATES = "/etc/ssl/cert.pem"
"""The file with the certificate authorities, for calls with a network."""
RUN_FOLDERS, RUN_FOLDER = "/run-folders", "/run-folder"
"""Paths in tier 1: the folders of all runs of the project, for a zygote; and the own run's folder, for a call."""


class ZygotePlan(msgspec.Struct, frozen=True):
    """A worker's plan for its zygotes."""

    tier: SandboxTier
    interpreter: Interpreter
    scratch_bytes: int
    user: tuple[int, int] | None = None
    """User and group of the tools, if the worker is root."""
    node: NodeProgram | None = None
    """Runs JavaScript calls; None: there are none."""
    folders: tuple[str, ...] = ()
    """Folders of packages that calls may read, and import from."""
    preload: bool = True
    """Load the parts of the standard library that tools use most before the first call."""

    network: bool = False
    """Each call gets a proxy's socket, the only address to which it can connect."""
    certificates: str = ""
    """A file of the certificate authorities that calls with a network get."""
    runs: str = ""
    """The folder for the folders of a project's runs, for the zygote of calls that use them, in tier 1."""

    @property
    def readable(self) -> list[str]:
        """The files and folders that a call may read, by their paths in the call."""
        return [*self.interpreter.readable, *self.folders_inside, *([CERTIFICATES] if self.network else [])]

    @property
    def folders_inside(self) -> list[str]:
        """`folders` by their paths in a call: in a file system of its own, no folder hides another."""
        if self.tier is not SandboxTier.ONE:
            return list(self.folders)
        return [f"/packages/{number}" for number, _ in enumerate(self.folders)]

    def command(self, program: int, control: int, proc: int) -> list[str]:
        """The command line. The numbers are descriptors that the process inherits."""
        python = [self.interpreter.executable, "-I", "-S", "-B", "-c", BOOTSTRAP]
        return [*self._bubblewrap(), *python, str(program), str(control), str(proc)]

    def program(self) -> bytes:
        """Returns the program that the bootstrap reads."""
        namespaces = self.tier is SandboxTier.ONE
        plan = {
            "namespaces": namespaces,
            "user": self.user,
            "worker": 0 if namespaces else os.getpid(),
            "readable": self.readable,
            "scratch_bytes": self.scratch_bytes,
            "preload": self.preload,
            "node": self.node.for_child() if self.node else None,
            "network": self.network,
            "certificates": CERTIFICATES,
            "run_folders": RUN_FOLDERS,
            "run_folder": RUN_FOLDER,
        }
        wanted = [name for name in PROGRAM if self.network or name != "child_network"]
        modules = {name: (GUEST / f"{name}.py").read_text(encoding="utf-8") for name in wanted}
        return json.dumps({"plan": plan, "modules": modules}).encode()

    def _bubblewrap(self) -> list[str]:
        """The outer isolation of tier 1: a file system that contains only what tools may read, no network, and no
        processes of the machine. Root gets no user namespace, whose only user would be root again: the zygote drops
        root itself, and keeps only the capabilities that it needs for that."""
        if self.tier is not SandboxTier.ONE:
            return []
        shared = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        user = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"] if self.user else ["--unshare-user"]
        shown = [(path, path) for path in (self.interpreter.executable, *self.interpreter.readable)]
        if self.node:
            above = self.interpreter.readable
            shown += [(path, path) for path in self.node.files if not any(path.startswith(f"{one}/") for one in above)]
        shown += zip(self.folders, self.folders_inside, strict=True)
        shown += [(self.certificates, CERTIFICATES)] if self.network else []
        runs = ["--bind", self.runs, RUN_FOLDERS, "--dir", RUN_FOLDER] if self.runs else []
        return [
            *(bubblewrap() or "bwrap", *shared, "--die-with-parent", "--new-session", "--hostname", "tools"),
            *("--cap-drop", "ALL", *user, *_binds(shown), *runs),
            *("--dir", "/tmp", "--chdir", "/", "--remount-ro", "/", "--"),  # noqa: S108 - inside the jail
        ]


def bubblewrap() -> str | None:
    """Returns the path of bubblewrap, if it is installed."""
    return shutil.which("bwrap") or shutil.which("bwrap", path=os.defpath)


def _binds(shown: Sequence[tuple[str, str]]) -> list[str]:
    """Returns options that show these files and folders read-only, each under the second of its names, and the links
    by which the system reaches its own files."""
    devices = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
    # Folders that bubblewrap makes by itself above a path are accessible to root alone.
    above = sorted(
        {str(parent) for path in (*devices, *(inside for _, inside in shown)) for parent in Path(path).parents} - {"/"}
    )
    options = [part for folder in above for part in ("--dir", folder)]
    options += [part for device in devices for part in ("--dev-bind", device, device)]
    options += [part for path, inside in shown for part in ("--ro-bind", path, inside)]
    for link in ("/lib", "/lib64", "/bin"):
        if Path(link).is_symlink():
            options += ["--symlink", str(Path(link).readlink()), link]
    return options


START_S = 20.0
END_S = 1.0
PATIENCE_S = 10.0
"""Seconds for a zygote to report the end of a call whose process is known to be dead."""
COMPLAINT_BYTES = 4096
MESSAGE_BYTES = 1 << 16


class ZygoteGone(OSError):
    """The zygote ended before it had answered: the requested call has not begun."""


class ForkedCall:
    """One call's process, by its pidfd: a descriptor that never refers to another process."""

    def __init__(self, pidfd: int, loop: asyncio.AbstractEventLoop, listening: socket.socket | None = None) -> None:
        self._pidfd = pidfd
        self._listening = listening
        self._loop = loop
        self._last_wait: asyncio.TimerHandle | None = None
        self._is_abandoned = False
        self.over: asyncio.Future[None] = loop.create_future()
        self.status: int | None = None
        """The wait status; None if the zygote could not report it."""
        self.processor_s = 0.0
        loop.add_reader(pidfd, self._died)

    def take_listening(self) -> socket.socket | None:
        """Returns the socket of the call's proxy, if it has a network. The caller must close it."""
        taken, self._listening = self._listening, None
        return taken

    def signal(self, number: signal.Signals) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def end(self, status: int | None, processor_s: float = 0.0) -> None:
        """Records that the process is dead and reaped."""
        if not self.over.done():
            self.status, self.processor_s = status, processor_s
            self.over.set_result(None)

    def abandon(self) -> None:
        """Kills the process. Its zygote is gone, so no process can report its end."""
        self._is_abandoned = True
        self.signal(signal.SIGKILL)
        if self._last_wait is not None:
            self.end(None)

    def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if self._last_wait is not None:
            self._last_wait.cancel()

    def _died(self) -> None:
        self._loop.remove_reader(self._pidfd)
        if self._is_abandoned:
            self.end(None)
        elif not self.over.done():
            self._last_wait = self._loop.call_later(PATIENCE_S, self.end, None)


class Zygote(asyncio.SubprocessProtocol):
    """One zygote process. It calls `on_idle` when its last call is over, and when the process is gone."""

    def __init__(self, plan: ZygotePlan, on_idle: Callable[["Zygote"], None]) -> None:
        self._plan = plan
        self._on_idle = on_idle
        self._loop = asyncio.get_running_loop()
        self._control: socket.socket | None = None
        self._transport: asyncio.SubprocessTransport | None = None
        self._exited: asyncio.Future[None] = self._loop.create_future()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._complaint = CappedPipe(COMPLAINT_BYTES)
        self._asked: dict[int, asyncio.Future[ForkedCall]] = {}
        self._running: dict[int, ForkedCall] = {}
        self.begun = 0
        self.landlock = 0
        """The kernel's version of landlock, once the zygote is ready."""
        self.is_gone = False

    @property
    def is_idle(self) -> bool:
        return not self._running and not self._asked

    async def start(self) -> None:
        """Starts the zygote. Raises `OSError` with the reason if that fails."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        ours.setblocking(False)
        with contextlib.ExitStack() as stack:
            stack.enter_context(theirs)
            with self._complaint:
                complaint = self._complaint.child_end
                stack.callback(os.close, complaint)
                try:
                    await self._spawn(stack, theirs.fileno(), complaint)
                    stack.close()
                    await self._hear()
                except BaseException:
                    await self.aclose()
                    raise

    async def fork(
        self, pipes: Sequence[int], scratch: str, run_folder: str = "", node_limits: CallLimits | None = None
    ) -> ForkedCall:
        """Forks a call, which waits for its payload on the first of the pipes. `scratch`: its directory, if it has no
        file system of its own. `run_folder`: its run's folder, by name in `ZygotePlan.runs`, or by path in tier 2.
        `node_limits`: the limits of a call that becomes Node.js. Raises `ZygoteGone` if the call cannot have begun, and
        `OSError` if it could not be forked."""
        if self._control is None or self.is_gone:
            raise ZygoteGone("the zygote is gone")
        self.begun += 1
        call_id = self.begun
        answer = self._asked[call_id] = self._loop.create_future()
        limits = {} if node_limits is None else {"limits": msgspec.to_builtins(node_limits)}
        message = json.dumps({"id": call_id, "scratch": scratch, "run_folder": run_folder} | limits).encode()
        try:
            socket.send_fds(self._control, [message], pipes)
        except (BrokenPipeError, ConnectionResetError) as error:
            self._asked.pop(call_id)
            raise ZygoteGone("the zygote is gone") from error
        except OSError:
            self._asked.pop(call_id)
            raise
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            # The zygote may have answered in the same moment: the cancelled task never gets that call.
            answer.add_done_callback(_end_unwanted)
            raise

    def kill(self) -> None:
        """Kills the zygote at once, with every call."""
        if self._transport is not None and not self._exited.done():
            with contextlib.suppress(ProcessLookupError):
                self._transport.kill()

    async def aclose(self) -> None:
        """Ends the zygote, with every call that is left."""
        self._lose()
        if self._transport is not None:
            await asyncio.wait([self._exited], timeout=END_S)
            self.kill()
            await asyncio.wait([self._exited])
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)  # uvloop's is no subclass of asyncio's

    def process_exited(self) -> None:
        if not self._exited.done():
            self._exited.set_result(None)

    async def _spawn(self, stack: contextlib.ExitStack, control: int, complaint: int) -> None:
        program = os.memfd_create("holdfast-zygote")
        stack.callback(os.close, program)
        proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
        stack.callback(os.close, proc)
        text = memoryview(self._plan.program())
        while text:
            text = text[os.write(program, text) :]
        os.lseek(program, 0, os.SEEK_SET)
        await self._loop.subprocess_exec(
            lambda: self,
            *self._plan.command(program, control, proc),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=complaint,
            pass_fds=(program, control, proc),
            cwd="/",
            env=ENVIRONMENT,
            start_new_session=True,
        )

    async def _hear(self) -> None:
        if self._control is not None:
            self._loop.add_reader(self._control.fileno(), self._on_message)
        with contextlib.suppress(TimeoutError):
            async with AnswerTimeout(START_S):
                await asyncio.wait([self._ready])
        if self.is_gone or not self._ready.done():
            await asyncio.wait([self._exited], timeout=END_S)
            self._complaint.drain()
            said = self._complaint.kept.decode("utf-8", "replace").strip().splitlines()
            raise OSError(said[-1] if said else "it did not answer")

    def _on_message(self) -> None:
        if self._control is None:
            return
        try:
            text, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 2)
        except BlockingIOError:
            return
        except ConnectionResetError:
            text, descriptors = b"", []
        if not text:
            self._lose()
            return
        self._take(json.loads(text), descriptors)

    def _take(self, message: dict[str, Any], descriptors: list[int]) -> None:
        call_id = message.get("id", 0)
        if descriptors:
            listening = socket.socket(fileno=descriptors[1]) if len(descriptors) > 1 else None
            self._begin(call_id, ForkedCall(descriptors[0], self._loop, listening))
        elif "failed" in message:
            self._asked.pop(call_id).set_exception(OSError(message["failed"]))
        elif "status" in message:
            self._running.pop(call_id).end(message["status"], message["processor_s"])
        elif not self._ready.done():
            self.landlock = message["landlock"]
            self._ready.set_result(None)
        if self.is_idle:
            self._on_idle(self)

    def _begin(self, call_id: int, call: ForkedCall) -> None:
        self._running[call_id] = call
        self._asked.pop(call_id).set_result(call)

    def _lose(self) -> None:
        if self._control is None:
            return
        self.is_gone = True
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        self._control = None
        for answer in self._asked.values():
            answer.set_exception(ZygoteGone("the zygote ended"))
        for call in self._running.values():
            call.abandon()  # the death of its parent kills it as well; this is sooner
        self._asked.clear()
        self._running.clear()
        if not self._ready.done():
            self._ready.set_result(None)
        self._on_idle(self)


def _end_unwanted(answer: "asyncio.Future[ForkedCall]") -> None:
    """Ends a call whose task was cancelled before it got the call. The call has no payload."""
    if answer.exception() is None:
        call = answer.result()
        call.signal(signal.SIGKILL)
        call.over.add_done_callback(lambda _: call.close())
