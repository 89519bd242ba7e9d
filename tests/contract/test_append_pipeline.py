"""The appends of all runs of a process share a way to Redis, and nothing else: no fault, no wait, no answer."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shared.domain.errors import Unavailable, Unusable
from shared.redis.connection import connect
from shared.redis.log_servers import AppendPipeline
from tests.kit.services.played_redis import ANSWERED, CUT, LOADED, PlayedRedis
from tests.kit.wait_until import after

OK = b"+ok\r\n"
FULL = b"-OOM command not allowed when used memory > 'maxmemory'\r\n"
UNKNOWN_SCRIPT = b"-NOSCRIPT No matching script\r\n"
REFUSED = b"-NOPERM this user has no permissions\r\n"


@pytest.fixture
async def server() -> AsyncGenerator[PlayedRedis]:
    async with PlayedRedis().serving() as server:
        yield server


@asynccontextmanager
async def pipeline_to(server: PlayedRedis, **settings: Any) -> AsyncGenerator[AppendPipeline]:
    redis = connect(server.url)
    async with AppendPipeline(redis, **settings).running() as pipeline:
        yield pipeline
    await redis.aclose(close_connection_pool=True)


@pytest.fixture
async def pipeline(server: PlayedRedis) -> AsyncGenerator[AppendPipeline]:
    async with pipeline_to(server) as pipeline:
        yield pipeline


def begin(pipeline: AppendPipeline, *entries: bytes) -> "list[asyncio.Task[Any]]":
    """Appends of as many runs, all at once."""
    loop = asyncio.get_running_loop()
    return [loop.create_task(pipeline(keys=["log"], args=[entry]), name=entry.decode()) for entry in entries]


async def outcomes(appends: "list[asyncio.Task[Any]]") -> list[Any]:
    """What each append gave, or the kind of error that it raised."""
    found = await asyncio.gather(*appends, return_exceptions=True)
    return [type(outcome) if isinstance(outcome, BaseException) else outcome for outcome in found]


async def test_what_comes_while_a_piece_is_under_way_goes_out_together(
    server: PlayedRedis, pipeline: AppendPipeline
) -> None:
    """Each append of each run was a send of its own, and a quarter of the worker's time."""
    first = begin(pipeline, b"a1", b"b1", b"c1")
    await server.hears(b"a1", b"b1", b"c1")
    second = begin(pipeline, b"d1")
    third = begin(pipeline, b"e1", b"f1")
    server.answer(b"+a\r\n", b"+b\r\n", b"+c\r\n")
    await server.hears(b"d1", b"e1", b"f1")
    server.answer(b"+d\r\n", b"+e\r\n", b"+f\r\n")
    assert await outcomes([*first, *second, *third]) == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert server.heard == [b"a1", b"b1", b"c1", ANSWERED, b"d1", b"e1", b"f1", ANSWERED]


async def test_an_append_that_is_refused_touches_no_other(server: PlayedRedis, pipeline: AppendPipeline) -> None:
    appends = begin(pipeline, b"a", b"b", b"c")
    await server.hears(b"a", b"b", b"c")
    server.answer(OK, FULL, OK)
    assert await outcomes(appends) == [b"ok", Unavailable, b"ok"]


async def test_an_append_that_was_given_up_leaves_the_others_their_answers(
    server: PlayedRedis, pipeline: AppendPipeline
) -> None:
    under_way = begin(pipeline, b"a", b"b", b"c")
    await server.hears(b"a", b"b", b"c")
    waiting = begin(pipeline, b"d", b"e")
    await after()  # they have begun
    under_way[1].cancel()
    waiting[0].cancel()
    server.answer(b"+a\r\n", b"+b\r\n", b"+c\r\n")
    # What was sent may be written. So it is sent to its end, and only who waits for it is gone.
    await server.hears(b"d", b"e")
    server.answer(b"+d\r\n", b"+e\r\n")
    gone = asyncio.CancelledError
    assert await outcomes([*under_way, *waiting]) == [b"a", gone, b"c", gone, b"e"]


async def test_a_lost_connection_fails_what_is_under_way_and_the_next_append_makes_a_new_one(
    server: PlayedRedis, pipeline: AppendPipeline
) -> None:
    appends = begin(pipeline, b"a", b"b")
    await server.hears(b"a", b"b")
    server.cut()
    assert await outcomes(appends) == [Unavailable, Unavailable]
    again = begin(pipeline, b"a")
    await server.hears(b"a")
    server.answer(OK)
    assert await outcomes(again) == [b"ok"]


async def test_a_connection_that_was_closed_while_idle_is_not_noticed(
    server: PlayedRedis, pipeline: AppendPipeline
) -> None:
    """What was answered before the break is not sent again."""
    before = begin(pipeline, b"a")
    await server.hears(b"a")
    server.answer(OK)
    await outcomes(before)
    appends = begin(pipeline, b"b", b"c", b"d")
    await server.hears(b"b", b"c", b"d")
    server.answer(b"+b\r\n")
    await appends[0]
    server.cut()
    await server.hears(b"c", b"d")
    server.answer(b"+c\r\n", b"+d\r\n")
    assert await outcomes(appends) == [b"b", b"c", b"d"]
    assert server.heard[2:] == [b"b", b"c", b"d", ANSWERED, CUT, b"c", b"d", ANSWERED]


async def test_a_server_that_does_not_know_the_script_is_given_it_once(
    server: PlayedRedis, pipeline: AppendPipeline
) -> None:
    appends = begin(pipeline, b"a", b"b", b"c")
    await server.hears(b"a", b"b", b"c")
    server.answer(UNKNOWN_SCRIPT, FULL, UNKNOWN_SCRIPT)
    await server.hears(b"a", b"c")
    server.answer(b"+a\r\n", b"+c\r\n")
    assert await outcomes(appends) == [b"a", Unavailable, b"c"]
    assert server.heard == [b"a", b"b", b"c", ANSWERED, LOADED, b"a", b"c", ANSWERED]


async def test_a_piece_is_bounded_and_one_append_always_fits(server: PlayedRedis) -> None:
    long, short = b"l" * 2000, b"s" * 400
    async with pipeline_to(server, piece_bytes=1000) as pipeline:
        appends = begin(pipeline, short, short, long, short)
        await server.hears(short, short)
        server.answer(OK, OK)
        await server.hears(long)
        server.answer(OK)
        await server.hears(short)
        server.answer(OK)
        assert await outcomes(appends) == [b"ok"] * 4


async def test_a_redis_that_refuses_this_process_is_unusable(server: PlayedRedis, pipeline: AppendPipeline) -> None:
    appends = begin(pipeline, b"a")
    await server.hears(b"a")
    server.answer(REFUSED)
    assert await outcomes(appends) == [Unusable]


async def test_nobody_waits_for_a_pipeline_that_has_ended(server: PlayedRedis) -> None:
    async with pipeline_to(server) as pipeline:
        under_way = begin(pipeline, b"a")
        await server.hears(b"a")
        waiting = begin(pipeline, b"b")
        await after()  # it has begun
    assert await outcomes([*under_way, *waiting, *begin(pipeline, b"c")]) == [Unavailable] * 3
