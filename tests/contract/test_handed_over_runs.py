"""A run that is handed over because a service was away loses nothing of what was shown of it."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import pytest

from api.runs.reader import LogEnds, RunReader
from shared.concurrency import SystemClock
from shared.domain.errors import Unavailable
from shared.domain.events import StatusChanged, StepRestarted, decode, encode
from shared.domain.ids import Seq
from shared.domain.log_writer import Entries, LogTail, continues
from shared.domain.runs import Run
from shared.redis.event_log import EventFeed, EventLog
from shared.redis.log_servers import OneLogServer
from tests.kit.runs.stored_runs import Stores, stored_runs
from tests.kit.runs.unobserved import unobserved
from tests.kit.services.redis_servers import PrivateRedis, read_only
from worker.run.interruption import Interruption
from worker.run.publisher import Publisher

EVENTS = [StatusChanged(number, "running") for number in range(3)]
SHOWN = [encode(event) for event in EVENTS]


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


def publisher_of(run: Run, stores: Stores, event_log: EventLog) -> Publisher:
    return Publisher(
        run,
        event_log=event_log,
        events=stores.events,
        checkpoints=stores.checkpoints,
        clock=SystemClock(),
        interruption=Interruption(),
        observation=unobserved(run),
    )


async def test_a_run_that_was_handed_over_before_its_log_was_adopted_forgot_what_was_shown(
    stores: Stores, private_redis: PrivateRedis
) -> None:
    """Redis took no writes when the second worker came. That worker handed the run over without blame, and SQL then
    believed to have every number before its fence: what Redis had was void, and readers lost a million numbers."""
    event_log = EventLog(private_redis.client(), ttl_s=3600)
    run = await stores.claimed()
    await event_log.open(run.id, run.fence)
    await event_log.append(run.id, run.fence, LogTail(Seq(2), SHOWN), needs=Seq(0))
    second = publisher_of(await stores.claim(run), stores, event_log)
    async with read_only(private_redis):
        with pytest.raises(Unavailable):
            async with second.publishing():
                pass
        assert await second.hand_over()
    known = await stores.runs.look_up(run.id)
    assert (known.last_seq, known.attempts_without_progress) == (1, 0)

    third = publisher_of(await stores.claim(run), stores, event_log)
    async with third.publishing():
        assert third.follows == 1 + len(SHOWN)
        assert await third.hand_over()
    reader = RunReader(
        runs=stores.runs,
        events=stores.events,
        event_log=event_log,
        feed=EventFeed(OneLogServer(private_redis.client())),
        log_ends=LogEnds(stores.runs),
    )
    settled = (await stores.settle(await stores.runs.look_up(run.id))).run
    seen: Entries = [entry async for batch in reader.follow(settled, Seq(1), quiet_s=1) for entry in batch]
    last = Seq(1)
    for seq, entry in seen:
        assert continues(last, seq, entry)
        last = seq
    assert [entry for _, entry in seen[: len(SHOWN)]] == SHOWN
    assert isinstance(decode(seen[len(SHOWN)][1]), StepRestarted)


@pytest.mark.parametrize("adopts", [True, False])
async def test_a_run_that_was_handed_over_in_a_model_call_was_said_to_have_lost_events(
    stores: Stores, private_redis: PrivateRedis, adopts: bool
) -> None:
    """Redis took no writes, so its log ended before that of SQL: the next worker took it for one that had lost events,
    and the numbers of a response jumped. `adopts` is whether the next worker could continue the log."""
    event_log = EventLog(private_redis.client(), ttl_s=3600)
    first = publisher_of(await stores.claimed(), stores, event_log)
    async with AsyncExitStack() as outage:
        async with first.publishing():
            await outage.enter_async_context(read_only(private_redis))
            for event in EVENTS:
                first.emit(event)
            first.observation.run.interrupted_in = "model"
            assert await first.hand_over()
        if not adopts:
            second = publisher_of(await stores.claim(first.run), stores, event_log)
            with pytest.raises(Unavailable):
                async with second.publishing():
                    pass
            assert await second.hand_over()
    last = publisher_of(await stores.claim(first.run), stores, event_log)
    async with last.publishing():
        assert await last.hand_over()
    opening = decode((await stores.events.read(first.run.id, last.follows, None))[0][1])
    assert isinstance(opening, StepRestarted)
    assert (last.follows, opening.lost_call, opening.lost_events) == (1 + len(SHOWN), True, False)
