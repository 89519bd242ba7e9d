"""What a tool meets at its walls, in each tier: looked at from inside and from outside."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from tests.kit.sandboxes import LIMITS, SCRATCH_MB, WALLED, sandbox_of, walls
from tests.kit.tools import tool_call
from worker.tools.guest import child_seccomp
from worker.tools.outcomes import ToolSandbox
from worker.tools.scratch import remove_tree

HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
NUMBER = re.compile(r"#define\s+__NR(?:3264)?_(\w+)\s+(\d+)")

ENDLESS = "def tool():\n    while True:\n        pass"

ATTEMPTS = """
    import ctypes, os, signal, socket, subprocess, threading, multiprocessing

    def tool(secret, worker):
        libc = ctypes.CDLL(None, use_errno=True)
        found = {}

        def attempt(name, action):
            try:
                action()
            except OSError as error:
                found[name] = type(error).__name__
            else:
                found[name] = "done"

        def call(*arguments):
            if libc.syscall(*map(ctypes.c_long, arguments)) < 0:
                raise OSError(ctypes.get_errno(), "refused")

        attempt("fork", os.fork)
        attempt("run", lambda: subprocess.run(["/bin/true"]))
        attempt("replace itself", lambda: os.execv("/bin/true", ["true"]))
        attempt("socket", socket.socket)
        attempt("datagrams", lambda: socket.socketpair(type=socket.SOCK_DGRAM))
        attempt("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
        attempt("memory without a name", lambda: os.memfd_create("x"))
        attempt("another's file", lambda: open(secret).read())
        attempt("passwords", lambda: open("/etc/passwd").read())
        attempt("the machine", lambda: os.listdir("/"))
        attempt("processes", lambda: open(f"/proc/{worker}/environ").read())
        attempt("its parent", lambda: os.kill(os.getppid(), 0))
        attempt("everybody", lambda: os.kill(-1, 0))
        attempt("a library", lambda: open(os.__file__, "a"))
        attempt("a session", os.setsid)
        attempt("a pipe among files", lambda: os.mkfifo("pipe"))
        attempt("a namespace", lambda: call(272 if os.uname().machine == "x86_64" else 97, 0x10000000))
        attempt("what the kernel got later", lambda: call(462, 0))
        attempt("outliving its parent", lambda: call(157 if os.uname().machine == "x86_64" else 167, 1, 0))
        return found
"""


@pytest.fixture(params=WALLED)
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[ToolSandbox]:
    async with sandbox_of(request.param) as made:
        yield made


async def value_of(sandbox: ToolSandbox, source: str, **arguments: Any) -> Any:
    outcome = await sandbox.call(tool_call(source, **arguments))
    assert outcome.status == "success", (outcome.text, outcome.stderr)
    return json.loads(outcome.text)


async def test_everything_that_is_not_a_tools_own_is_refused(sandbox: ToolSandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush")
    found = await value_of(sandbox, ATTEMPTS, secret=str(secret), worker=os.getpid())
    assert [name for name, what in found.items() if what == "done"] == []


async def test_threads_asyncio_and_temporary_files_work(sandbox: ToolSandbox) -> None:
    source = """
        import asyncio, sqlite3, tempfile, threading, zoneinfo
        async def tool():
            seen = []
            thread = threading.Thread(target=seen.append, args=("a thread",))
            thread.start()
            thread.join()
            seen.append(await asyncio.to_thread(lambda: "asyncio"))
            with tempfile.TemporaryDirectory() as folder:
                with sqlite3.connect(folder + "/db") as database:
                    seen += database.execute("select 'sqlite'").fetchone()
            zoneinfo.ZoneInfo("Europe/Rome")
            return seen
    """
    assert await value_of(sandbox, source) == ["a thread", "asyncio", "sqlite"]


async def test_a_call_has_four_descriptors_and_no_environment_but_its_own(sandbox: ToolSandbox) -> None:
    source = """
        import os
        def tool():
            def is_open(number):
                try:
                    return bool(os.fstat(number))
                except OSError:
                    return False
            return [number for number in range(4096) if is_open(number)]
    """
    assert await value_of(sandbox, source) == [0, 1, 2, 3]


async def test_what_one_call_writes_the_next_does_not_see(sandbox: ToolSandbox) -> None:
    source = """
        import builtins, os, sys
        def tool():
            found = [os.listdir("."), hasattr(builtins, "mark"), sys.modules["json"].__dict__.get("mark")]
            open("left", "w").write("x")
            builtins.mark = sys.modules["json"].mark = True
            return found
    """
    for _ in range(2):
        assert await value_of(sandbox, source) == [[], False, None]


async def test_a_scratch_directory_of_its_own_has_a_size() -> None:
    source = """
        def tool():
            written = 0
            try:
                for number in range(6):
                    with open(f"file{number}", "wb") as file:
                        for _ in range(3):
                            written += file.write(b"x" * (1 << 20))
            except OSError as error:
                return written >> 20
            return written >> 20
    """
    async with sandbox_of("tier1") as sandbox:
        assert await value_of(sandbox, source) <= SCRATCH_MB


@pytest.mark.parametrize("tier", WALLED)
async def test_a_file_has_a_size(tier: str) -> None:
    async with sandbox_of(tier) as sandbox:
        outcome = await sandbox.call(tool_call("def tool():\n    open('f', 'wb').write(b'x' * (9 << 20))"))
    assert outcome.status == "error"
    assert "OSError" in outcome.text


@pytest.mark.parametrize("tier", WALLED)
async def test_processor_time_is_bounded_and_said(tier: str) -> None:
    async with sandbox_of(tier, limits=msgspec.structs.replace(LIMITS, processor_s=1)) as bounded:
        outcome = await bounded.call(tool_call(ENDLESS))
    assert outcome.status == "error"
    assert "the tool used up its 1 s of processor time" in outcome.text


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """Neighbours that sleep at most of the ticks of the kernel's timer, so that a call is on its turn at them."""
    program = (
        "import time\nwhile True:\n end = time.time() + 0.0031\n while time.time() < end: pass\n time.sleep(0.0009)"
    )
    neighbours = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(6)]
    yield
    for process in neighbours:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("busy_machine")
