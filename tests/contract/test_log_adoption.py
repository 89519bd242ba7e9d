"""Whoever takes a log over stores what was shown, and never gives a number again, whatever Redis has forgotten."""

from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest
from arq.connections import ArqRedis

from shared.concurrency import SystemClock
from shared.domain.errors import LeaseLost, StaleFence
from shared.domain.events import LogContinued, StatusChanged, StepRestarted, decode, encode
from shared.domain.ids import Fence, Seq
from shared.domain.log_writer import NUMBERS_PER_FENCE, Entries, LogTail, LogWriter, first_seq_of
from shared.domain.runs import Run
from shared.redis import keys
from shared.redis.event_log import EventLog, adopt_log
from tests.kit.runs.stored_runs import NOW, Stores, stored_runs
from tests.kit.runs.unobserved import unobserved
from worker.run.interruption import Interruption
from worker.run.publisher import Publisher

ENTRIES = [encode(StatusChanged(number, "running")) for number in range(20)]
SECOND = Seq(NUMBERS_PER_FENCE + 1)
"""The first number of a run's second owner."""


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


@pytest.fixture
def log(redis: ArqRedis) -> EventLog:
    return EventLog(redis, ttl_s=3600)


async def show(log: EventLog, run: Run, first: int, entries: list[bytes]) -> None:
    """What an owner does that dies before it stores anything."""
    await log.append(run.id, run.fence, LogTail(Seq(first), entries), needs=Seq(0))


async def shown(stores: Stores, log: EventLog, count: int) -> Run:
    """A run whose owner has shown so many events that SQL does not have, and is gone; it was claimed anew."""
    run = await stores.claimed()
    await log.open(run.id, run.fence)
    await show(log, run, 2, ENTRIES[:count])
    return await stores.claim(run)


async def forget(redis: ArqRedis, run: Run) -> None:
    await cast("Any", redis).delete(keys.events(run.id), keys.fence(run.id))


async def stored(stores: Stores, run: Run) -> Entries:
    return await stores.events.read(run.id, Seq(1))


def opening(follows: int) -> bytes:
    """What an owner after the first one says first."""
    return encode(LogContinued(0, Seq(follows)))


async def test_what_redis_has_and_sql_lacks_is_stored(stores: Stores, log: EventLog) -> None:
    run = await shown(stores, log, 3)
    assert (await adopt_log(run, log, stores.checkpoints.adopt, NOW)).follows == 4
    assert await stored(stores, run) == [(Seq(2 + number), ENTRIES[number]) for number in range(3)]
    assert (await stores.runs.look_up(run.id)).last_seq == 4


async def test_nothing_is_stored_where_nothing_was_shown(stores: Stores, log: EventLog) -> None:
    run = await stores.claimed()
    assert (await adopt_log(run, log, stores.checkpoints.adopt, NOW)).follows == 1
    assert await stored(stores, run) == []


async def test_an_adoption_whose_answer_was_lost_is_recognised_when_repeated(stores: Stores, log: EventLog) -> None:
    run = await shown(stores, log, 3)
    for _ in range(3):
        assert (await adopt_log(run, log, stores.checkpoints.adopt, NOW)).follows == 4
    assert len(await stored(stores, run)) == 3


async def test_what_redis_has_lost_is_void_and_its_numbers_are_never_given_again(
    stores: Stores, log: EventLog, redis: ArqRedis
) -> None:
    """The next owner gave the numbers that readers had seen to other events."""
    run = await shown(stores, log, 3)
    await forget(redis, run)
    assert (await adopt_log(run, log, stores.checkpoints.adopt, NOW)).follows == 1
    assert first_seq_of(run.fence) == SECOND


async def test_an_owner_that_dies_before_it_shows_anything_leaves_the_log_as_it_was(
    stores: Stores, log: EventLog, redis: ArqRedis
) -> None:
    """Its opening made Redis remember an owner, and the next one took the log for whole."""
    run = await shown(stores, log, 3)
    await forget(redis, run)
    await adopt_log(run, log, stores.checkpoints.adopt, NOW)
    third = await stores.claim(run)
    assert (await adopt_log(third, log, stores.checkpoints.adopt, NOW)).follows == 1
    assert first_seq_of(third.fence) == 2 * NUMBERS_PER_FENCE + 1


async def test_a_stream_that_was_evicted_with_its_owner_remembered_is_not_taken_for_whole(
    stores: Stores, log: EventLog, redis: ArqRedis
) -> None:
    run = await shown(stores, log, 3)
    await cast("Any", redis).delete(keys.events(run.id))
    assert (await adopt_log(run, log, stores.checkpoints.adopt, NOW)).follows == 1


async def test_what_an_old_owner_appends_late_is_refused(stores: Stores, log: EventLog, redis: ArqRedis) -> None:
    run = await shown(stores, log, 3)
    assert (await adopt_log(run, log, stores.checkpoints.adopt, NOW)).follows == 4
    with pytest.raises(LeaseLost):
        await log.append(run.id, Fence(run.fence - 1), LogTail(Seq(5), ENTRIES[5:6]), needs=Seq(4))
    await forget(redis, run)
    await log.open(run.id, run.fence)
    with pytest.raises(LeaseLost):
        await log.open(run.id, Fence(run.fence - 1))


