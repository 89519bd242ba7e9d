"""Runs that ask a model one question: in no history, beside every conversation, and of no account to the agent."""

from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from shared.domain.errors import NameTaken
from shared.domain.events import Ended, TextChunk, decode
from shared.domain.ids import ThreadId
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.runs import GENERATE, Generation, Run, RunOptions, SubmissionKeys
from shared.sql.definitions.agents import last_runs
from tests.kit.runs.definitions import NOW
from tests.kit.runs.stored_runs import AGENT, IDS, Stores, answer, said, some_run, stored_runs, texts_of

IN_AGENTS_OWN = {"thread_id": ThreadId(AGENT.id)}


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


def a_question() -> Run:
    run_id = IDS.run()
    asked = RunOptions(run_type=GENERATE, generation=Generation())
    return some_run(id=run_id, thread_id=ThreadId(run_id), options=asked)


async def submitted(stores: Stores, keys: SubmissionKeys | None = None) -> Run:
    return (await stores.runs.submit(a_question(), [said("How many?")], keys=keys or SubmissionKeys())).run


async def claimed(stores: Stores) -> Run:
    return await stores.claim(await submitted(stores))


async def last_run_of_the_agent(stores: Stores) -> object:
    async with stores.database.read() as connection:
        return (await last_runs(connection, [AGENT.id])).get(AGENT.id)


@pytest.mark.parametrize("trigger", [RunTrigger.COMPLETE, RunTrigger.FAIL, RunTrigger.CANCEL])
async def test_however_it_ends_nothing_enters_a_history_and_the_agent_has_not_stopped(
    stores: Stores, trigger: RunTrigger
) -> None:
    before = await stores.context(IN_AGENTS_OWN["thread_id"])
    run = await claimed(stores)
    settled = await stores.settle(run, trigger, messages=[answer("Nine.")])

    assert await stores.messages.list_of_run(run) == []
    assert await stores.context(run.thread_id) == []
    assert await stores.context(IN_AGENTS_OWN["thread_id"]) == before
    assert await stores.last_stop_reason() is None
    assert await last_run_of_the_agent(stores) is None
    events = [decode(entry) for entry in settled.tail.entries]
    assert isinstance(events[-1], Ended)
    assert not any(isinstance(event, TextChunk) for event in events)
    assert texts_of(await stores.runs.waiting_input(settled.run)) == ["How many?"]


async def test_one_that_never_began_ends_in_no_history_either(stores: Stores) -> None:
    run = await submitted(stores)
    await stores.settle(run, RunTrigger.CANCEL)

    assert await stores.status_of(run) is RunStatus.CANCELLED
    assert await stores.messages.list_of_run(run) == []


async def test_the_agents_last_run_is_its_last_turn(stores: Stores) -> None:
    turn = await stores.claimed(**IN_AGENTS_OWN)
    await stores.settle(turn, messages=[answer("Hi.")])
    before = await last_run_of_the_agent(stores)

    await stores.settle(await claimed(stores))

    assert before is not None
    assert await last_run_of_the_agent(stores) == before


async def test_questions_are_asked_beside_a_turn_of_their_agent_and_beside_each_other(stores: Stores) -> None:
    turn = await stores.claimed(**IN_AGENTS_OWN)
    questions = [await claimed(stores) for _ in range(2)]

    for run in (turn, *questions):
        assert await stores.status_of(run) is RunStatus.RUNNING
        assert (await stores.settle(run)).next is None


async def test_what_was_left_for_the_next_turn_is_not_taken_by_a_question(stores: Stores) -> None:
    turn = await stores.claimed(**IN_AGENTS_OWN)
    await stores.inbox.inject(turn, [said("left")], "next")
    await stores.settle(turn)

    await claimed(stores)

    after = await stores.claimed(said("next"), **IN_AGENTS_OWN)
    assert texts_of(await stores.messages.list_of_run(after)) == ["left", "next"]


async def test_a_question_that_is_sent_again_is_found_though_its_thread_is_its_own(stores: Stores) -> None:
    keys = SubmissionKeys(["idempotency-key:k"], "content")
    first = await submitted(stores, keys)

    assert (await submitted(stores, keys)).id == first.id
    with pytest.raises(NameTaken):
        await submitted(stores, SubmissionKeys(["idempotency-key:k"], "other content"))


async def test_retention_deletes_the_question_and_keeps_the_run(stores: Stores) -> None:
    run = await claimed(stores)
    ended = (await stores.settle(run)).run

    await stores.retention.prune(NOW + timedelta(days=1), NOW + timedelta(days=1))

    assert await stores.runs.waiting_input(ended) == []
    assert await stores.status_of(run) is RunStatus.COMPLETED
