"""Honest calls in the sandbox that hostile ones are tried on: what they may not see, disturb or leave behind."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from shared.domain.ids import RunId
from tests.kit.jail.jail import Jail
from tests.kit.jail.plants import secret
from tests.security.hostile.hostile_tool import PROJECT
from worker.tools.outcomes import ToolInvocation

SLACK_S = 60.0
"""For a busy machine, on top of what a call is given."""
BETWEEN_CALLS_S = 0.1

PROBE = """
def probe():
    import builtins, json, os, resource, signal, stat, sys, threading
    here = os.getcwd()
    folders = [here, "/tmp", "/var/tmp", "/dev/shm", "/run", os.environ.get("HOME", "/"), os.environ.get("TMPDIR", "/")]
    def listing(folder):
        try:
            return sorted(name for name in os.listdir(folder) if name != os.path.basename(here))
        except OSError as error:
            return error.errno
    def kind(descriptor):
        try:
            return stat.S_IFMT(os.fstat(descriptor).st_mode)
        except OSError:
            return None
    mask = os.umask(0)
    os.umask(mask)
    return {
        "modules": sorted(sys.modules), "path": sys.path, "argv": sys.argv, "umask": mask,
        "environment": sorted(os.environ), "threads": threading.active_count(),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "files": [listing(folder) for folder in folders], "descriptors": [kind(n) for n in range(64)],
        "handlers": [str(signal.getsignal(n)).split(" at ")[0] for n in sorted(signal.valid_signals())],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "limits": [resource.getrlimit(n) for n in range(16)], "cores": len(os.sched_getaffinity(0)),
        "builtins": sorted(vars(builtins)), "json": json.dumps([1, {"a": None}]), "user": [os.getuid(), os.getgid()],
        "kinds": [type(part).__name__ for part in (print, open, len, json.dumps, os.write, os._exit)],
    }
"""
VICTIM = """
def victim(mark):
    import os, tempfile, time
    with tempfile.NamedTemporaryFile(mode="w") as kept:
        kept.write(os.environ["SECRET"])
        kept.flush()
        with open(os.environ["HOLDFAST_RUN_FOLDER"] + "/kept", "w") as of_run:
            of_run.write(os.environ["SECRET"])
        while True:
            time.sleep(0.05)
"""
ORDINARY = "def ordinary(a, b):\n    return {'product': a * b}\n"


async def call(jail: Jail, invocation: ToolInvocation, **details: Any) -> dict[str, Any]:
    """Makes a call and waits for what it came to."""
    _, answer = jail.request("call", invocation=msgspec.to_builtins(invocation), **details)
    return await jail.answered(answer, invocation.timeout_s + SLACK_S)


async def surroundings(jail: Jail, *, has_network: bool = False) -> dict[str, Any]:
    """What an honest call finds when it looks around."""
    probe = ToolInvocation(PROJECT, PROBE, "probe", {}, has_network=has_network, timeout_s=30)
    answer = await call(jail, probe, shown=100_000)
    return json.loads(answer["text"]) if answer.get("status") == "success" else {"failed": answer}


def difference(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {name: (one.get(name), other.get(name)) for name in one | other if one.get(name) != other.get(name)}


@contextlib.asynccontextmanager
async def victim(jail: Jail, findings: list[str]) -> AsyncGenerator[None]:
    """A call that holds a secret, in its memory and in a file, for as long as others run."""
    held = ToolInvocation(
        project_id=PROJECT,
        source_code=VICTIM,
        function="victim",
        arguments={"mark": secret("argument", jail.token)},
        environment={"SECRET": secret("call", jail.token)},
        run_id=RunId("run-of-the-victim"),
        timeout_s=300,
    )
    number, answer = jail.request("call", invocation=msgspec.to_builtins(held))
    yield
    if answer.done():
        findings.append(f"a call beside them was ended: {answer.exception() or answer.result()}")
        return
    jail.cancel(number)
    await jail.answered(answer, SLACK_S)


@contextlib.asynccontextmanager
async def ordinary_calls(jail: Jail, findings: list[str]) -> AsyncGenerator[None]:
    """Calls of somebody else, one after the other, whose answers must be right all the time."""
    over = asyncio.Event()

    async def go_on() -> None:
        for a in itertools.count(3):
            ordinary = ToolInvocation(PROJECT, ORDINARY, "ordinary", {"a": a, "b": a + 1}, timeout_s=30)
            answer = await call(jail, ordinary)
            if answer.get("text") != json.dumps({"product": a * (a + 1)}):
                findings.append(f"an ordinary call beside them was answered {answer}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), BETWEEN_CALLS_S)
                return

    async with asyncio.TaskGroup() as group:
        group.create_task(go_on(), name="ordinary-calls")
        yield
        over.set()
