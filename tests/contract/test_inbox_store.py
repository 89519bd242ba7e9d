"""Messages that are injected into runs: each enters the history exactly once, in order."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from shared.domain.errors import Conflict, MoreInput, NotFound
from shared.domain.ids import ThreadId
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.runs import SubmissionKeys
from tests.kit.runs.definitions import PROJECT
from tests.kit.runs.stored_runs import (
    THREAD,
    Stores,
    answer,
    approve,
    call,
    said,
    second_process,
    some_run,
    stored_runs,
    texts_of,
)

WAITS = call("a", needs_approval=True)


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


async def history(stores: Stores) -> list[str]:
    return texts_of(await stores.messages.context(PROJECT, THREAD))


async def test_messages_are_delivered_once_and_in_order(stores: Stores) -> None:
    run = await stores.claimed()
    first, second, third = said("first"), said("second"), said("third")
    await stores.inbox.inject(run, [first, second], "refuse")
    await stores.inbox.inject(run, [third], "next")
    assert await history(stores) == ["hi"]
    assert await stores.delivered(run) == [first, second, third]
    assert await stores.delivered(run) == []
    assert await history(stores) == ["hi", "first", "second", "third"]


async def test_a_run_that_has_not_begun_gets_them_when_it_does(stores: Stores) -> None:
    run = await stores.submitted()
    await stores.inbox.inject(run, [said("more")], "refuse")
    await stores.delivered(await stores.claim(run))
    assert await history(stores) == ["hi", "more"]


async def test_two_deliverers_do_not_both_deliver(stores: Stores) -> None:
    run = await stores.claimed()
    sent = [said(str(number)) for number in range(5)]
    await stores.inbox.inject(run, sent, "refuse")
    async with second_process(stores) as other:
        await asyncio.gather(*(each.delivered(run) for each in (stores, other)))
    assert await history(stores) == ["hi", "0", "1", "2", "3", "4"]


async def test_messages_are_only_for_their_own_run(stores: Stores) -> None:
    run = await stores.claimed()
    elsewhere = await stores.claimed(thread_id=ThreadId("conv-2"))
    await stores.inbox.inject(run, [said("mine")], "refuse")
    assert await stores.delivered(elsewhere) == []


async def test_a_run_that_is_parked_or_over_takes_no_messages(stores: Stores) -> None:
    parked = await stores.parked(WAITS)
    ended = await stores.ended(thread_id=ThreadId("conv-2"))
    for run in (parked, ended):
        with pytest.raises(Conflict):
            await stores.inbox.inject(run, [said("hello?")], "next")
    with pytest.raises(NotFound):
        await stores.inbox.inject(some_run(), [said("hello?")], "next")


async def test_a_run_does_not_end_over_a_message_that_it_has_taken_in(stores: Stores) -> None:
    """The message came after the worker's last look, was accepted, and was dropped with the end of the run."""
    run = await stores.claimed()
    await stores.inbox.inject(run, [said("wait")], "refuse")
    with pytest.raises(MoreInput):
        await stores.settle(run, messages=[answer("done")], unless_more_input=True)
    assert await history(stores) == ["hi"]
    assert await stores.status_of(run) is RunStatus.RUNNING
    await stores.delivered(run)
    settled = await stores.settle(run, messages=[answer("done")], unless_more_input=True)
    assert settled.run.status is RunStatus.COMPLETED


async def test_a_message_that_is_sent_again_is_taken_once_even_when_its_run_has_ended(stores: Stores) -> None:
    """The retry of a client that had lost the answer was refused as too late, or delivered a second time."""
    run = await stores.claimed()
    assert await stores.inbox.inject(run, [said("psst")], "next", keys=SubmissionKeys(["otids:1"]))
    assert not await stores.inbox.inject(run, [said("psst")], "next", keys=SubmissionKeys(["otids:1"]))
    assert len(await stores.delivered(run)) == 1
    await stores.settle(run, messages=[answer("done")])
    assert not await stores.inbox.inject(run, [said("psst")], "next", keys=SubmissionKeys(["otids:1"]))


async def test_what_a_run_ended_without_is_the_next_runs_if_the_sender_said_so(stores: Stores) -> None:
    run = await stores.claimed()
    await stores.inbox.inject(run, [said("drop me")], "refuse")
    await stores.inbox.inject(run, [said("keep me"), said("me too")], "next")
    await stores.settle(run, messages=[answer("done")])
    assert await history(stores) == ["hi", "done"]
    await stores.claimed(thread_id=ThreadId("conv-2"))
    following = await stores.claimed(said("next"))
    assert await history(stores) == ["hi", "done", "keep me", "me too", "next"]
    await stores.settle(following, messages=[answer("yes")])
    await stores.claimed(said("last"))
    assert await history(stores) == ["hi", "done", "keep me", "me too", "next", "yes", "last"]


async def test_nothing_comes_between_a_question_and_its_decision(stores: Stores) -> None:
    run = await stores.claimed()
    await stores.inbox.inject(run, [said("later")], "next")
    await stores.park(run, WAITS)
    continuation = await stores.claim(await stores.decide(approve("a")))
    assert "later" not in await history(stores)
    await stores.settle(continuation, RunTrigger.CANCEL)
    await stores.claimed(said("next"))
    assert (await history(stores))[-2:] == ["later", "next"]


async def test_an_injection_and_an_end_at_the_same_instant_lose_nothing(stores: Stores) -> None:
    for number in range(5):
        thread = ThreadId(f"conv-{number}")
        run = await stores.claimed(thread_id=thread)
        async with second_process(stores) as other:
            injected, _ = await asyncio.gather(
                stores.inbox.inject(run, [said("psst")], "next"), other.settle(run), return_exceptions=True
            )
        assert await stores.status_of(run) is RunStatus.COMPLETED
        await stores.claimed(said("next"), thread_id=thread)
        texts = texts_of(await stores.messages.context(PROJECT, thread))
        assert ("psst" in texts) == (not isinstance(injected, Conflict))
