"""A cancel reaches every worker at once, and none is missed: the flag stays for those who did not listen."""

from typing import Any, cast

import pytest
from arq.connections import ArqRedis

from shared.domain.errors import CancelMode, Unavailable
from shared.domain.ids import RunId
from shared.redis import keys
from shared.redis.connection import Announcements, CancelSignal
from shared.redis.event_log import EventLog
from tests.kit.services.redis_servers import PrivateRedis, RedisService


async def next_of(announcements: Announcements, run_id: RunId) -> CancelMode:
    """The next announcement for this run; other tests may share the server's channels."""
    async for announced in announcements:
        if announced is not None and announced[0] == run_id:
            return announced[1]
    raise AssertionError("announcements never end")


async def next_gap(announcements: Announcements) -> None:
    async for announced in announcements:
        if announced is None:
            return


async def test_every_listener_hears_a_cancel(redis_service: RedisService, run_id: RunId) -> None:
    workers = [CancelSignal(redis_service.client()) for _ in range(2)]
    api = CancelSignal(redis_service.client())
    async with workers[0].listen() as first, workers[1].listen() as second:
        await next_gap(first)
        await next_gap(second)
        await api.announce(run_id, CancelMode.ROLLBACK)
        assert await next_of(first, run_id) is CancelMode.ROLLBACK
        assert await next_of(second, run_id) is CancelMode.ROLLBACK


async def test_the_flag_tells_who_did_not_listen(redis: ArqRedis, run_id: RunId) -> None:
    signal = CancelSignal(redis)
    other = RunId(f"{run_id}-other")
    assert await signal.raised([]) == {}
    assert await signal.raised([run_id, other]) == {}
    await signal.announce(run_id, CancelMode.AFTER_STEP)
    assert await signal.raised([run_id, other]) == {run_id: CancelMode.AFTER_STEP}
    await EventLog(redis, ttl_s=3600).expire(run_id)
    assert await signal.raised([run_id, other]) == {}


async def test_a_flag_goes_away_by_itself(redis: ArqRedis, run_id: RunId) -> None:
    await CancelSignal(redis).announce(run_id, CancelMode.INTERRUPT)
    assert 0 < cast("int", await cast("Any", redis).ttl(keys.cancel_flag(run_id))) <= keys.CANCEL_FLAG_TTL_S


async def test_a_listener_is_told_when_it_may_have_missed_some(private_redis: PrivateRedis, run_id: RunId) -> None:
    signal = CancelSignal(private_redis.client())
    async with signal.listen() as announcements:
        await next_gap(announcements)
        await private_redis.cut_subscribers()
        await next_gap(announcements)
        await signal.announce(run_id, CancelMode.INTERRUPT)
        assert await next_of(announcements, run_id) is CancelMode.INTERRUPT


async def test_a_listener_outlives_the_server(private_redis: PrivateRedis, run_id: RunId) -> None:
    signal = CancelSignal(private_redis.client())
    async with signal.listen() as announcements:
        await next_gap(announcements)
        await private_redis.kill()
        with pytest.raises(Unavailable):
            await signal.announce(run_id, CancelMode.INTERRUPT)
        await private_redis.start()
        await next_gap(announcements)


async def test_a_flood_becomes_one_look_at_the_flags() -> None:
    announcements = Announcements(max_waiting=3)
    for number in range(5):
        announcements.put((RunId(f"run-{number}"), CancelMode.INTERRUPT))
    assert await anext(announcements) is None
    assert await anext(announcements) == ("run-4", CancelMode.INTERRUPT)