async def test_what_a_restored_old_owner_wrote_is_followed_but_not_what_came_after_a_hole(
    stores: Stores, log: EventLog, redis: ArqRedis
) -> None:
    """A worker stood still, its successor died together with Redis, and the first one woke up and gave Redis what it
    knew: the numbers of the successor's events were given again. Found by chaos."""
    run = await stores.claimed()
    await log.open(run.id, run.fence)
    await show(log, run, 2, ENTRIES[:2])
    second = await stores.claim(run)
    assert (await adopt_log(second, log, stores.checkpoints.adopt, NOW)).follows == 3
    await show(log, second, SECOND, [opening(3), *ENTRIES[2:5]])
    await forget(redis, run)
    await log.open(run.id, run.fence)
    await show(log, run, 2, ENTRIES[:2])

    third = await stores.claim(run)
    assert (await adopt_log(third, log, stores.checkpoints.adopt, NOW)).follows == 3
    assert [seq for seq, _ in await stored(stores, run)] == [2, 3]
    assert first_seq_of(third.fence) > SECOND + 3


async def test_a_log_with_a_hole_is_stored_up_to_the_hole_and_shown_no_further(
    stores: Stores, log: EventLog, redis: ArqRedis
) -> None:
    run = await shown(stores, log, 6)
    await cast("Any", redis).xdel(keys.events(run.id), "4-0")
    assert (await adopt_log(run, log, stores.checkpoints.adopt, NOW)).follows == 3
    assert [seq for seq, _ in await stored(stores, run)] == [2, 3]
    assert await log.read(run.id, Seq(1)) == [], "what comes after the hole would mislead readers"


async def test_a_replica_that_lacks_the_last_entries_makes_no_number_be_given_twice(
    stores: Stores, log: EventLog, redis: ArqRedis
) -> None:
    """A replica took over that did not have the last entries, and their writer died: what readers had seen of it was
    given to other events. `guarantees.md` admitted it."""
    run = await shown(stores, log, 6)
    seen = await log.read(run.id, Seq(1))
    for seq in (6, 7):
        await cast("Any", redis).xdel(keys.events(run.id), f"{seq}-0")
    assert (await adopt_log(run, log, stores.checkpoints.adopt, NOW)).follows == 5
    await log.append(run.id, run.fence, LogTail(first_seq_of(run.fence), [opening(5), ENTRIES[19]]), needs=Seq(5))
    given = dict(seen)
    for seq, entry in await log.read(run.id, Seq(1)):
        assert given.setdefault(seq, entry) == entry, f"{seq} was given twice"


async def test_a_log_is_not_adopted_by_an_owner_that_was_replaced(stores: Stores, log: EventLog) -> None:
    run = await shown(stores, log, 3)
    newer = await stores.claim(run)
    with pytest.raises(StaleFence):
        await adopt_log(run, log, stores.checkpoints.adopt, NOW)
    assert (await adopt_log(newer, log, stores.checkpoints.adopt, NOW)).follows == 4
    with pytest.raises(LeaseLost):
        await adopt_log(run, log, stores.checkpoints.adopt, NOW)


async def test_what_an_owner_stored_as_its_last_is_adopted_with_the_jump_of_the_next(
    stores: Stores, log: EventLog
) -> None:
    """Entries of two owners that SQL lacks: both are stored, in blocks of their own numbers."""
    run = await shown(stores, log, 3)
    # The second owner follows what it found in Redis, and is lost before the adoption is stored.
    await log.open(run.id, run.fence)
    await show(log, run, SECOND, [opening(4), *ENTRIES[5:7]])
    third = await stores.claim(run)
    assert (await adopt_log(third, log, stores.checkpoints.adopt, NOW)).follows == SECOND + 2
    assert [seq for seq, _ in await stored(stores, run)] == [2, 3, 4, SECOND, SECOND + 1, SECOND + 2]


async def test_an_owner_that_hands_over_before_it_has_said_anything_moves_no_number(
    stores: Stores, log: EventLog
) -> None:
    """The answer to its adoption was lost, and it gave the run back: the log was said to reach to the number before its
    own first one, which no reader ever gets."""
    run = await shown(stores, log, 3)
    assert (await adopt_log(run, log, stores.checkpoints.adopt, NOW)).follows == 4
    await stores.checkpoints.hand_over(run, LogWriter(run.fence).to_store(), NOW)
    assert (await stores.runs.look_up(run.id)).last_seq == 4


async def first_event_of(stores: Stores, log: EventLog, run: Run) -> StepRestarted:
    """What the run's new owner says first."""
    publisher = Publisher(
        run,
        event_log=log,
        events=stores.events,
        checkpoints=stores.checkpoints,
        clock=SystemClock(),
        interruption=Interruption(),
        observation=unobserved(run),
    )
    async with publisher.publishing():
        assert await publisher.hand_over()
    opening = decode((await stored(stores, run))[-1][1])
    assert isinstance(opening, StepRestarted)
    return opening


async def test_events_that_are_lost_with_their_owner_and_redis_are_said_to_be(
    stores: Stores, log: EventLog, redis: ArqRedis
) -> None:
    run = await shown(stores, log, 3)
    await forget(redis, run)
    opening = await first_event_of(stores, log, run)
    assert opening.lost_events


async def test_no_events_are_lost_with_their_owner_alone(stores: Stores, log: EventLog) -> None:
    run = await shown(stores, log, 3)
    opening = await first_event_of(stores, log, run)
    assert not opening.lost_events


async def test_no_events_are_lost_with_redis_where_their_owner_has_stored_them(
    stores: Stores, log: EventLog, redis: ArqRedis
) -> None:
    run = await stores.claimed()
    await log.open(run.id, run.fence)
    await show(log, run, 2, ENTRIES[:3])
    await stores.checkpoints.hand_over(run, LogTail(Seq(2), ENTRIES[:3]), NOW)
    await forget(redis, run)
    run = await stores.claim(run)
    opening = await first_event_of(stores, log, run)
    assert not opening.lost_events
