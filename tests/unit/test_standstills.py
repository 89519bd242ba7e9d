"""A machine stands still and goes on: what was waited for has had no time to come, and is not taken for lost."""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from shared.domain.errors import ModelError, Unavailable
from shared.redis.connection import redis_answers
from shared.sql.engine import WAIT_S, Database
from tests.kit.clocks import FrozenClock, PlayedLoop
from tests.kit.sandboxes import sandbox_of
from tests.kit.tools import tool_call
from tests.kit.wait_until import wait_until
from worker.models.provider import SilenceLimit

LIMIT_S = 5.0


def played(story: Callable[[FrozenClock, PlayedLoop], Awaitable[Any]]) -> Any:
    """What the story gives, on an event loop that has the time of its clock."""
    clock = FrozenClock()

    async def told() -> Any:
        return await story(clock, cast("PlayedLoop", asyncio.get_running_loop()))

    with asyncio.Runner(loop_factory=lambda: PlayedLoop(clock)) as runner:
        return runner.run(told())


async def _asked(answer: asyncio.Future[str]) -> str:
    async with redis_answers(LIMIT_S):
        return await answer


@pytest.mark.parametrize("standstills", [1, 3])
def test_redis_counted_as_gone_after_the_process_had_stood_still(standstills: int) -> None:
    """Every command that was under way when a machine was paused failed, although its answer came at once."""

    async def story(clock: FrozenClock, loop: PlayedLoop) -> str:
        answer: asyncio.Future[str] = loop.create_future()
        asking = asyncio.ensure_future(_asked(answer))
        for _ in range(standstills):
            await loop.until_quiet()
            clock.advance(30_000)
        await loop.until_quiet()
        answer.set_result("PONG")
        return await asking

    assert played(story) == "PONG"


@pytest.mark.parametrize("standstills", [0, 1])
def test_redis_that_is_silent_while_the_process_is_awake_counts_as_gone(standstills: int) -> None:
    async def story(clock: FrozenClock, loop: PlayedLoop) -> int:
        asking = asyncio.ensure_future(_asked(loop.create_future()))
        await loop.until_quiet()
        for _ in range(standstills):
            clock.advance(30_000)
            await loop.until_quiet()
        awake_since = clock.ms
        while not asking.done():
            clock.advance(10)
            await loop.until_quiet()
        with pytest.raises(Unavailable):
            asking.result()
        return clock.ms - awake_since

    assert LIMIT_S * 1000 <= played(story) <= LIMIT_S * 1000 + 20


@pytest.mark.parametrize("standstills", [0, 2])
def test_a_worker_ended_that_began_while_its_machine_stood_still(standstills: int) -> None:
    """The time to connect to Postgres was over, and nothing had been asked in it."""

    async def story(clock: FrozenClock, loop: PlayedLoop) -> int:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            database = Database(f"postgresql://holdfast@127.0.0.1:{silent.getsockname()[1]}/holdfast")
            asking = asyncio.ensure_future(database.greet())
            for _ in range(standstills):
                await loop.until_quiet()
                clock.advance(30_000)
            await loop.until_quiet()
            assert not asking.done()
            awake_since = clock.ms
            while not asking.done():
                clock.advance(10)
                await loop.until_quiet()
            with pytest.raises(Unavailable):
                asking.result()
            await database.aclose()
            return clock.ms - awake_since

    assert WAIT_S * 1000 <= played(story) <= WAIT_S * 1000 + 20


@pytest.mark.parametrize("wait", [SilenceLimit.wait, SilenceLimit.wait_for])
@pytest.mark.parametrize("is_answering", [False, True])
def test_a_model_was_given_up_because_the_machine_had_stood_still(
    wait: Callable[[SilenceLimit, "asyncio.Future[None]"], Coroutine[Any, Any, None]], is_answering: bool
) -> None:
    """Its answer was there, not read yet; the call was paid for and made again."""

    async def story(clock: FrozenClock, loop: PlayedLoop) -> int:
        limit = SilenceLimit(first_event=LIMIT_S, idle=LIMIT_S)
        if is_answering:
            limit.event_seen()
        said: asyncio.Future[None] = loop.create_future()
        waiting = asyncio.ensure_future(wait(limit, said))
        await loop.until_quiet()
        clock.advance(30_000)
        await loop.until_quiet()
        said.set_result(None)
        await waiting
        waiting = asyncio.ensure_future(wait(limit, loop.create_future()))
        await loop.until_quiet()
        awake_since = clock.ms
        while not waiting.done():
            clock.advance(10)
            await loop.until_quiet()
        with pytest.raises(ModelError):
            waiting.result()
        return clock.ms - awake_since

    assert LIMIT_S * 1000 <= played(story) <= LIMIT_S * 1000 + 20


def test_a_limit_that_is_over_leaves_a_cancellation_from_outside_alone() -> None:
    async def story(clock: FrozenClock, loop: PlayedLoop) -> bool:
        asking = asyncio.ensure_future(_asked(loop.create_future()))
        await loop.until_quiet()
        asking.cancel()
        await loop.until_quiet()
        clock.advance(60_000)
        await loop.until_quiet()
        return asking.cancelled()

    assert played(story)


async def test_a_tool_was_given_up_because_the_machine_had_stood_still(tmp_path: Path) -> None:
    """It had its answer when the worker woke up, and its call had run out of time by then."""
    source = """
        import pathlib, time
        def tool(begun):
            pathlib.Path(begun).touch()
            time.sleep(1.5)
            return "in time"
    """
    begun = tmp_path / "begun"
    call = msgspec.structs.replace(tool_call(source, begun=str(begun)), timeout_s=2.0)
    async with sandbox_of("process") as sandbox:
        calling = asyncio.ensure_future(sandbox.call(call))
        await wait_until(begun.exists, description="the tool to begin")
        threading.Event().wait(4.0)  # nothing goes on in this process
        outcome = await calling
    assert (outcome.status, outcome.text) == ("success", "in time")
