"""Logs on a Redis Cluster: each run's on the node that has its slot, also after slots have moved."""

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from arq.connections import ArqRedis

from shared.domain.errors import CancelMode, InvalidRequest, Unavailable
from shared.domain.ids import Fence, RunId, Seq
from shared.domain.log_writer import LogTail
from shared.redis import keys
from shared.redis.connection import CancelSignal
from shared.redis.event_log import EventFeed, EventLog
from shared.redis.log_servers import LogServers, log_servers
from tests.kit.services.redis_cluster import NODES, PrivateCluster
from tests.kit.services.tcp_proxy import TcpProxy
from tests.kit.wait_until import wait_until

FENCE = Fence(1)
RUNS = [RunId(f"run-{number}") for number in range(12)]
"""Enough that each node has some."""


@pytest.fixture
async def servers(redis_cluster: PrivateCluster, redis: ArqRedis) -> AsyncIterator[LogServers]:
    async with log_servers(redis_cluster.url, redis) as servers:
        yield servers
    await redis_cluster.empty()


async def append(log: EventLog, run_id: RunId, number: int) -> None:
    """Appends one entry, again and again while the node is not known."""

    async def is_appended() -> bool:
        try:
            await log.append(run_id, FENCE, LogTail(Seq(number), [b'{"seq":%d}' % number]), needs=Seq(0))
        except Unavailable:
            return False
        return True

    await wait_until(is_appended, description=f"entry {number} to be appended")


async def test_each_node_has_the_logs_of_its_slots_and_nothing_else(
    redis_cluster: PrivateCluster, servers: LogServers, redis: ArqRedis
) -> None:
    async with servers.appending() as appends:
        log = EventLog(redis, ttl_s=3600, servers=servers, appends=appends)
        for run_id in RUNS:
            await log.open(run_id, FENCE)
            await append(log, run_id, 2)
    ports = {run_id: await redis_cluster.port_of(keys.events(run_id)) for run_id in RUNS}
    assert len(set(ports.values())) == NODES
    for run_id in RUNS:
        server = cast("Any", servers.server_of(keys.events(run_id)))
        assert server.connection_pool.connection_kwargs["port"] == ports[run_id]
        assert await server.exists(keys.events(run_id), keys.fence(run_id)) == 2
    assert await cast("Any", redis).dbsize() == 0


@pytest.mark.parametrize("kind", ["by itself", "with others"])
async def test_a_log_goes_on_when_its_slot_has_moved(
    redis_cluster: PrivateCluster, servers: LogServers, redis: ArqRedis, run_id: RunId, kind: str
) -> None:
    """Its owner is refused once, looks where the slot is now, and goes on there; so do readers."""
    feed = EventFeed(servers)
    async with servers.appending() as appends, feed.running(), feed.subscribe(run_id) as subscription:
        log = EventLog(redis, ttl_s=3600, servers=servers, appends=appends if kind == "with others" else None)
        await log.open(run_id, FENCE)
        await append(log, run_id, 2)
        seen: list[int] = []
        for number in (3, 4, 5):
            await redis_cluster.move_slot_of(keys.events(run_id))
            await append(log, run_id, number)
            while not seen or seen[-1] < number:
                try:
                    entries = await subscription.read(log, Seq(seen[-1] if seen else 1))
                except Unavailable:
                    entries = []
                seen += [seq for seq, _ in entries]
                if not entries:
                    await subscription.wait(0.1)
        assert seen == [2, 3, 4, 5]


async def test_live_events_are_heard_at_the_slots_new_node(
    redis_cluster: PrivateCluster, servers: LogServers, redis: ArqRedis, run_id: RunId
) -> None:
    """Not only read when a reader looks for the end of a silent log."""
    log, feed = EventLog(redis, ttl_s=3600, servers=servers), EventFeed(servers)
    await log.open(run_id, FENCE)
    async with feed.running(), feed.subscribe(run_id) as subscription:

        async def is_live() -> bool:
            try:
                await subscription.read(log, Seq(2))
            except Unavailable:
                return False
            return not subscription.behind and not await subscription.wait(0.05)

        await wait_until(is_live, description="the subscription to be live")
        await redis_cluster.move_slot_of(keys.events(run_id))
        await wait_until(lambda: subscription.behind, description="the reader to be told of the move")
        await append(log, run_id, 2)
        await wait_until(is_live, description="the subscription to be live again")
        await append(log, run_id, 3)
        assert await subscription.wait(10)
        assert not subscription.behind
        assert await subscription.read(log, Seq(2)) == [(Seq(3), b'{"seq":3}')]


async def test_a_process_starts_although_no_node_answers(redis: ArqRedis, run_id: RunId) -> None:
    async with log_servers("redis+cluster://127.0.0.1:1", redis) as servers, servers.appending() as appends:
        assert not await servers.are_reachable()
        log = EventLog(redis, ttl_s=3600, servers=servers, appends=appends)
        with pytest.raises(Unavailable):
            await log.open(run_id, FENCE)
        with pytest.raises(Unavailable):
            await log.append(run_id, FENCE, LogTail(Seq(2), [b"{}"]), needs=Seq(0))


async def test_a_cluster_that_answers_late_is_found(
    redis_cluster: PrivateCluster, redis: ArqRedis, run_id: RunId
) -> None:
    async with TcpProxy(redis_cluster.ports[0]).serving() as gate:
        gate.refuse()
        async with log_servers(f"redis+cluster://127.0.0.1:{gate.port}", redis) as servers:
            log = EventLog(redis, ttl_s=3600, servers=servers)
            with pytest.raises(Unavailable):
                await log.open(run_id, FENCE)
            await gate.accept()
            await wait_until(servers.are_reachable, description="the cluster to be found")
            assert await log.open(run_id, FENCE) == 0


async def test_a_run_that_has_ended_leaves_no_cancel_flag_on_the_other_redis(
    servers: LogServers, redis: ArqRedis, run_id: RunId
) -> None:
    log, signal = EventLog(redis, ttl_s=3600, servers=servers), CancelSignal(redis)
    await log.open(run_id, FENCE)
    await signal.announce(run_id, CancelMode.INTERRUPT)
    await log.expire(run_id)
    assert await signal.raised([run_id]) == {}


@pytest.mark.parametrize(
    "url",
    ["redis+cluster://", "redis+cluster://:password@", "redis+cluster://host:port", "redis+cluster://a:1,:2"],
)
async def test_what_is_no_address_of_a_cluster_is_refused_with_an_example(url: str, redis: ArqRedis) -> None:
    with pytest.raises(InvalidRequest, match=r"HOLDFAST_EVENT_LOG_URL.*redis\+cluster://:password@host:6379,host:6379"):
        async with log_servers(url, redis):
            pass
