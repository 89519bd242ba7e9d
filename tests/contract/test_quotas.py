"""What callers have used of their limits, counted for all processes at once."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest
from arq.connections import ArqRedis
from structlog.testing import capture_logs

from api.access.callers import Caller
from api.admission import AWAY_S, STAY_AT_ONCE, CallerQuotas
from shared.domain.api_keys import EVERYTHING
from shared.domain.ids import IdMaker, ProjectId
from shared.domain.limits import LimitReached, Limits, ProjectLimits, parse_own_limits
from shared.redis import keys
from shared.redis.connection import connect
from shared.redis.embedded import connect_embedded
from shared.redis.queue import Bucket, Empty, Group, Quotas
from tests.kit.clocks import FrozenClock, embedded_redis_follows

ACME = ProjectId("acme")


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
async def frozen(clock: FrozenClock) -> AsyncGenerator[ArqRedis]:
    """An embedded Redis whose time is the test's."""
    with embedded_redis_follows(clock):
        yield connect_embedded()


def caller(key_id: str, project_id: ProjectId = ACME) -> Caller:
    return Caller(project_id, key_id, EVERYTHING)


def quotas_of(redis: ArqRedis, clock: FrozenClock, own: str = "", **limits: Any) -> CallerQuotas:
    return CallerQuotas(Quotas(redis), ProjectLimits(Limits(**limits), parse_own_limits(own)), clock, IdMaker())


async def test_a_bucket_gives_its_burst_and_then_its_rate(frozen: ArqRedis, clock: FrozenClock) -> None:
    quotas, bucket = Quotas(frozen), Bucket("a", per_s=4, burst=8)
    assert [await quotas.take([bucket]) for _ in range(9)] == [*[None] * 8, Empty(0, 0.25)]
    clock.advance(500)
    assert [await quotas.take([bucket]) for _ in range(3)] == [None, None, Empty(0, 0.25)]
    clock.advance(3_600_000)
    assert [await quotas.take([bucket]) for _ in range(9)][-2:] == [None, Empty(0, 0.25)], "no more than the burst"


async def test_a_request_that_one_bucket_refuses_is_taken_out_of_none(redis: ArqRedis) -> None:
    quotas = Quotas(redis)
    wide, narrow = Bucket("wide", per_s=0.001, burst=2), Bucket("narrow", per_s=0.001, burst=1)
    assert await quotas.take([wide, narrow]) is None
    refused = await quotas.take([wide, narrow])
    assert refused is not None
    assert refused.position == 1
    assert await quotas.take([wide]) is None
    assert await quotas.take([wide]) is not None


async def test_all_processes_take_from_one_bucket(redis: ArqRedis) -> None:
    processes = [Quotas(redis) for _ in range(4)]
    bucket = Bucket("a", per_s=0.001, burst=10)
    answers = await asyncio.gather(*[process.take([bucket]) for process in processes for _ in range(10)])
    assert answers.count(None) == 10


async def test_a_clock_that_was_set_back_shuts_nobody_out(redis: ArqRedis) -> None:
    quotas, bucket = Quotas(redis), Bucket("a", per_s=10, burst=10)
    await cast("Any", redis).set(keys.bucket("a"), 2**52)
    refused = await quotas.take([bucket])
    assert refused is not None
    assert refused.wait_s <= 0.1


async def test_a_refusal_names_limit_setting_number_and_time(frozen: ArqRedis, clock: FrozenClock) -> None:
    quotas = quotas_of(frozen, clock, requests_per_s=0.5)
    await quotas.take_request(caller("key"), "any")
    with pytest.raises(LimitReached) as refused:
        await quotas.take_request(caller("key"), "any")
    assert refused.value.retry_after_s == 2
    assert str(refused.value) == (
        "The project 'acme' sends more than 0.5 requests per second (HOLDFAST_REQUESTS_PER_S). Come again in 2 s."
    )
    await quotas.take_request(caller("key", ProjectId("other")), "any")
    clock.advance(2000)
    await quotas.take_request(caller("key"), "any")


async def test_a_key_is_held_to_its_own_limit_beside_its_project(frozen: ArqRedis, clock: FrozenClock) -> None:
    quotas = quotas_of(frozen, clock, key_requests_per_s=0.5)
    await quotas.take_request(caller("one"), "any")
    with pytest.raises(LimitReached, match=r"This key .* \(HOLDFAST_KEY_REQUESTS_PER_S\)"):
        await quotas.take_request(caller("one"), "any")
    await quotas.take_request(caller("two"), "any")


