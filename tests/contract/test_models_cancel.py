"""Nobody listens any more: the provider's connection is closed at once, on every wire and at every moment."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress

import pytest

from tests.kit.clocks import AwakeTime
from tests.kit.model_server import ModelServer, Turn
from tests.kit.model_server.model_calls import HANDLES, ask, call, models_on_server, text_said
from tests.kit.wait_until import wait_until
from worker.models.provider import ModelCall
from worker.models.registry import Models

AT_ONCE = 0.1
"""Seconds of a process that is awake. Measured: under 5 ms; the rest is for a loaded machine."""

MANY_WORDS = " ".join(f"w{number}" for number in range(200))

SILENT_BEFORE_HEADERS = Turn(text="Never.", silent_before_headers=3600)
SILENT_AFTER_HEADERS = Turn(text="Never.", silent_after_headers=3600)
SILENT_INSIDE = Turn(text=MANY_WORDS, silent_after=3)
TALKING = Turn(text=MANY_WORDS, pace=0.01)


@pytest.fixture
async def awake() -> AsyncIterator[AwakeTime]:
    """Told for the test."""
    with AwakeTime() as time:
        yield time


async def _listen(models: Models, asked: ModelCall, heard: list[str]) -> None:
    async for event in models.stream(asked):
        heard.append(repr(event))


async def _left(server: ModelServer) -> None:
    await wait_until(lambda: server.requests[0].client_left, description="the client to hang up", every=0.001)


@pytest.mark.parametrize("handle", HANDLES)
@pytest.mark.parametrize(
    ("turn", "pieces"), [(SILENT_BEFORE_HEADERS, 0), (SILENT_AFTER_HEADERS, 0), (SILENT_INSIDE, 3), (TALKING, 3)]
)
async def test_cancelling_the_listener_closes_the_connection(
    handle: str, turn: Turn, pieces: int, awake: AwakeTime
) -> None:
    heard: list[str] = []
    async with models_on_server() as (server, models):
        await models.model_for(handle)
        server.play(turn)
        async with asyncio.TaskGroup() as tasks:
            listener = tasks.create_task(_listen(models, call(handle), heard))
            await wait_until(lambda: server.requests and len(heard) >= pieces, description="the answer to begin")
            cancelled_at = awake.seconds()
            listener.cancel()
        await _left(server)
        assert awake.seconds() - cancelled_at < AT_ONCE
    assert len(heard) < 100


@pytest.mark.parametrize("handle", HANDLES)
async def test_leaving_the_loop_closes_the_connection(handle: str, awake: AwakeTime) -> None:
    async with models_on_server() as (server, models):
        server.play(TALKING)
        async with aclosing(models.stream(call(handle))) as events:
            async for _event in events:
                break
        closed_at = awake.seconds()
        await _left(server)
        assert awake.seconds() - closed_at < AT_ONCE


@pytest.mark.parametrize("handle", HANDLES)
async def test_an_error_of_the_listener_closes_the_connection(handle: str) -> None:
    async with models_on_server() as (server, models):
        server.play(SILENT_INSIDE)
        with suppress(ZeroDivisionError):
            async with aclosing(models.stream(call(handle))) as events:
                async for _event in events:
                    raise ZeroDivisionError
        await _left(server)


@pytest.mark.parametrize("handle", HANDLES)
async def test_a_cancel_while_it_waits_to_retry_is_immediate(handle: str) -> None:
    async with models_on_server(retries=3) as (server, models):
        server.fail("rate_limit", retry_after="30")
        async with asyncio.TaskGroup() as tasks:
            heard: list[str] = []
            listener = tasks.create_task(_listen(models, call(handle), heard))
            await wait_until(lambda: heard, description="the retry to be told")
            listener.cancel()
        assert listener.cancelled()


@pytest.mark.parametrize("handle", HANDLES)
async def test_one_cancel_leaves_the_other_calls_alone(handle: str) -> None:
    async with models_on_server() as (server, models):
        await models.model_for(handle)
        server.play(SILENT_INSIDE, Turn(text="Still here.", silent_after_headers=0.1))
        async with asyncio.TaskGroup() as tasks:
            cancelled = tasks.create_task(_listen(models, call(handle), []))
            await wait_until(lambda: server.requests, description="the first request")
            other = tasks.create_task(ask(models, call(handle)))
            await wait_until(lambda: len(server.requests) == 2, description="the second request")
            cancelled.cancel()
        assert text_said(other.result()) == "Still here."


@pytest.mark.parametrize("handle", HANDLES)
async def test_the_connection_of_a_whole_answer_is_used_again(handle: str) -> None:
    async with models_on_server() as (server, models):
        for _ in range(3):
            await ask(models, call(handle))
        assert len(server.requests) == 3
        assert server.connections_accepted == 1
