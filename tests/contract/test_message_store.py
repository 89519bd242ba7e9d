"""Histories: what the model is told, what a client lists, and how messages leave the one without leaving the other."""

from collections.abc import AsyncGenerator, Sequence

import pytest

from shared.domain.agents import CompactionOptions
from shared.domain.errors import Conflict, StaleFence
from shared.domain.ids import ConversationId, MessageId, ThreadId
from shared.domain.lifecycle import RunTrigger
from shared.domain.messages import AssistantMessage, Message, Summary, SystemMessage, UserMessage
from shared.domain.runs import Compaction, Run, RunOptions
from shared.domain.threads import Conversation
from shared.sql.definitions.conversations import ConversationStore
from shared.sql.history.message_lists import MessageFilter
from tests.kit.runs.definitions import NOW, OTHER_PROJECT, PROJECT
from tests.kit.runs.stored_runs import (
    AGENT,
    IDS,
    IN_THREAD,
    THREAD,
    Stores,
    answer,
    call,
    message,
    said,
    some_run,
    stored_runs,
    texts_of,
)


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


async def talk(stores: Stores, turns: int, thread_id: ThreadId = THREAD) -> list[Message]:
    """A thread of questions and answers: q1, a1, q2, a2 …"""
    for number in range(1, turns + 1):
        run = await stores.claimed(said(f"q{number}"), thread_id=thread_id)
        await stores.settle(run, messages=[answer(f"a{number}")])
    return await stores.messages.context(PROJECT, thread_id)


async def test_a_context_is_in_the_order_of_turns_and_of_its_own_thread(stores: Stores) -> None:
    await talk(stores, 2)
    await talk(stores, 1, ThreadId("conv-2"))
    history = await stores.messages.context(PROJECT, THREAD)
    assert texts_of(history) == ["q1", "a1", "q2", "a2"]
    assert [(stored.turn, stored.position) for stored in history] == [(1, 1), (1, 2), (2, 1), (2, 2)]


async def test_a_run_sees_nothing_of_later_turns(stores: Stores) -> None:
    [first, *_] = await talk(stores, 2)
    assert first.run_id is not None
    run = await stores.runs.look_up(first.run_id)
    assert texts_of((await stores.messages.context_of_run(run)).messages) == ["q1", "a1"]


async def test_desc_takes_the_newest_and_lists_them_oldest_first(stores: Stores) -> None:
    await talk(stores, 3)
    assert texts_of(await stores.lists.page(IN_THREAD, limit=3)) == ["a2", "q3", "a3"]
    assert texts_of(await stores.lists.page(IN_THREAD, limit=3, order="asc")) == ["q1", "a1", "q2"]


async def test_after_is_newer_and_before_is_older_in_both_orders(stores: Stores) -> None:
    history = await talk(stores, 3)
    second, fifth = history[1].id, history[4].id
    for order in ("asc", "desc"):
        assert texts_of(await stores.lists.page(IN_THREAD, limit=9, after=second, order=order)) == [
            "q2", "a2", "q3", "a3",
        ]  # fmt: skip
        assert texts_of(await stores.lists.page(IN_THREAD, limit=9, before=fifth, order=order)) == [
            "q1", "a1", "q2", "a2",
        ]  # fmt: skip
        between = await stores.lists.page(IN_THREAD, limit=9, after=second, before=fifth, order=order)
        assert texts_of(between) == ["q2", "a2"]
    assert texts_of(await stores.lists.page(IN_THREAD, limit=1, after=second, order="asc")) == ["q2"]
    assert texts_of(await stores.lists.page(IN_THREAD, limit=1, after=second, order="desc")) == ["a3"]


async def test_paging_shows_every_message_once(stores: Stores) -> None:
    history = await talk(stores, 4)
    forward: list[Message] = []
    while page := await stores.lists.page(IN_THREAD, limit=3, after=forward[-1].id if forward else None, order="asc"):
        forward += page
    backward: list[Message] = []
    while page := await stores.lists.page(IN_THREAD, limit=3, before=backward[0].id if backward else None):
        backward = page + backward
    assert forward == backward == history


async def test_a_message_is_found_by_either_of_its_ids(stores: Stores) -> None:
    sibling = IDS.message()
    asking = message(AssistantMessage(tool_calls=[call("a")], sibling_id=sibling, sibling_holds="calls"))
    run = await stores.recorded(await stores.claimed(), asking)
    last = answer("done")
    await stores.settle(run, RunTrigger.COMPLETE, messages=[last])
    for message_id in (asking.id, sibling):
        assert [found.id for found in await stores.messages.find(PROJECT, [message_id])] == [asking.id]
        [*_, newest] = await stores.lists.page(IN_THREAD, limit=9, after=message_id)
        assert newest.id not in (asking.id, sibling)
        assert texts_of(await stores.lists.page(IN_THREAD, limit=9, before=message_id)) == ["hi"]


