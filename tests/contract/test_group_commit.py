"""On SQLite, what all runs of a process have to store in one moment is one transaction; each is refused by itself."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import closing
from pathlib import Path

import pytest
from arq.connections import ArqRedis

from shared import crash_points
from shared.concurrency import SystemClock
from shared.crash_points import CrashPoint
from shared.domain.errors import IllegalTransition, StaleFence, Unavailable
from shared.domain.events import StatusChanged, decode
from shared.domain.ids import RunId, Seq
from shared.domain.log_writer import LogTail
from shared.domain.runs import Run
from shared.redis import keys
from shared.redis.connection import ChannelListener
from shared.redis.embedded import connect_embedded
from shared.redis.event_log import EventLog
from shared.sql.engine import Database
from shared.sql.group_commit import COMMITS_PER_CHECKPOINT, GroupCommit
from shared.sql.runs.checkpoints import CheckpointStore
from tests.kit.runs.stored_runs import IDS, NOW, Stores, some_entry, stored_runs
from tests.kit.runs.unobserved import unobserved
from tests.kit.services.databases import statements
from tests.kit.wait_until import after, wait_until
from worker.run.interruption import Interruption
from worker.run.publisher import Publisher

CHECKPOINT = "PRAGMA wal_checkpoint(PASSIVE)"


@pytest.fixture
async def stores(sqlite_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(sqlite_url) as stores:
        yield stores


@pytest.fixture
async def group(stores: Stores) -> AsyncGenerator[GroupCommit]:
    async with GroupCommit(stores.database).running() as group:
        yield group


@pytest.fixture
def checkpoints(stores: Stores, group: GroupCommit) -> CheckpointStore:
    return CheckpointStore(stores.database, group)


async def claimed(stores: Stores, count: int) -> list[Run]:
    return [await stores.claimed(thread_id=f"conv-{number}") for number in range(count)]


def tail(first: int, last: int) -> LogTail:
    return LogTail(Seq(first), [b"entry %d" % number for number in range(first, last + 1)])


async def stored(stores: Stores, run: Run) -> list[Seq]:
    return [seq for seq, _ in await stores.events.read(run.id, Seq(1))]


def another_process(stores: Stores) -> sqlite3.Connection:
    return sqlite3.connect(str(stores.database.url.database), isolation_level=None)


def adds_block(number: int, seen_by_others: Callable[[], int]) -> Callable[[sqlite3.Connection], int]:
    """A write of one row; gives how many rows others see meanwhile."""

    def add(connection: sqlite3.Connection) -> int:
        connection.execute("INSERT INTO event_blocks VALUES (?, 2, 2, '')", (f"run-{number}",))
        return seen_by_others()

    return add


async def test_what_waits_for_another_writer_is_one_transaction(stores: Stores, group: GroupCommit) -> None:
    """Embedded, each token of each run was a transaction, and a run's next token waited for those of all others."""
    with closing(another_process(stores)) as reader:

        def count() -> int:
            return reader.execute("SELECT count(*) FROM event_blocks").fetchone()[0]

        async with asyncio.TaskGroup() as tasks, stores.database.write():
            writes = [tasks.create_task(group.write(adds_block(n, count)), name=f"write {n}") for n in range(5)]
            await after()
            assert not any(write.done() for write in writes)
        assert [write.result() for write in writes] == [0] * 5
        assert count() == 5


async def test_a_stale_fence_fails_its_own_events_only(stores: Stores, checkpoints: CheckpointStore) -> None:
    first, taken, ended, last = await claimed(stores, 4)
    await stores.runs.take_over(taken, IDS.claim(), NOW)
    await stores.settle(ended)
    outcomes = await asyncio.gather(
        *(checkpoints.record_events(run, tail(2, 3), NOW) for run in (first, taken, ended, last)),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), StaleFence, IllegalTransition, type(None)]
    assert [await stored(stores, run) for run in (first, taken, last)] == [[2, 3], [], [2, 3]]
    assert (await stores.runs.look_up(first.id)).last_seq == 3


