"""Finding runs: pages without repeats, and what sweepers and cancels look for."""

import re
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from shared.domain.errors import NotFound
from shared.domain.ids import AgentId, ConversationId, RunId, ThreadId
from shared.domain.lifecycle import STREAM_ENDED, RunStatus, RunTrigger
from shared.domain.runs import Run, RunOptions, Step, SubmissionKeys
from shared.sql.paging import Page
from shared.sql.run_tables import injected_messages, metadata
from shared.sql.runs.listing import OF_A_RUN, QuietRun, RunFilter
from shared.sql.runs.webhooks import WebhookEndpointStore
from shared.sql.tables import messages
from tests.kit.runs.definitions import NOW, OTHER_PROJECT, PROJECT
from tests.kit.runs.stored_runs import (
    AGENT,
    CANCEL,
    IDS,
    THREAD,
    Stores,
    answer,
    approve,
    call,
    checkpoint,
    said,
    some_endpoint,
    some_entry,
    some_run,
    some_settled_effect,
    stored_runs,
    texts_of,
)
from tests.kit.services.databases import statements

WAITS = call("a", needs_approval=True)
EVERY = RunFilter()


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


@pytest.mark.parametrize("ascending", [True, False])
async def test_paging_forward_shows_every_run_once(stores: Stores, ascending: bool) -> None:
    submitted = [(await stores.submitted()).id for _ in range(7)]
    seen: list[str] = []
    while page := await stores.listing.page(
        PROJECT, EVERY, Page(limit=3, after=seen[-1] if seen else None, ascending=ascending)
    ):
        seen += [run.id for run in page]
    assert seen == (submitted if ascending else submitted[::-1])


@pytest.mark.parametrize("ascending", [True, False])
async def test_before_gives_the_page_right_in_front(stores: Stores, ascending: bool) -> None:
    listed = [(await stores.submitted()).id for _ in range(7)]
    if not ascending:
        listed.reverse()
    page = await stores.listing.page(PROJECT, EVERY, Page(limit=2, before=listed[5], ascending=ascending))
    assert [run.id for run in page] == listed[3:5]


async def test_a_cursor_that_the_project_does_not_have_was_a_404_and_is_passed_over(stores: Stores) -> None:
    ours = await stores.submitted()
    theirs = await stores.submitted(project_id=OTHER_PROJECT)
    for cursor in ("run-0", theirs.id):
        assert await stores.listing.page(PROJECT, EVERY, Page(after=cursor)) == [ours]
        assert await stores.listing.page(PROJECT, EVERY, Page(before=cursor)) == [ours]


@pytest.mark.parametrize("ascending", [True, False])
async def test_a_run_that_was_deleted_still_marks_its_place(stores: Stores, ascending: bool) -> None:
    listed = [(await stores.ended()).id for _ in range(4)]
    if not ascending:
        listed.reverse()
    await stores.listing.delete(PROJECT, listed[1])
    after = await stores.listing.page(PROJECT, EVERY, Page(after=listed[1], ascending=ascending))
    before = await stores.listing.page(PROJECT, EVERY, Page(before=listed[1], ascending=ascending))
    assert ([run.id for run in after], [run.id for run in before]) == (listed[2:], listed[:1])


async def test_a_list_holds_what_was_asked_for(stores: Stores) -> None:
    await stores.submitted(project_id=OTHER_PROJECT, thread_id=ThreadId("conv-9"))
    conversation = ConversationId("conv-2")
    talk = await stores.submitted(conversation_id=conversation, thread_id=ThreadId("conv-2"))
    behind = await stores.submitted(options=RunOptions(background=True), thread_id=ThreadId("conv-3"))
    failed = await stores.ended(RunTrigger.FAIL, agent_id=AgentId("agent-2"), thread_id=ThreadId("conv-4"))

    async def listed(wanted: RunFilter) -> list[Run]:
        return await stores.listing.page(PROJECT, wanted, Page(ascending=True))

    assert [run.id for run in await listed(EVERY)] == [talk.id, behind.id, failed.id]
    assert await listed(RunFilter(thread_id=ThreadId(conversation))) == [talk]
    assert await listed(RunFilter(background=True)) == [behind]
    assert await listed(RunFilter(agent_ids=[AgentId("agent-2")])) == [failed]
    assert await listed(RunFilter(statuses=[RunStatus.FAILED, RunStatus.CANCELLED])) == [failed]
    assert await listed(RunFilter(stop_reason="error")) == [failed]
    assert await listed(RunFilter(stop_reason="error", background=True)) == []