@pytest.mark.parametrize("tier", WALLED)
async def test_a_call_at_its_processor_limit_was_said_to_be_killed_for_no_reason(tier: str) -> None:
    """The kernel's limit counts ticks: beside these neighbours a call gets there in about half of the measured time."""
    async with sandbox_of(tier, limits=msgspec.structs.replace(LIMITS, processor_s=1)) as bounded:
        outcomes = await asyncio.gather(*(bounded.call(tool_call(ENDLESS)) for _ in range(3)))
    for outcome in outcomes:
        assert "the tool used up its 1 s of processor time" in outcome.text


def open_to_all(folder: Path) -> None:
    """A test's folder is closed to the tools' user, when we are root."""
    for path in (folder, *folder.parents[:3]):
        path.chmod(0o755)


async def test_a_tool_can_read_the_folders_that_it_is_given_and_import_from_them(
    sandbox: ToolSandbox, tmp_path: Path
) -> None:
    open_to_all(tmp_path)
    (tmp_path / "given.py").write_text("WORD = 'imported'")
    call = msgspec.structs.replace(
        tool_call("import given\ndef tool():\n    return given.WORD"), folders=(str(tmp_path),)
    )
    outcome = await sandbox.call(call)
    assert (outcome.status, outcome.text) == ("success", "imported"), outcome.stderr
    write = f"def tool():\n    open({str(tmp_path / 'new')!r}, 'w')"
    assert (await sandbox.call(msgspec.structs.replace(call, source_code=write))).status == "error"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("tier", WALLED)
async def test_nobody_runs_tools_as_root(tier: str) -> None:
    plan = await walls(tier)
    async with sandbox_of(tier) as sandbox:
        await sandbox.call(tool_call("def tool(): ..."))
        ours = psutil.Process().children(recursive=True)
        zygotes = [process for process in ours if "child_zygote" in " ".join(process.cmdline())]
        assert zygotes
        inner = [process for process in zygotes if process.name() != "bwrap"]
        assert all(0 not in process.uids() for process in inner)
    assert (plan.user is None) == (os.getuid() != 0)


@pytest.mark.parametrize("machine", HEADERS)
def test_the_numbers_of_system_calls_are_the_kernels(machine: str) -> None:
    header = HEADERS[machine]
    if not header.exists():
        pytest.skip(f"this machine has no {header}")
    numbers = {name: int(number) for name, number in NUMBER.findall(header.read_text())}
    place = list(HEADERS).index(machine)
    tables = child_seccomp.REFUSED | child_seccomp.METADATA | child_seccomp.LOOKED_INTO | child_seccomp.OUTGOING
    assert {name: pair[place] for name, pair in tables.items()} == {name: numbers.get(name) for name in tables}


@pytest.mark.parametrize("machine", HEADERS)
@pytest.mark.parametrize("has_network", [False, True])
@pytest.mark.parametrize("refuse_metadata", [False, True])
@pytest.mark.parametrize("becomes_program", [False, True])
def test_every_jump_of_the_filter_stays_in_it(
    machine: str, *, refuse_metadata: bool, becomes_program: bool, has_network: bool
) -> None:
    wanted = {"refuse_metadata": refuse_metadata, "becomes_program": becomes_program, "has_network": has_network}
    code = child_seccomp.Filter(machine, own_pid=1).program(**wanted)
    steps = [code[start : start + 8] for start in range(0, len(code), 8)]
    for place, step in enumerate(steps):
        if step[0] & 7 == 5:
            assert place + 1 + max(step[2], step[3]) < len(steps)
    assert steps[-1][0] == child_seccomp.RETURN


def test_a_tree_of_any_depth_is_removed(tmp_path: Path) -> None:
    """A recursive removal stopped at a depth of a thousand, and left it all."""
    top = tmp_path / "scratch"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        (below, here) = (here, os.open("d", os.O_RDONLY, dir_fd=here))
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.close(below)
    os.mkdir("closed", mode=0, dir_fd=here)
    os.close(here)
    (top / "link").symlink_to(tmp_path)
    remove_tree(top)
    assert list(tmp_path.iterdir()) == []