async def test_a_cursor_that_the_list_does_not_have_was_a_404_and_is_passed_over(stores: Stores) -> None:
    history = await talk(stores, 1)
    for unknown in (MessageId("message-0"), (await talk(stores, 1, ThreadId("conv-2")))[0].id):
        assert await stores.lists.page(IN_THREAD, limit=9, after=unknown) == history
        assert await stores.lists.page(IN_THREAD, limit=9, before=unknown) == history


async def test_a_message_of_another_project_is_not_found(stores: Stores) -> None:
    [first, *_] = await talk(stores, 1)
    assert await stores.messages.find(OTHER_PROJECT, [first.id]) == []


async def test_a_runs_own_messages_are_listed_in_order(stores: Stores) -> None:
    await talk(stores, 1)
    run = await stores.claimed(said("mine"))
    await stores.settle(run, messages=[answer("yours")])
    assert texts_of(await stores.messages.list_of_run(run)) == ["mine", "yours"]


async def test_a_reset_empties_the_context_and_not_the_list(stores: Stores) -> None:
    thread = ThreadId(AGENT.id)
    await talk(stores, 1, thread)
    await stores.messages.reset(PROJECT, thread)
    assert [type(stored.body) for stored in await stores.messages.context(PROJECT, thread)] == [SystemMessage]
    assert texts_of(await stores.lists.page(MessageFilter(PROJECT, thread_id=thread), limit=9)) == ["q1", "a1"]


async def test_a_reset_waits_for_a_parked_run(stores: Stores) -> None:
    await stores.parked(call("a", needs_approval=True))
    before = await stores.context()
    with pytest.raises(Conflict, match="has not ended"):
        await stores.messages.reset(PROJECT, THREAD)
    assert await stores.context() == before


async def compacting(stores: Stores) -> Run:
    """A claimed run that compacts the thread."""
    run = some_run(options=RunOptions(compaction=CompactionOptions()))
    return await stores.claim((await stores.runs.submit(run, [])).run)


def compaction(gone: Sequence[Message], text: str = "they talked") -> Compaction:
    return Compaction([stored.id for stored in gone], message(Summary(text)))


async def test_a_summary_stands_where_messages_have_left(stores: Stores) -> None:
    history = await talk(stores, 3)
    await stores.settle(await compacting(stores), compaction=compaction(history[:4]))
    assert [type(body) for body in await stores.context()] == [Summary, UserMessage, AssistantMessage]
    listed = await stores.lists.page(IN_THREAD, limit=99)
    assert {stored.id for stored in listed} >= {stored.id for stored in history}
    [summary, *_] = await stores.messages.context(PROJECT, THREAD)
    await stores.settle(await compacting(stores), compaction=compaction([summary], "again"))
    assert [body for body in await stores.context() if isinstance(body, Summary)] == [Summary("again")]


async def test_a_compaction_whose_run_was_claimed_again_changes_nothing(stores: Stores) -> None:
    history = await talk(stores, 2)
    stale = await compacting(stores)
    current = await stores.claim(stale)
    with pytest.raises(StaleFence):
        await stores.settle(stale, compaction=compaction(history))
    assert await stores.messages.context(PROJECT, THREAD) == history
    await stores.settle(current, compaction=compaction(history))
    assert await stores.context() == [Summary("they talked")]


async def test_a_compaction_takes_no_message_that_was_left_over_for_the_next_answer(stores: Stores) -> None:
    run = await stores.claimed()
    late = said("late")
    await stores.inbox.inject(run, [late], "next")
    await stores.settle(run, messages=[answer("done")])
    await stores.settle(await compacting(stores))
    assert UserMessage("late") not in await stores.context()
    await stores.claimed()
    assert UserMessage("late") in await stores.context()


async def test_a_conversation_can_begin_with_copies(stores: Stores) -> None:
    conversation = Conversation(
        id=ConversationId("conv-9"), project_id=PROJECT, agent_id=AGENT.id, created_at=NOW, updated_at=NOW
    )
    copies = {2: [said("q0"), answer("a0")]}
    await ConversationStore(stores.database).create(conversation, system_message_id=IDS.message(), copies=copies)
    history = await talk(stores, 1, ThreadId(conversation.id))
    assert texts_of(history) == ["q0", "a0", "q1", "a1"]
    assert history[0].conversation_id == conversation.id
    assert history[0].run_id is None
    assert [stored.turn for stored in history] == [0, 2, 2, 3, 3]