WAYS = [
    RunFilter(created_after=NOW + timedelta(minutes=2), created_before=NOW + timedelta(minutes=7)),
    RunFilter(statuses=[RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.AWAITING_APPROVAL]),
    RunFilter(statuses=[RunStatus.FAILED], agent_ids=[AGENT.id]),
    RunFilter(statuses=[RunStatus.CREATED, RunStatus.CANCELLED], created_before=NOW + timedelta(minutes=5)),
    RunFilter(stop_reason="error", agent_ids=[AGENT.id]),
    RunFilter(stop_reason="end_turn", statuses=[RunStatus.COMPLETED], created_after=NOW + timedelta(minutes=1)),
    RunFilter(thread_id=ThreadId("conv-3"), stop_reason="error", statuses=[RunStatus.FAILED]),
    RunFilter(statuses=list(RunStatus)),
    RunFilter(created_after=NOW.replace(year=9999), created_before=NOW.replace(year=1)),
]


def is_wanted(run: Run, wanted: RunFilter) -> bool:
    return (
        (wanted.statuses is None or run.status in wanted.statuses)
        and wanted.stop_reason in (None, run.stop_reason)
        and wanted.thread_id in (None, run.thread_id)
        and (wanted.created_after is None or run.created_at > wanted.created_after)
        and (wanted.created_before is None or run.created_at < wanted.created_before)
    )


async def test_every_way_to_a_page_finds_the_same_runs_in_the_same_order(stores: Stores) -> None:
    """A list of several statuses is read by several indices, and one of times does not walk over other times."""
    triggers = (RunTrigger.COMPLETE, RunTrigger.FAIL, RunTrigger.CANCEL, None)
    for number in range(12):
        trigger, thread_id = triggers[number % 4], ThreadId(f"conv-{number % 5}")
        # Numbered a little later than one that is a little younger: clocks differ.
        at = NOW + timedelta(minutes=number + (2 if number % 3 else 0))
        if trigger is None:
            await stores.submitted(created_at=at, thread_id=ThreadId(f"conv-w{number}"))
        else:
            await stores.ended(trigger, created_at=at, thread_id=thread_id)
    await stores.parked(WAITS, thread_id=ThreadId("conv-p"))
    everything = await stores.listing.page(PROJECT, EVERY, Page(limit=100, ascending=True))
    assert len(everything) == 13
    for wanted in WAYS:
        expected = [run for run in everything if is_wanted(run, wanted)]
        for ascending in (True, False):
            seen: list[Run] = []
            while page := await stores.listing.page(
                PROJECT, wanted, Page(limit=2, after=seen[-1].id if seen else None, ascending=ascending)
            ):
                seen += page
            assert seen == (expected if ascending else expected[::-1])
        if len(expected) > 3:
            before = Page(limit=2, before=expected[3].id, ascending=True)
            assert await stores.listing.page(PROJECT, wanted, before) == expected[1:3]


async def test_runs_of_a_time_were_not_listed_when_clocks_differed(stores: Stores) -> None:
    """The number of the first run of the time was the lowest that was looked for: one of the same time, or of a
    machine whose clock is a little ahead, may have a lower number."""
    ahead = await stores.ended(created_at=NOW + timedelta(minutes=12), thread_id=ThreadId("conv-1"))
    behind = await stores.ended(created_at=NOW + timedelta(minutes=3), thread_id=ThreadId("conv-2"))
    for wanted, expected in (
        (RunFilter(created_after=NOW + timedelta(minutes=11)), [ahead]),
        (RunFilter(created_before=NOW + timedelta(minutes=4)), [behind]),
        (RunFilter(created_after=NOW, created_before=NOW + timedelta(minutes=13)), [ahead, behind]),
    ):
        assert await stores.listing.page(PROJECT, wanted, Page(limit=10, ascending=True)) == expected