async def test_a_busy_caller_is_asked_about_once_for_several_requests_and_gets_his_limit(
    frozen: ArqRedis, clock: FrozenClock
) -> None:
    """Each request was a question to Redis of its own."""
    quotas = quotas_of(frozen, clock, key_requests_per_s=1000)
    taken: list[float] = []
    with pytest.raises(LimitReached):
        while True:
            await quotas.take_request(caller("key"), "any")
            taken.append(float(await cast("Any", frozen).get(keys.bucket("any:key:acme:key"))))
    assert len(taken) == 2000, "what two seconds allow may come at once"
    assert len(set(taken)) == 1 + 1999 // 4 + 1999 % 4, "by fours; the first one and the last ones are alone"
    with pytest.raises(LimitReached):
        await quotas.take_request(caller("key"), "any")
    clock.advance(2)
    await quotas.take_request(caller("key"), "any")
    await quotas.take_request(caller("key"), "any")


async def test_callers_that_ask_now_and_then_take_nothing_ahead_from_their_project(
    frozen: ArqRedis, clock: FrozenClock
) -> None:
    quotas = quotas_of(frozen, clock, requests_per_s=1000)
    for _ in range(5):
        for number in range(200):
            await quotas.take_request(caller(f"key-{number}"), "any")
        clock.advance(200)
    assert await Quotas(frozen).take([Bucket("any:project:acme", per_s=1000, burst=2000)], 2000) is None


async def test_requests_that_come_together_take_one_handful(frozen: ArqRedis, clock: FrozenClock) -> None:
    quotas, bucket = quotas_of(frozen, clock, key_requests_per_s=1000), Bucket("any:key:acme:key", 1000, 2000)
    await quotas.take_request(caller("key"), "any")
    await asyncio.gather(*(quotas.take_request(caller("key"), "any") for _ in range(10)))
    assert await Quotas(frozen).take([bucket], 2000 - 11 - 3 + 1) == Empty(0, 0.001)
    assert await Quotas(frozen).take([bucket], 2000 - 11 - 3) is None


async def test_a_project_may_have_limits_of_its_own(frozen: ArqRedis, clock: FrozenClock) -> None:
    quotas = quotas_of(frozen, clock, '{"acme": {"requests_per_s": 0}}', requests_per_s=0.5)
    for _ in range(5):
        await quotas.take_request(caller("key"), "any")


@pytest.mark.parametrize(
    "text", ["[]", '{"a": {"reader": 1}}', '{"a": {"readers": -1}}', '{"a": {"readers": "x"}}', "{"]
)
def test_limits_that_make_no_sense_are_refused_at_the_start(text: str) -> None:
    with pytest.raises(ValueError, match="readers"):
        parse_own_limits(text)


async def test_open_streams_are_counted_and_forgotten(frozen: ArqRedis, clock: FrozenClock) -> None:
    quotas = quotas_of(frozen, clock, readers=2, key_readers=1)
    async with quotas.reading(ACME, "one"):
        with pytest.raises(LimitReached, match=r"1 streams open .HOLDFAST_KEY_READERS"):
            async with quotas.reading(ACME, "one"):
                pass
        async with quotas.reading(ACME, None):
            with pytest.raises(LimitReached, match=r"2 streams open .HOLDFAST_READERS"):
                async with quotas.reading(ACME, "two"):
                    pass
    async with quotas.reading(ACME, "one"):
        pass
    assert await cast("Any", frozen).keys("*") == []


async def test_readers_of_a_process_that_died_count_for_a_minute(frozen: ArqRedis, clock: FrozenClock) -> None:
    quotas, group = Quotas(frozen), Group("a", 1)
    assert await quotas.enter("dead", [group]) is None
    assert await quotas.enter("next", [group]) == 0
    await quotas.stay("a", ["dead"])
    clock.advance(59_000)
    assert await quotas.enter("next", [group]) == 0
    clock.advance(2000)
    assert await quotas.enter("next", [group]) is None


async def test_as_many_readers_as_are_renewed_at_once_go_into_one_command(redis: ArqRedis) -> None:
    """Ten thousand idle readers were a thousand commands per second, when each was renewed by one of its own."""
    readers = [f"reader-{number}" for number in range(STAY_AT_ONCE)]
    await Quotas(redis).stay("a", readers)
    assert await cast("Any", redis).zcard(keys.readers("a")) == STAY_AT_ONCE


async def test_while_redis_is_away_everybody_is_let_through_and_it_is_said_once(clock: FrozenClock) -> None:
    redis = connect("redis://127.0.0.1:1/0")
    quotas = quotas_of(redis, clock, requests_per_s=0.001, readers=1)
    with capture_logs() as logged:
        for _ in range(3):
            await quotas.take_request(caller("key"), "any")
        clock.advance(round(AWAY_S * 1000) + 1)
        async with quotas.reading(ACME, "key"), quotas.reading(ACME, "key"):
            pass
    assert [entry["event"] for entry in logged] == ["limits_not_held"]
    await redis.aclose(close_connection_pool=True)
