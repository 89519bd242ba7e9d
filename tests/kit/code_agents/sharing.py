"""Agents whose runs may share a process. A message names its run, and the run's actions."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count

from holdfast.agents import Denied, Run, agent
from tests.kit.code_agents.places import at, block_at, reach
from tests.kit.wait_until import wait_until

BALLAST = bytearray(b"x") * 100_000_000
"""Memory of the host, which no process has for itself."""

MIB = 1 << 20


@agent("mate")
async def mate(run: Run) -> str:
    """Takes a step, and does what its message says."""
    name, way = run.text.split()
    await run.step("first", reach, f"{name} first")
    reach(f"{name} in {os.getpid()}")
    run.emit_text(f"{name} begins. ")
    await WAYS[way](run, name)
    return f"{name} is done"


@agent("apart", models="worker")
async def apart(run: Run) -> str:
    """Asks the worker's models."""
    return await mate(run)


async def _stands(_run: Run, name: str) -> None:
    await at(name)


async def _exits(_run: Run, name: str) -> None:
    await at(name)
    os._exit(3)


async def _leaves(_run: Run, name: str) -> None:
    await at(name)
    raise SystemExit(4)


async def _blocks(_run: Run, name: str) -> None:
    block_at(name)


async def _blocks_thread(run: Run, name: str) -> None:
    await run.step("thread", block_at, name)


async def _listens(_run: Run, name: str) -> None:
    beside = asyncio.create_task(asyncio.Event().wait())
    try:
        await at(name)
    except asyncio.CancelledError:
        reach(f"{name} is cancelled")
        raise
    finally:
        reach(f"{name} cleans up, {beside.done()}")


async def _leaves_task(_run: Run, name: str) -> None:
    async def beside() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            reach(f"{name} has left a task")

    _tasks.add(asyncio.create_task(beside()))
    await at(name)


async def _leaves_thread(_run: Run, name: str) -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    await at(name)


async def _asks(run: Run, name: str) -> None:
    try:
        await run.approval("publish", {"name": name})
    except Denied:
        reach(f"{name} was denied")
    finally:
        reach(f"{name} cleans up")


async def _asks_in_a_scope(run: Run, name: str) -> None:
    """With code beside it that would go on by itself: a task, a timer, and what ends the scope."""
    loop, expert = asyncio.get_running_loop(), asyncio.create_task(run.scope("expert", partial(_asks, run), name))

    def tick() -> None:
        reach(f"{name} ticks")
        loop.call_later(0.001, tick)

    tick()
    beside = asyncio.create_task(wait_until(lambda: reach(f"{name} tocks"), description="the end of the run"))
    try:
        await expert
    finally:
        beside.cancel()


async def _asks_beside_a_thread(run: Run, name: str) -> None:
    await asyncio.gather(run.scope("thread", block_at, name), run.approval("publish", {"name": name}))


async def _sleeps(run: Run, name: str) -> None:
    try:
        await run.sleep(3600)
    finally:
        reach(f"{name} cleans up")


async def _works(_run: Run, name: str) -> None:
    """For a while, when its test lets it."""
    await at(name)
    looks = count()
    await wait_until(lambda: next(looks) == 30, description="a while to be over")


async def _changes(run: Run, name: str) -> None:
    await run.step(os.environ.get("HOLDFAST_AGENTS_VERSION", "1"), at, name)


async def _grows(_run: Run, name: str) -> None:
    held: list[bytearray] = []
    reach(f"{name} grows")
    await at(name)
    while True:
        held.append(bytearray(os.urandom(1)) * (8 * MIB))


async def _grows_in_a_step(run: Run, _name: str) -> None:
    await run.step("grow", lambda: len(bytearray(1 << 62)), key=0)


async def _sees_the_ballast(_run: Run, name: str) -> None:
    sum(BALLAST[::4096])
    end = time.monotonic() + 1
    while time.monotonic() < end:
        signal.sigtimedwait([], 0.01)
    reach(f"{name} has seen it")


_tasks: set["asyncio.Task[None]"] = set()

WAYS: dict[str, Callable[[Run, str], Awaitable[None]]] = {
    "stands": _stands,
    "exits": _exits,
    "leaves": _leaves,
    "blocks": _blocks,
    "blocks-thread": _blocks_thread,
    "listens": _listens,
    "leaves-task": _leaves_task,
    "leaves-thread": _leaves_thread,
    "asks": _asks,
    "asks-in-a-scope": _asks_in_a_scope,
    "asks-beside-a-thread": _asks_beside_a_thread,
    "sleeps": _sleeps,
    "works": _works,
    "changes": _changes,
    "grows": _grows,
    "grows-in-a-step": _grows_in_a_step,
    "sees": _sees_the_ballast,
}
