"""Dashboards that join while the database is away: they get signs of life, and the present state when it is back."""

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import closing

import pytest
from arq.connections import ArqRedis
from structlog.testing import capture_logs

from api.admission import CallerQuotas
from api.event_stream import ServerEnd
from api.letta.conversation_events import RunChangeFrames
from api.runs.reader import LogEnds, RunReader
from api.runs.run_changes import RunChanges
from api.runs.streaming import StreamService
from shared.concurrency import SystemClock
from shared.domain.limits import Limits, ProjectLimits
from shared.domain.threads import RunScope
from shared.redis.event_log import EventFeed, EventLog
from shared.redis.log_servers import OneLogServer
from shared.redis.queue import Quotas
from shared.sql.runs.turns import RunChangeStore
from tests.kit.runs.definitions import PROJECT
from tests.kit.runs.stored_runs import IDS, Stores, stored_runs
from tests.kit.wait_until import wait_until


@pytest.fixture
async def stores(sqlite_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(sqlite_url) as stores:
        yield stores


def changes_of(stores: Stores, redis: ArqRedis, feed: EventFeed) -> RunChanges:
    log, clock = EventLog(redis, ttl_s=3600), SystemClock()
    ends = LogEnds(stores.runs, doubt_s=1)
    streaming = StreamService(
        reader=RunReader(runs=stores.runs, events=stores.events, event_log=log, feed=feed, log_ends=ends),
        clock=clock,
        keepalive_s=0.05,
        quotas=CallerQuotas(Quotas(redis), ProjectLimits(Limits(), {}), clock, IDS),
        ending=ServerEnd(),
    )
    return RunChanges(RunChangeStore(stores.database), feed, streaming)


def rename(stores: Stores, table: str, name: str) -> None:
    with closing(sqlite3.connect(str(stores.database.url.database), isolation_level=None)) as operator:
        operator.execute(f"ALTER TABLE {table} RENAME TO {name}")


@pytest.mark.parametrize("away", ["runs", "approvals"])
async def test_a_dashboard_got_no_sign_of_life_before_the_first_look_or_waited_for_ever(
    stores: Stores, redis: ArqRedis, away: str
) -> None:
    """The second happened if the first query of the look was answered and the second was not."""
    run, feed = await stores.claimed(), EventFeed(OneLogServer(redis))
    changes = changes_of(stores, redis, feed)
    frames = changes.batches(RunScope(PROJECT), RunChangeFrames(SystemClock()), follow=False)
    with capture_logs() as logged:
        rename(stores, away, "gone")
        async with changes.watching():
            assert await anext(frames) == b""
            await wait_until(lambda: logged, description="the first look to fail")
            rename(stores, "gone", away)
            async with feed.running():  # a connection to the log's server leads to a look at once
                shown = [body async for body in frames if body]
    assert run.id.encode() in shown[0]
    assert shown[-1].endswith(b"data: [DONE]\n\n")