async def test_active_runs_are_those_that_have_not_ended(stores: Stores) -> None:
    await stores.ended()
    parked = await stores.parked(WAITS)
    created = await stores.submitted(conversation_id=ConversationId("conv-2"), thread_id=ThreadId("conv-2"))
    running = await stores.claimed(thread_id=ThreadId("conv-3"))
    active = await stores.listing.active_of_agent(PROJECT, AGENT.id)
    assert active == [parked, created, running]
    assert await stores.listing.active_of_agent(PROJECT, AGENT.id, ThreadId("conv-2")) == [created]
    assert await stores.listing.active_of_agent(OTHER_PROJECT, AGENT.id) == []


async def test_a_sweeper_finds_what_was_not_heard_of(stores: Stores) -> None:
    running = await stores.claimed()
    await stores.submitted()
    waiting = await stores.submitted(thread_id=ThreadId("conv-2"))
    await stores.parked(WAITS, thread_id=ThreadId("conv-3"))
    await stores.ended(thread_id=ThreadId("conv-4"))
    later = NOW + timedelta(seconds=1)
    await stores.submitted(thread_id=ThreadId("conv-5"), created_at=later)
    found = await stores.listing.quiet(later, later)
    assert {run.run_id for run in found} == {running.id, waiting.id}, (
        "not those behind another run, nor parked or ended"
    )
    assert await stores.listing.quiet(NOW, later) == []


