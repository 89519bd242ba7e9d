"""Runs that make one call of a tool: beside every conversation, ended by whoever ends them with one result."""

from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from shared.domain.errors import NameTaken
from shared.domain.events import Ended, ToolsReturned, decode
from shared.domain.ids import ThreadId
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.messages import ToolReturn
from shared.domain.runs import TOOL_RUN, Run, RunOptions, SubmissionKeys
from shared.domain.settling import CANCELLED_WHILE_RUNNING, NEVER_STARTED, OUTCOME_UNKNOWN
from shared.sql.runs.checkpoints import FinishedEdit, ToolRunStore, finish_intent
from shared.sql.runs.settlement import Settled
from tests.kit.runs.definitions import NOW
from tests.kit.runs.stored_runs import (
    AGENT,
    IDS,
    THREAD,
    Stores,
    answer,
    call,
    found,
    said,
    some_run,
    stored_runs,
    texts_of,
)

CALL = call("a")
IN_AGENTS_OWN = {"thread_id": ThreadId(AGENT.id)}


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


def tool_run(**fields: object) -> Run:
    run_id = IDS.run()
    options = RunOptions(run_type=TOOL_RUN, tool_name=CALL.name)
    return some_run(id=run_id, thread_id=ThreadId(run_id), options=options, **fields)


async def submitted(stores: Stores, keys: SubmissionKeys | None = None) -> Run:
    given = [answer("", CALL)]
    return (await stores.runs.submit(tool_run(), given, keys=keys or SubmissionKeys())).run


async def claimed(stores: Stores) -> Run:
    return await stores.claim(await submitted(stores))


async def result_of(stores: Stores, run: Run) -> ToolReturn | None:
    return await ToolRunStore(stores.database).result(run)


def shown(settled: Settled) -> list[str]:
    """The results that the end of a log shows."""
    events = [decode(entry) for entry in settled.tail.entries]
    assert isinstance(events[-1], Ended)
    return [one.text for event in events if isinstance(event, ToolsReturned) for one in event.returns]


async def test_the_result_is_stored_and_shown_with_the_end_and_nothing_enters_a_history(stores: Stores) -> None:
    run = await claimed(stores)
    settled = await stores.settle(run, known_returns={CALL.id: found(CALL.id)})

    assert await result_of(stores, run) == found(CALL.id)
    assert shown(settled) == ["found"]
    again = await stores.settle(run, known_returns={CALL.id: found(CALL.id, "something else")})
    assert (shown(again), again.run) == (["found"], settled.run), "a run is settled once"
    assert await stores.messages.list_of_run(run) == []
    assert await stores.context(run.thread_id) == []
    assert await stores.last_stop_reason() is None, "no turn of the agent has ended"


async def test_a_cancel_says_whether_the_tool_had_started(stores: Stores) -> None:
    unclaimed = await submitted(stores)
    assert shown(await stores.settle(unclaimed, RunTrigger.CANCEL)) == [NEVER_STARTED]

    begun = await stores.recorded(await claimed(stores), starting=[CALL])
    assert shown(await stores.settle(begun, RunTrigger.CANCEL)) == [CANCELLED_WHILE_RUNNING]

    lost = await stores.recorded(await claimed(stores), starting=[CALL])
    await stores.settle(lost, RunTrigger.FAIL)
    result = await result_of(stores, lost)
    assert result is not None
    assert (result.status, result.text) == ("error", OUTCOME_UNKNOWN)


async def test_a_cancel_between_an_edit_and_the_end_tells_the_edit(stores: Stores) -> None:
    run = await stores.recorded(await claimed(stores), starting=[CALL])
    async with stores.database.write() as connection:
        await finish_intent(connection, run.id, FinishedEdit(found(CALL.id, "edited")), NOW)

    assert shown(await stores.settle(run, RunTrigger.CANCEL)) == ["edited"]
    assert await result_of(stores, run) == found(CALL.id, "edited")


async def test_calls_run_beside_a_turn_of_their_agent_and_beside_each_other(stores: Stores) -> None:
    turn = await stores.claimed(**IN_AGENTS_OWN)
    calls = [await claimed(stores) for _ in range(2)]

    for run in (turn, *calls):
        assert await stores.status_of(run) is RunStatus.RUNNING
        assert (await stores.settle(run, known_returns={CALL.id: found(CALL.id)})).next is None


async def test_what_was_left_for_the_next_turn_is_not_taken_by_a_call(stores: Stores) -> None:
    turn = await stores.claimed(**IN_AGENTS_OWN)
    await stores.inbox.inject(turn, [said("left")], "next")
    await stores.settle(turn)

    await claimed(stores)

    after = await stores.claimed(said("next"), **IN_AGENTS_OWN)
    told = texts_of(await stores.messages.list_of_run(after))
    assert told == ["left", "next"]


async def test_a_call_that_is_sent_again_is_found_though_its_thread_is_its_own(stores: Stores) -> None:
    keys = SubmissionKeys(["idempotency-key:k"], "content")
    first = await submitted(stores, keys)

    assert (await submitted(stores, keys)).id == first.id
    with pytest.raises(NameTaken):
        await submitted(stores, SubmissionKeys(["idempotency-key:k"], "other content"))


async def test_a_call_hid_the_streamed_run_that_a_cancel_was_too_late_for(stores: Stores) -> None:
    streamed = await stores.ended(options=RunOptions(streamed=True))
    await stores.settle(await claimed(stores), known_returns={CALL.id: found(CALL.id)})

    newest = await stores.listing.just_streamed(streamed.project_id, AGENT.id, None, NOW - timedelta(seconds=1))

    assert newest is not None
    assert newest.id == streamed.id
    assert (await stores.listing.active_of_agent(streamed.project_id, AGENT.id, THREAD)) == []


async def test_retention_deletes_the_result_and_keeps_the_run(stores: Stores) -> None:
    run = await claimed(stores)
    await stores.settle(run, known_returns={CALL.id: found(CALL.id)})

    await stores.retention.prune(NOW + timedelta(days=1), NOW + timedelta(days=1))

    assert await result_of(stores, run) is None
    assert await stores.status_of(run) is RunStatus.COMPLETED
