"""Readers get every number once, wherever it is kept, and cost the database next to nothing while they wait."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from arq.connections import ArqRedis

from api.runs.reader import GATHER_S, LogEnds, RunReader
from shared.domain.events import Gap, RunCreated, StatusChanged, StepRestarted, decode, encode, is_end
from shared.domain.ids import Fence, Seq
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.log_writer import LogTail, first_seq_of
from shared.domain.runs import Run, RunError, RunOptions
from shared.redis.connection import connect
from shared.redis.event_log import EventFeed, EventLog
from shared.redis.log_servers import OneLogServer
from shared.sql.engine import Database
from shared.sql.run_tables import event_blocks
from shared.sql.runs.run_store import RunStore
from shared.sql.runs.steps import BLOCK_ENTRIES
from tests.kit.free_ports import free_port
from tests.kit.runs.stored_runs import IDS, NOW, Stores, approve, call, run_end, stored_runs
from tests.kit.services.databases import statements
from tests.kit.wait_until import HANGS_S

ENTRIES = [encode(StatusChanged(number, "running")) for number in range(20)]
SECOND = first_seq_of(Fence(2))
NONE = Seq(0)


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


@pytest.fixture
def log(redis: ArqRedis) -> EventLog:
    return EventLog(redis, ttl_s=3600)


@pytest.fixture
def reader(stores: Stores, redis: ArqRedis, log: EventLog) -> RunReader:
    return _reader(stores, redis, log)


def _reader(stores: Stores, redis: Any, log: EventLog) -> RunReader:
    return RunReader(
        runs=stores.runs,
        events=stores.events,
        event_log=log,
        feed=EventFeed(OneLogServer(redis)),
        log_ends=LogEnds(stores.runs),
    )


def restarted(follows: int) -> bytes:
    """The first entry of a second owner, which goes on behind a number."""
    return encode(StepRestarted(at=0, attempt=2, follows=Seq(follows)))


async def all_of(reader: RunReader, run: Run, after: int) -> list[tuple[Seq, bytes]]:
    """What a reader sees up to the end of the log."""
    async with asyncio.timeout(HANGS_S):
        return [entry async for batch in reader.follow(run, Seq(after), quiet_s=0.1) for entry in batch]


async def pruned(stores: Stores, run: Run) -> Run:
    """The run after retention has taken its log."""
    assert (await stores.retention.prune(NOW + timedelta(days=90), NOW))["runs"] == 1
    async with stores.database.read() as connection:
        assert (await connection.execute(sa.select(event_blocks.c.first_seq))).all() == []
    return await stores.runs.look_up(run.id)


async def seen_up_to(reader: RunReader, run: Run, after: int, last: int) -> list[Seq]:
    """The numbers that a reader of a running run sees up to this one, without a moment of silence in between."""
    seen: list[Seq] = []
    async with aclosing(reader.follow(run, Seq(after), quiet_s=5)) as batches:
        async for batch in batches:
            assert batch, "the reader hears nothing more"
            seen += [seq for seq, _ in batch]
            if seen[-1] >= last:
                return seen
    raise AssertionError(f"the log ended before {last}: {seen}")


async def two_owners(
    stores: Stores, log: EventLog, *, stored: int, shown: int, follows: int
) -> tuple[Run, list[bytes]]:
    """A run whose first owner stored some entries and showed fewer; the second one has shown all of its own."""
    run = await stores.claimed()
    await log.open(run.id, run.fence)
    await log.append(run.id, run.fence, LogTail(Seq(2), ENTRIES[:shown]), needs=NONE)
    await stores.checkpoints.hand_over(run, LogTail(Seq(2), ENTRIES[:stored]), NOW)
    run = await stores.claim(run)
    mine = [restarted(follows), *ENTRIES[10:12]]
    await log.open(run.id, run.fence)
    await log.append(run.id, run.fence, LogTail(SECOND, mine), needs=NONE)
    return run, mine


@pytest.mark.parametrize("after", [0, 1, 2, 3, 5, 6, SECOND, SECOND + 1])
async def test_a_hole_in_the_middle_of_a_page_is_filled_from_sql(
    stores: Stores, reader: RunReader, log: EventLog, after: int
) -> None:
    """A worker stored its last events while Redis took no writes; readers were sent on without them."""
    run, mine = await two_owners(stores, log, stored=5, shown=2, follows=6)

    live = await seen_up_to(reader, run, after, SECOND + 2)
    settled = await stores.settle(run, tail=LogTail(SECOND, mine))
    kept = await all_of(reader, settled.run, after)

    numbers = [*range(1, 7), *range(SECOND, settled.run.last_seq + 1)]
    assert [seq for seq, _ in kept] == [number for number in numbers if number > after]
    assert live == [number for number in numbers if after < number <= SECOND + 2]


async def test_what_a_running_run_has_now_ended_with_what_sql_had(
    stores: Stores, reader: RunReader, log: EventLog
) -> None:
    """So a response in progress was shown as of its last stored step."""
    run, _ = await two_owners(stores, log, stored=5, shown=2, follows=6)
    run = await stores.runs.look_up(run.id)
    async with asyncio.timeout(HANGS_S):
        present = [seq async for batch in reader.present(run) for seq, _ in batch]
    assert present == [*range(1, 7), *range(SECOND, SECOND + 3)]


async def test_a_reader_is_not_stuck_behind_a_hole_that_sql_has_filled(
    stores: Stores, reader: RunReader, log: EventLog
) -> None:
    """What Redis had behind the hole was thrown away and never asked for again, until the next event came."""
    run = await stores.claimed()
    await log.open(run.id, run.fence)
    await log.append(run.id, run.fence, LogTail(Seq(2), ENTRIES[:2]), needs=NONE)
    await stores.checkpoints.record_events(run, LogTail(Seq(2), ENTRIES[:4]), NOW)
    await log.append(run.id, run.fence, LogTail(Seq(6), ENTRIES[4:6]), needs=NONE)

    assert await seen_up_to(reader, run, after=1, last=7) == [2, 3, 4, 5, 6, 7]


async def test_what_an_owner_showed_and_its_successor_did_not_find_is_void(
    stores: Stores, reader: RunReader, log: EventLog
) -> None:
    """The number that the new owner follows is before what a reader has seen: the log goes on for it as well."""
    run, _ = await two_owners(stores, log, stored=2, shown=4, follows=3)
    assert await seen_up_to(reader, run, after=5, last=SECOND + 2) == [SECOND, SECOND + 1, SECOND + 2]


async def test_what_nobody_has_any_more_is_said_to_be_gone(stores: Stores, reader: RunReader, log: EventLog) -> None:
    run, mine = await two_owners(stores, log, stored=0, shown=2, follows=6)

    assert await seen_up_to(reader, run, after=3, last=SECOND + 2) == [SECOND - 1, *range(SECOND, SECOND + 3)]
    settled = await stores.settle(run, tail=LogTail(SECOND, mine))
    kept = await all_of(reader, settled.run, after=3)
    assert (kept[0][0], decode(kept[0][1])) == (SECOND - 1, Gap(0, first_missing=Seq(4)))
    assert [seq for seq, _ in kept[1:]] == [*range(SECOND, settled.run.last_seq + 1)]


async def test_a_run_that_has_ended_is_read_from_sql_alone(stores: Stores) -> None:
    """Redis need not be there, and what it still has does not count."""
    run = await stores.claimed()
    settled = (await stores.settle(run, tail=LogTail(Seq(2), ENTRIES[:3]))).run
    nowhere = connect(f"redis://127.0.0.1:{free_port()}/0")
    try:
        reader = _reader(stores, nowhere, EventLog(nowhere, ttl_s=3600))
        for after in range(settled.last_seq + 3):
            kept = await all_of(reader, settled, after)
            assert [seq for seq, _ in kept] == list(range(after + 1, settled.last_seq + 1))
            assert [entry for seq, entry in kept if 2 <= seq < 5] == ENTRIES[max(0, after - 1) : 3]
    finally:
        await nowhere.aclose(close_connection_pool=True)


@pytest.mark.parametrize("trigger", [RunTrigger.COMPLETE, RunTrigger.FAIL, RunTrigger.CANCEL])
async def test_the_end_of_a_log_that_was_pruned_is_made_anew(
    stores: Stores, reader: RunReader, trigger: RunTrigger
) -> None:
    """Every cursor still gets to the end that the run had, with its own numbers; what is gone is said."""
    error = RunError("llm_error", "It failed.", "boom") if trigger is RunTrigger.FAIL else None
    run = await stores.claimed()
    end = run_end(trigger, error=error)
    ended = (await stores.settle(run, trigger, end=end, tail=LogTail(Seq(2), ENTRIES[:9]))).run
    whole = await all_of(reader, ended, after=0)
    ended = await pruned(stores, ended)

    left = whole[10:]
    assert len(left) == (4 if error else 3)
    kept = await all_of(reader, ended, after=0)
    assert kept[0] == (1, encode(RunCreated(at=int(NOW.timestamp() * 1000))))
    assert (kept[1][0], decode(kept[1][1])) == (10, Gap(decode(left[0][1]).at, first_missing=Seq(2)))
    assert kept[2:] == left
    for after in range(10, ended.last_seq + 2):
        assert await all_of(reader, ended, after) == [entry for entry in left if entry[0] > after]


async def test_the_end_of_a_decided_runs_log_is_made_anew_as_it_was(stores: Stores, reader: RunReader) -> None:
    """Its stream had ended when it was parked; the run has completed since."""
    options = RunOptions(status_events=True)
    parked = await stores.parked(call("a", needs_approval=True), options=options)
    await stores.decide(approve("a"))
    run = await stores.runs.look_up(parked.id)
    whole = await all_of(reader, run, after=1)
    assert decode(whole[-4][1]) == StatusChanged(int(NOW.timestamp() * 1000), RunStatus.AWAITING_APPROVAL)
    assert await all_of(reader, await pruned(stores, run), after=1) == whole


async def test_a_log_of_two_owners_that_was_pruned_ends_with_its_own_numbers(
    stores: Stores, reader: RunReader, log: EventLog
) -> None:
    run, mine = await two_owners(stores, log, stored=5, shown=5, follows=6)
    ended = (await stores.settle(run, tail=LogTail(SECOND, mine))).run
    whole = await all_of(reader, ended, after=0)
    ended = await pruned(stores, ended)
    for after in range(1, 7):
        (gap_seq, gap), *left = await all_of(reader, ended, after)
        assert (gap_seq, decode(gap)) == (left[0][0] - 1, Gap(decode(left[0][1]).at, first_missing=Seq(after + 1)))
        assert left == whole[-3:]


async def test_a_reader_in_the_middle_of_a_log_that_is_pruned_is_told_and_gets_the_end(
    stores: Stores, reader: RunReader
) -> None:
    run = await stores.claimed()
    ended = (await stores.settle(run, tail=LogTail(Seq(2), ENTRIES * (2 * BLOCK_ENTRIES // len(ENTRIES))))).run
    async with asyncio.timeout(HANGS_S), aclosing(reader.follow(ended, Seq(1), quiet_s=60)) as batches:
        seen = await anext(batches)
        assert len(seen) == BLOCK_ENTRIES
        await pruned(stores, ended)
        rest = [entry async for batch in batches for entry in batch]
    assert [seq for seq, _ in rest] == [*range(ended.last_seq - 3, ended.last_seq + 1)]
    assert decode(rest[0][1]) == Gap(decode(rest[1][1]).at, first_missing=Seq(seen[-1][0] + 1))
    assert is_end(rest[-1][1])


async def test_an_end_that_was_published_while_nobody_heard_it_is_found(stores: Stores, reader: RunReader) -> None:
    run = await stores.claimed()
    async with (
        asyncio.timeout(HANGS_S),
        reader.log_ends.watching(),
        aclosing(reader.follow(run, Seq(1), quiet_s=0.05)) as batches,
    ):
        assert await anext(batches) == []
        settled = (await stores.settle(run, tail=LogTail(Seq(2), ENTRIES[:2]))).run
        seen = [seq async for batch in batches for seq, _ in batch]
    assert seen == list(range(2, settled.last_seq + 1))


async def test_silent_readers_were_woken_every_few_seconds_to_ask(
    stores: Stores, redis: ArqRedis, log: EventLog
) -> None:
    """A timer, a task and a lock for each of them, again and again. Now one question is asked for all, and who is not
    concerned sleeps."""
    running, ending = await stores.claimed(), await stores.claimed(thread_id=IDS.conversation())
    feed, log_ends = EventFeed(OneLogServer(redis)), LogEnds(stores.runs, doubt_s=1.0)
    async with (
        asyncio.timeout(HANGS_S),
        feed.subscribe(running.id) as sleeping,
        feed.subscribe(ending.id) as waking,
        asyncio.TaskGroup() as group,
    ):
        with log_ends.watch(sleeping, Seq(1)) as of_sleeping, log_ends.watch(waking, Seq(1)) as of_waking:
            for subscription in (sleeping, waking):
                assert await subscription.read(log, Seq(1)) == []
            asleep = group.create_task(sleeping.wait(60), name="reader of a run that goes on")
            await stores.settle(ending)
            with statements() as asked:
                async with log_ends.watching():
                    assert await waking.wait(60), "an end was found"
            assert len([statement for statement in asked if "FROM runs" in statement]) == 1
            assert (of_sleeping.is_over, of_waking.is_over) == (False, True)
            assert sleeping.is_waiting
            asleep.cancel()


async def test_the_stream_of_a_run_that_is_deleted_ends(stores: Stores, reader: RunReader) -> None:
    run = await stores.claimed()
    async with (
        asyncio.timeout(HANGS_S),
        reader.log_ends.watching(),
        aclosing(reader.follow(run, Seq(1), quiet_s=0.05)) as batches,
    ):
        assert await anext(batches) == []
        await stores.settle(run)
        await stores.listing.delete(run.project_id, run.id)
        assert [batch async for batch in batches if batch] == []


async def _ends(log_ends: LogEnds, runs: Sequence[Run]) -> list[bool]:
    found = await asyncio.gather(*(log_ends.of(run.id) for run in runs))
    return [end is not None and end.is_over for end in found]


async def test_thousands_of_idle_readers_do_not_starve_the_database_pool(stores: Stores) -> None:
    """Each of them asked by itself, all in step: others waited for a connection and were answered 503."""
    running, ended = await stores.claimed(), await stores.ended(thread_id=IDS.conversation())
    log_ends = LogEnds(stores.runs)

    with statements() as asked:
        assert await _ends(log_ends, [running, ended] * 1_000) == [False, True] * 1_000
    assert len([statement for statement in asked if "FROM runs" in statement]) == 1
    # The next question is a new one.
    settled = (await stores.settle(running)).run
    assert await _ends(log_ends, [settled]) == [True]


async def test_readers_are_answered_when_the_one_that_asked_for_them_leaves(stores: Stores) -> None:
    run = await stores.claimed()
    log_ends = LogEnds(stores.runs)

    async def leave() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(GATHER_S / 5):
                await log_ends.of(run.id)

    async with asyncio.TaskGroup() as group:
        group.create_task(leave())
        staying = [group.create_task(log_ends.of(run.id)) for _ in range(3)]
    ends = [task.result() for task in staying]
    assert [end is not None and not end.is_over for end in ends] == [True] * 3


async def test_readers_wait_when_the_database_does_not_say(stores: Stores) -> None:
    away = Database(f"postgresql://127.0.0.1:{free_port()}/nothing")
    try:
        assert await LogEnds(RunStore(away)).of(IDS.run()) is None
    finally:
        await away.aclose()
    end = await LogEnds(stores.runs).of(IDS.run())
    assert end is not None
    assert end.is_over, "a run that is gone has ended"