async def test_a_stale_fence_fails_its_own_entry_of_a_journal_only(
    stores: Stores, checkpoints: CheckpointStore
) -> None:
    first, taken, ended, last = await claimed(stores, 4)
    await stores.runs.take_over(taken, IDS.claim(), NOW)
    await stores.settle(ended)
    nothing, begun = LogTail(Seq(2), []), some_entry(1, state="started", result=None, ended_at=None)
    for entry in (begun, some_entry(1)):
        outcomes = await asyncio.gather(
            *(checkpoints.record_journal(run, [entry], nothing, NOW) for run in (first, taken, ended, last)),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [type(None), StaleFence, IllegalTransition, type(None)]
        journals = [await checkpoints.journal(run) for run in (first, taken, ended, last)]
        assert journals == [[entry], [], [], [entry]]
    stored = await stores.runs.look_up(first.id)
    assert (stored.last_seq, stored.attempts_without_progress) == (first.last_seq, 0)


async def test_an_entry_of_a_journal_whose_answer_was_lost_is_stored_once(
    stores: Stores, checkpoints: CheckpointStore
) -> None:
    (run,) = await claimed(stores, 1)
    crash_points.arm(f"{CrashPoint.JOURNAL}:lost")
    try:
        with pytest.raises(Unavailable):
            await checkpoints.record_journal(run, [some_entry(1)], LogTail(Seq(2), []), NOW)
        await checkpoints.record_journal(run, [some_entry(1)], LogTail(Seq(2), []), NOW)
    finally:
        crash_points.arm("")
    assert await checkpoints.journal(run) == [some_entry(1)]


async def test_events_whose_answer_was_lost_are_stored_once(stores: Stores, checkpoints: CheckpointStore) -> None:
    (run,) = await claimed(stores, 1)
    crash_points.arm(f"{CrashPoint.SPILL}:lost")
    try:
        with pytest.raises(Unavailable):
            await checkpoints.record_events(run, tail(2, 4), NOW)
        await checkpoints.record_events(run, tail(2, 4), NOW)
        await checkpoints.record_events(run, tail(2, 6), NOW)
        await checkpoints.record_events(run, tail(7, 7), NOW)
    finally:
        crash_points.arm("")
    assert await stored(stores, run) == [2, 3, 4, 5, 6, 7]


async def test_a_transaction_that_fails_stores_nothing_of_anybody(stores: Stores, checkpoints: CheckpointStore) -> None:
    runs = await claimed(stores, 3)
    with closing(another_process(stores)) as operator:
        operator.execute(
            "CREATE TRIGGER full BEFORE INSERT ON event_blocks WHEN new.first_seq = 9"
            " BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
        tails = [tail(2, 3), tail(9, 9), tail(2, 3)]

        async def record() -> list[type]:
            works = [checkpoints.record_events(run, given, NOW) for run, given in zip(runs, tails, strict=True)]
            return [type(outcome) for outcome in await asyncio.gather(*works, return_exceptions=True)]

        assert await record() == [Unavailable] * 3
        assert [await stored(stores, run) for run in runs] == [[], [], []]
        operator.execute("DROP TRIGGER full")
        assert await record() == [type(None)] * 3
    assert [await stored(stores, run) for run in runs] == [[2, 3], [9], [2, 3]]


async def test_a_transaction_waits_for_another_process_that_writes(
    stores: Stores, checkpoints: CheckpointStore
) -> None:
    (run,) = await claimed(stores, 1)
    with closing(another_process(stores)) as operator:
        async with asyncio.TaskGroup() as tasks:
            operator.execute("BEGIN IMMEDIATE")
            recording = tasks.create_task(checkpoints.record_events(run, tail(2, 2), NOW), name="record")
            await after()
            assert not recording.done()
            operator.execute("ROLLBACK")
    assert await stored(stores, run) == [2]


async def test_a_connection_whose_preparation_failed_was_used_as_it_was(tmp_path: Path) -> None:
    """Its transactions waited on the event loop for other writers, and it copied the WAL by itself."""
    file = tmp_path / "runs.db"
    database = Database(f"sqlite:///{file}")
    file.write_bytes(b"no database" * 100)
    async with GroupCommit(database).running() as group:
        with pytest.raises(Unavailable):
            await group.write(lambda _: 1)
        sqlite3.connect(file.with_name("new.db")).close()
        file.with_name("new.db").replace(file)
        settings = ("journal_mode", "busy_timeout", "wal_autocheckpoint")
        prepared = await group.write(lambda made: [made.execute(f"PRAGMA {one}").fetchone()[0] for one in settings])
    assert prepared == ["wal", 0, 0]
    await database.aclose()


async def test_the_wal_does_not_grow_for_ever(stores: Stores) -> None:
    """Nobody else may commit for as long as an answer lasts."""
    with statements() as asked:
        async with GroupCommit(stores.database).running() as group:
            for number in range(COMMITS_PER_CHECKPOINT):
                await group.write(adds_block(number, lambda: 0))
            await wait_until(lambda: CHECKPOINT in asked, description="a checkpoint")


async def test_nobody_waits_for_commits_that_have_ended(stores: Stores) -> None:
    async with stores.database.write(), GroupCommit(stores.database).running() as group:
        waiting = asyncio.get_running_loop().create_task(group.write(lambda _: 1), name="write")
        await after()
        assert not waiting.done()
        ended = group
    with pytest.raises(Unavailable):
        await waiting
    with pytest.raises(Unavailable):
        await ended.write(lambda _: 1)


def publisher_of(run: Run, stores: Stores, checkpoints: CheckpointStore, redis: ArqRedis) -> Publisher:
    return Publisher(
        run,
        event_log=EventLog(redis, ttl_s=3600),
        events=stores.events,
        checkpoints=checkpoints,
        clock=SystemClock(),
        interruption=Interruption(),
        observation=unobserved(run),
        stores_first=True,
    )


async def test_what_is_shown_is_stored_already(stores: Stores, checkpoints: CheckpointStore) -> None:
    runs, redis, shown = await claimed(stores, 3), connect_embedded(), dict[str, int]()
    subscribed: list[bytes] = []
    with closing(another_process(stores)) as reader:

        def on_message(channel: bytes, payload: bytes) -> None:
            first, _, body = payload.partition(b" ")
            run = next(run for run in runs if keys.feed(run.id).encode() == channel)
            last = int(first) + body.count(b"\n")
            (stored,) = reader.execute("SELECT last_seq FROM runs WHERE id = ?", (run.id,)).fetchone()
            shown[run.id] = last if stored >= last else -1

        listener = ChannelListener(redis, name="reader", on_message=on_message, on_subscribed=subscribed.append)
        for run in runs:
            listener.add(keys.feed(run.id))
        async with listener.running():
            await wait_until(lambda: len(subscribed) == len(runs), description="the subscriptions")
            async with asyncio.TaskGroup() as tasks:
                for run in runs:
                    tasks.create_task(speak(publisher_of(run, stores, checkpoints, redis)), name=f"speak {run.id}")
            await wait_until(lambda: list(shown.values()) == [21] * 3, description=f"the last of each: {shown}")
    for run in runs:
        assert [decode(entry) for _, entry in await stores.events.read(RunId(run.id), Seq(1))] == said()
    await redis.aclose(close_connection_pool=True)


def said() -> list[StatusChanged]:
    return [StatusChanged(number, "running") for number in range(20)]


async def speak(publisher: Publisher) -> None:
    async with publisher.publishing():
        for event in said():
            publisher.emit(event)
            await after()
        assert await publisher.wait_sent(30)