async def test_a_sweeper_goes_through_more_runs_than_one_page_holds(stores: Stores) -> None:
    """The second page was refused by Postgres, and on SQLite was the first one again: a moment was compared with how it
    is stored."""
    submitted = [
        await stores.submitted(thread_id=ThreadId(f"conv-{number}"), created_at=NOW + timedelta(seconds=number // 2))
        for number in range(7)
    ]
    later = NOW + timedelta(days=1)
    seen = list[QuietRun]()
    while page := await stores.listing.quiet(later, later, seen[-1] if seen else None, limit=3):
        assert len(seen) < len(submitted)
        seen += page
    assert sorted(run.run_id for run in seen) == sorted(run.id for run in submitted)


async def test_a_sweeper_finds_the_continuation_of_a_parked_run(stores: Stores) -> None:
    await stores.parked(WAITS)
    continuation = await stores.decide(approve("a"))
    later = NOW + timedelta(seconds=1)
    assert [run.run_id for run in await stores.listing.quiet(later, later)] == [continuation.id]


async def test_a_cancel_that_nobody_settled_is_found(stores: Stores) -> None:
    parked = await stores.parked(WAITS)
    created = await stores.submitted(thread_id=ThreadId("conv-2"))
    running = await stores.claimed(thread_id=ThreadId("conv-3"))
    await stores.submitted(thread_id=ThreadId("conv-4"))
    for run in (parked, created, running):
        await stores.runs.request_cancel(run, CANCEL)
    found = await stores.listing.cancelled_but_unclaimed()
    assert {run.id for run in found} == {parked.id, created.id}, "a running run has an owner"


async def test_how_far_logs_reach_is_asked_for_many_runs_at_once(stores: Stores) -> None:
    ended = await stores.ended()
    parked = await stores.parked(WAITS)
    created = await stores.submitted(thread_id=ThreadId("conv-2"))
    ends = await stores.runs.ends_of_logs([ended.id, parked.id, created.id, RunId("run-0")])
    assert {end.run_id: (end.status, end.last_seq) for end in ends} == {
        run.id: (run.status, run.last_seq) for run in (ended, parked, created)
    }
    assert {end.run_id for end in ends if end.status in STREAM_ENDED} == {ended.id, parked.id}
    assert await stores.runs.ends_of_logs([]) == []


def test_every_table_that_hangs_on_a_run_is_emptied_with_it() -> None:
    """`run_inputs` came later than the list, and would have kept what users wrote in runs that they had deleted."""
    hang_on_runs = {table.name for table in metadata.sorted_tables if "run_id" in table.c}
    assert {table.name for table in OF_A_RUN} == hang_on_runs - {messages.name}, "messages stay in the history"
    assert not any(table.foreign_keys for table in metadata.sorted_tables), "a table may name its run otherwise, too"


async def all_rows_of(stores: Stores, run_id: str) -> dict[str, int]:
    """How many rows of each table hang on the run."""
    async with stores.database.read() as connection:
        return {
            table.name: (
                await connection.execute(sa.select(sa.func.count()).where(table.c.run_id == run_id))
            ).scalar_one()
            for table in OF_A_RUN
        }


KEY = SubmissionKeys(["otid:1"])


async def test_a_deleted_run_leaves_no_row_of_its_own(stores: Stores) -> None:
    heard_of = some_run(callback_url="http://127.0.0.1/", options=RunOptions(dialect="any", background=True))
    await WebhookEndpointStore(stores.database).create(some_endpoint(dialect="any"))
    run = await stores.claim((await stores.runs.submit(heard_of, [said("hi")], keys=KEY)).run)
    step = Step(id=IDS.step(), run_id=run.id, agent_id=AGENT.id, number=1, model="builtin/echo", created_at=NOW)
    stored = checkpoint(run, answer("", call("b")), step=step, journal=[some_entry()])
    await stores.checkpoints.record(run, stored, starting=[call("b")])
    await stores.checkpoints.record_settled_effect(run, some_settled_effect())
    await stores.inbox.inject(run, [said("psst")], "next")
    run = await stores.park(await stores.runs.look_up(run.id), WAITS)
    await stores.settle(run, RunTrigger.CANCEL)
    before = await all_rows_of(stores, run.id)
    assert all(before.values()), f"the test leaves a table empty: {before}"
    await stores.listing.delete(PROJECT, run.id)
    assert set((await all_rows_of(stores, run.id)).values()) == {0}


async def test_a_deleted_run_leaves_its_messages_and_nothing_else(stores: Stores) -> None:
    run = (await stores.runs.submit(some_run(callback_url="http://127.0.0.1/"), [said("hi")], keys=KEY)).run
    run = await stores.recorded(await stores.claim(run), answer("", call("b")), starting=[call("b")])
    await stores.inbox.inject(run, [said("psst")], "next")
    await stores.settle(run, messages=[answer("done")])
    with pytest.raises(NotFound):
        await stores.listing.delete(OTHER_PROJECT, run.id)
    await stores.listing.delete(PROJECT, run.id)
    with pytest.raises(NotFound):
        await stores.runs.look_up(run.id)
    history = await stores.messages.context(PROJECT, THREAD)
    assert texts_of(history) == ["hi", "", "done"]
    assert {stored.run_id for stored in history} == {None}
    assert await stores.events.read(run.id, run.last_seq) == []
    assert await stores.checkpoints.intents(run.id) == {}
    assert await stores.callbacks.claim_due(NOW) == []
    assert (await stores.runs.submit(replace(some_run(), id=run.id), [], keys=KEY)).is_new
    async with stores.database.read() as connection:
        left = await connection.execute(sa.select(sa.func.count()).select_from(injected_messages))
        assert left.scalar_one() == 0


async def test_lists_and_sweeps_loaded_the_whole_input_of_every_run(stores: Stores) -> None:
    """40 queued runs of 5 MB: a list of 24 kB cost 340 MB, and a sweep every busy worker as much."""
    run = await stores.submitted(said("x" * 100_000))
    with statements() as asked:
        [shown] = await stores.listing.page(PROJECT, EVERY, Page(limit=10))
        await stores.listing.page(PROJECT, RunFilter(statuses=[RunStatus.CREATED]), Page(limit=10))
        await stores.listing.active_of_agent(PROJECT, AGENT.id)
        await stores.listing.just_streamed(PROJECT, AGENT.id, None, NOW)
        [quiet] = await stores.listing.quiet(NOW + timedelta(hours=1), NOW + timedelta(hours=1))
        await stores.listing.cancelled_but_unclaimed()
        await stores.runs.look_up(run.id)
        await stores.runs.ends_of_logs([run.id])
    assert (shown.id, quiet.run_id) == (run.id, run.id)
    assert asked
    assert not [statement for statement in asked if re.search(r"\binput\b|run_inputs", statement)]
    with statements() as asked:
        await stores.runs.input_of(run)
    assert "run_inputs" in "".join(asked), "which is how it is found where it is read"
