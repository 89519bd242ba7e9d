"""Readers of one run that want to see the same are sent the same bytes."""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from arq.connections import ArqRedis

from api.admission import CallerQuotas
from api.event_stream import ServerEnd
from api.letta.frames import FrameOptions, FrameStream
from api.runs.reader import LogEnds, RunReader
from api.runs.streaming import StreamService
from shared.concurrency import SystemClock, background
from shared.domain.events import Ended, ReasoningChunk, StatusChanged, encode
from shared.domain.ids import Seq
from shared.domain.limits import Limits, ProjectLimits
from shared.domain.log_writer import LogTail
from shared.redis.event_log import EventFeed, EventLog
from shared.redis.log_servers import OneLogServer
from shared.redis.queue import Quotas
from tests.kit.runs.stored_runs import IDS, Stores, stored_runs
from tests.kit.wait_until import HANGS_S, wait_until

NONE = Seq(0)
STATUSES = FrameOptions(status_events=True)


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


async def test_a_frame_was_made_anew_for_each_reader_of_a_run(stores: Stores, redis: ArqRedis) -> None:
    """Twenty people who watched one run cost twenty times as much. Who comes in the middle sees what the others see."""
    log, feed = EventLog(redis, ttl_s=3600), EventFeed(OneLogServer(redis))
    streams = _streams(stores, redis, log, feed)
    run = await stores.claimed()
    await log.open(run.id, run.fence)
    seen: list[list[bytes]] = []

    async def read(after: int, options: FrameOptions = STATUSES) -> None:
        bodies: list[bytes] = []
        seen.append(bodies)
        async for body in streams.batches(run, Seq(after), FrameStream(run.id, options)):
            bodies.append(body)

    async def write(first: int, *entries: bytes) -> None:
        await log.append(run.id, run.fence, LogTail(Seq(first), entries), needs=NONE)
        await _all_have(seen, first + len(entries) - 1)

    async with asyncio.timeout(HANGS_S), feed.running(), asyncio.TaskGroup() as group:
        for options in (STATUSES, STATUSES, FrameOptions(status_events=False)):
            group.create_task(read(1, options))
        await wait_until(lambda: len(seen) == 3, description="all to have begun")
        await write(2, _said("one"))
        await write(3, _said("two"), _said("three"))
        group.create_task(read(3))
        await wait_until(lambda: len(seen) == 4, description="one more to have begun")
        await _all_have(seen, 4)
        await write(5, _said("four"))
        await write(6, encode(Ended(1)))
    first, second, others, late = seen
    assert len(first) >= 4
    assert all(mine is theirs for mine, theirs in zip(first[:-1], second[:-1], strict=True))
    assert b"".join(first).endswith(b"".join(late))
    assert b"".join(late).startswith(b"id: 4\n")
    assert late[-2] is first[-2], "from where it has caught up it is sent the same"
    assert b"".join(others).count(b'"message_type":"ping"') == 4, "who wants to see something else is not sent this"
    assert not streams.views, "what nobody reads is not kept"


@pytest.mark.parametrize("pings", [True, False])
async def test_a_reader_that_was_shown_nothing_of_what_came_had_no_sign_of_life(
    stores: Stores, redis: ArqRedis, pings: bool
) -> None:
    """A model that thinks aloud, and a reader that wants its answer alone: proxies cut the connection."""
    log, feed = EventLog(redis, ttl_s=3600), EventFeed(OneLogServer(redis))
    streams = replace(_streams(stores, redis, log, feed), keepalive_s=0.2)
    run = await stores.claimed()
    await log.open(run.id, run.fence)
    signs: list[bytes] = []

    async def read(options: FrameOptions) -> None:
        async for body in streams.batches(run, Seq(1), FrameStream(run.id, options)):
            signs.append(body)

    numbers = itertools.count(2)

    async def think() -> bool:
        """Writes one more thought, so the log is never silent for so long that this would be a reason."""
        await log.append(run.id, run.fence, LogTail(Seq(next(numbers)), (_thought("hm"),)), needs=NONE)
        return len(signs) >= 2

    answers = FrameOptions(pings=pings, message_types=frozenset({"assistant_message"}))
    async with feed.running(), background(read(answers), name="a reader"):
        await wait_until(think, description="signs of life", every=0.01)
    sign = b'"message_type":"ping"' if pings else b""  # what is empty is sent as a comment
    assert all(sign in one for one in signs)


async def _all_have(seen: list[list[bytes]], seq: int) -> None:
    end = b"id: %d\n" % seq
    await wait_until(lambda: all(bodies and end in bodies[-1] for bodies in seen), description=f"all to see {seq}")


def _thought(text: str) -> bytes:
    return encode(ReasoningChunk(1, IDS.step(), IDS.message(), text))


def _said(status: str) -> bytes:
    return encode(StatusChanged(1, status))


def _streams(stores: Stores, redis: ArqRedis, log: EventLog, feed: EventFeed) -> StreamService:
    clock = SystemClock()
    return StreamService(
        reader=RunReader(
            runs=stores.runs, events=stores.events, event_log=log, feed=feed, log_ends=LogEnds(stores.runs)
        ),
        clock=clock,
        keepalive_s=60,
        quotas=CallerQuotas(Quotas(redis), ProjectLimits(Limits(), {}), clock, IDS),
        ending=ServerEnd(),
    )
