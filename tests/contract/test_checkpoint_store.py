"""What a worker writes while a run goes on: durable with each checkpoint, and refused under another owner."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from shared.domain.errors import CancelRequested, IllegalTransition, StaleFence
from shared.domain.events import decode
from shared.domain.ids import Seq
from shared.domain.journal import JournalEntry
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.log_writer import LogTail
from shared.domain.messages import AssistantMessage, Message, NewMessage, Summary, UserMessage
from shared.domain.runs import Compaction, Run, Step, Usage
from shared.sql.history.message_lists import MessageFilter
from shared.sql.paging import Page
from shared.sql.run_tables import steps
from shared.sql.runs.steps import BLOCK_ENTRIES, StepFilter
from tests.kit.runs.definitions import NOW, PROJECT
from tests.kit.runs.stored_runs import (
    AGENT,
    CANCEL,
    IDS,
    IN_THREAD,
    THREAD,
    Stores,
    answer,
    call,
    checkpoint,
    found,
    message,
    request_of,
    results,
    said,
    some_entry,
    stored_runs,
    texts_of,
)
from tests.kit.services.sent_statements import sent_statements

ENTRY = b'{"type":"status","at":1,"status":"running"}'


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


def some_step(run: Run) -> Step:
    return Step(id=IDS.step(), run_id=run.id, agent_id=AGENT.id, number=1, model="builtin/echo", created_at=NOW)


async def test_a_checkpoint_keeps_messages_step_usage_and_events(stores: Stores) -> None:
    run = await stores.claimed()
    step = some_step(run)
    said_so = answer("so", step_id=step.id)
    await stores.checkpoints.record(
        run, checkpoint(run, said_so, entries=[ENTRY, ENTRY], usage=Usage(prompt_tokens=7), step=step)
    )
    stored = await stores.runs.look_up(run.id)
    assert (stored.usage.prompt_tokens, stored.step_count, stored.attempts_without_progress) == (7, 1, 0)
    assert (stored.last_seq, stored.checkpoint_seq) == (3, 3)
    assert texts_of(await stores.messages.context(PROJECT, THREAD)) == ["hi", "so"]
    of_step = await stores.lists.page(MessageFilter(PROJECT, step_id=step.id), limit=9)
    assert texts_of(of_step) == ["hi", "so"], "the step begins with the question that it answers"
    assert await stores.events.read(run.id, Seq(1)) == [(2, ENTRY), (3, ENTRY)]
    assert await stores.steps.get(PROJECT, step.id) == step


async def test_a_step_is_stored_again_as_it_ended(stores: Stores) -> None:
    run = await stores.claimed()
    step = some_step(run)
    await stores.checkpoints.record(run, checkpoint(run, step=step))
    ended = replace(step, status="success", stop_reason="end_turn")
    await stores.checkpoints.record(run, checkpoint(run, step=ended))
    assert await stores.steps.list(PROJECT, Page(ascending=True), StepFilter(run_id=run.id)) == [ended]


async def test_a_message_that_is_there_stays_as_it_is(stores: Stores) -> None:
    run = await stores.claimed()
    first, second = answer("first"), said("second")
    run = await stores.recorded(run, first)
    await stores.recorded(run, replace(first, body=AssistantMessage(text="changed")), second)
    assert texts_of(await stores.messages.context(PROJECT, THREAD)) == ["hi", "first", "second"]


async def test_a_checkpoint_whose_answer_was_lost_is_stored_once(stores: Stores) -> None:
    """The commit reached the database, its answer did not reach us: the worker sends the same again."""
    run = await stores.claimed()
    step, asking = some_step(run), answer("let me see", call("a"))
    once = checkpoint(run, asking, entries=[ENTRY, ENTRY], usage=Usage(prompt_tokens=7), step=step)
    await stores.checkpoints.record(run, once, starting=[call("a")])
    stored = await stores.runs.look_up(run.id)

    await stores.checkpoints.record(run, once, starting=[call("a")])

    assert await stores.runs.look_up(run.id) == stored
    assert texts_of(await stores.messages.context(PROJECT, THREAD)) == ["hi", "let me see"]
    assert await stores.events.read(run.id, Seq(1)) == [(2, ENTRY), (3, ENTRY)]
    assert set(await stores.checkpoints.intents(run.id)) == {"a"}
    assert await stores.steps.list(PROJECT, Page(ascending=True), StepFilter(run_id=run.id)) == [step]


async def test_the_document_of_each_step_was_parsed_to_find_those_of_a_model(stores: Stores) -> None:
    """With 300,000 steps a list for a model that nothing had used took seconds."""
    named = ["openrouter/qwen/qwen-3", "ollama/grüße:7b", 'vllm/a"b%c', "openai/qwen-3-large"]
    made: dict[str, str] = {}
    for number, model in enumerate(named):
        run = await stores.claimed(thread_id=f"thread-{number}")
        step = replace(some_step(run), model=model)
        await stores.checkpoints.record(run, checkpoint(run, step=step))
        made[step.id] = model
    other = {"id": "s", "run_id": "r", "agent_id": "a", "project_id": PROJECT, "number": 1, "created_at": NOW}
    async with stores.database.write() as connection:
        await connection.execute(sa.insert(steps).values(**other, document="no JSON"))

    for model, expected in (
        *((name, [name]) for name in named),
        *((name.partition("/")[2], [name]) for name in named),
        ("qwen-3", [named[0]]),
        ("qwen", []),
        ("openai/qwen-3", []),
    ):
        listed = await stores.steps.list(PROJECT, Page(), StepFilter(model=model))
        assert [made[step.id] for step in listed] == expected, model


async def test_a_checkpoint_that_did_not_arrive_is_stored_when_it_is_sent_again(stores: Stores) -> None:
    run = await stores.claimed()
    once = checkpoint(run, answer("let me see", call("a")), entries=[ENTRY], step=some_step(run))

    await stores.checkpoints.record(run, once, starting=[call("a")])

    assert texts_of(await stores.messages.context(PROJECT, THREAD)) == ["hi", "let me see"]
    assert await stores.events.read(run.id, Seq(1)) == [(2, ENTRY)]
    assert set(await stores.checkpoints.intents(run.id)) == {"a"}


async def test_a_result_that_is_stored_beside_others_stays_until_its_id_is_used_again(stores: Stores) -> None:
    run = await stores.claimed()
    asking = answer("", call("a"), call("b"))
    await stores.recorded(run, asking, starting=[call("a"), call("b")])
    await stores.checkpoints.record_results(run, [found("a")])
    await stores.checkpoints.record_results(run, [found("a", "something else")])
    assert await stores.checkpoints.intents(run.id) == {"a": found("a"), "b": None}
    await stores.checkpoints.record_intents(run, [call("c")], NOW, results=[found("b")])
    assert await stores.checkpoints.intents(run.id) == {"a": found("a"), "b": found("b"), "c": None}
    await stores.recorded(run, answer("", call("a")), starting=[call("a")])
    assert await stores.checkpoints.intents(run.id) == {"a": None, "b": found("b"), "c": None}


async def test_a_checkpoint_that_is_sent_again_under_a_new_owner_is_refused(stores: Stores) -> None:
    run = await stores.claimed()
    once = checkpoint(run, answer("so"), entries=[ENTRY])
    await stores.checkpoints.record(run, once)
    new = await stores.taken_over(run)
    with pytest.raises(StaleFence):
        await stores.checkpoints.record(run, once)
    assert await stores.runs.look_up(run.id) == new


async def test_a_checkpoint_and_its_repetition_at_once_are_one(stores: Stores) -> None:
    """The first try may still be under way when the second one comes."""
    run = await stores.claimed()
    once = checkpoint(run, answer("so"), entries=[ENTRY])
    record = stores.checkpoints.record
    await asyncio.gather(*(record(run, once) for _ in range(5)))
    assert texts_of(await stores.messages.context(PROJECT, THREAD)) == ["hi", "so"]
    assert await stores.events.read(run.id, Seq(1)) == [(2, ENTRY)]


async def test_an_intent_is_stored_with_the_answer_that_asks_for_it(stores: Stores) -> None:
    run = await stores.claimed()
    await stores.recorded(run, answer("", call("a"), call("b")), starting=[call("a")])
    await stores.checkpoints.record_intents(run, [call("b")], NOW)
    assert set(await stores.checkpoints.intents(run.id)) == {"a", "b"}


async def test_a_server_may_number_the_calls_of_every_answer_anew(stores: Stores) -> None:
    run = await stores.claimed()
    for _ in range(2):
        run = await stores.recorded(run, answer("", call("call_0")), starting=[call("call_0")])
        run = await stores.recorded(run, results(found("call_0")))
    assert set(await stores.checkpoints.intents(run.id)) == {"call_0"}


async def test_the_log_of_an_unfinished_step_is_kept_without_counting_as_a_checkpoint(stores: Stores) -> None:
    run = await stores.claimed()
    await stores.checkpoints.record_events(run, LogTail(Seq(2), [ENTRY, ENTRY]), NOW)
    stored = await stores.runs.look_up(run.id)
    assert (stored.last_seq, stored.checkpoint_seq, stored.attempts_without_progress) == (3, 1, 1)
    assert len(await stores.events.read(run.id, Seq(1))) == 2


async def test_parking_ends_the_stream_and_asks(stores: Stores) -> None:
    run = await stores.claimed()
    waits = call("a", needs_approval=True)
    asking = answer("may I?", waits)
    asked = request_of(run, asking, waits)
    tail = await stores.settlements.park(run, checkpoint(run, asking, entries=[ENTRY]), [asked])
    parked = await stores.runs.look_up(run.id)
    assert (parked.status, parked.stop_reason) == (RunStatus.AWAITING_APPROVAL, "requires_approval")
    assert (parked.completed_at, parked.last_seq) == (NOW, tail.last)
    assert [entry for _, entry in await stores.events.read(run.id, Seq(1))] == list(tail.entries)
    assert [type(decode(entry)).__name__ for entry in tail.entries] == [
        "StatusChanged", "Stopped", "UsageReported", "Ended",
    ]  # fmt: skip
    assert await stores.approvals.waiting_on_thread(PROJECT, THREAD) == [asked]
    assert await stores.last_stop_reason() == "requires_approval"


async def test_a_run_that_is_to_be_cancelled_does_not_park(stores: Stores) -> None:
    run = await stores.claimed()
    await stores.runs.request_cancel(run, CANCEL)
    with pytest.raises(CancelRequested) as asked:
        await stores.park(run, call("a", needs_approval=True))
    assert asked.value.mode is CANCEL.mode
    assert await stores.status_of(run) is RunStatus.RUNNING
    assert texts_of(await stores.messages.context(PROJECT, THREAD)) == ["hi"]
    assert await stores.asked(run) == []


async def record_entries(stores: Stores, run: Run, *entries: JournalEntry) -> None:
    """Stores entries of a journal between which nothing was shown."""
    await stores.checkpoints.record_journal(run, entries, LogTail(Seq(2), []), NOW)


Write = Callable[[Stores, Run], Awaitable[object]]
WRITES: dict[str, Write] = {
    "record": lambda stores, run: stores.recorded(run, answer("from the dead"), starting=[call("a")]),
    "record_intents": lambda stores, run: stores.checkpoints.record_intents(run, [call("a")], NOW),
    "record_results": lambda stores, run: stores.checkpoints.record_results(run, [found("a")]),
    "record_events": lambda stores, run: stores.checkpoints.record_events(run, LogTail(Seq(2), [ENTRY]), NOW),
    "record_journal": lambda stores, run: record_entries(stores, run, some_entry(1), some_entry(2)),
    "record_journal of one entry": lambda stores, run: record_entries(stores, run, some_entry(1)),
    "park": lambda stores, run: stores.park(run, call("a", needs_approval=True)),
    "settle": lambda stores, run: stores.settle(run, RunTrigger.CANCEL, messages=[answer("from the dead")]),
    "hand_over": lambda stores, run: stores.checkpoints.hand_over(run, LogTail(Seq(2), [ENTRY]), NOW),
    "adopt": lambda stores, run: stores.checkpoints.adopt(run, [(Seq(2), ENTRY)], NOW),
    "acknowledge": lambda stores, run: stores.runs.acknowledge_cancel(run.id, run.fence, NOW),
    "take_over": lambda stores, run: stores.runs.take_over(run, IDS.claim(), NOW),
    "deliver": lambda stores, run: stores.delivered(run),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
async def test_an_old_owner_writes_nothing(stores: Stores, write: Write) -> None:
    old = await stores.claimed()
    await stores.inbox.inject(old, [said("psst")], "next")
    new = await stores.taken_over(old)
    with pytest.raises(StaleFence):
        await write(stores, old)
    assert await stores.runs.look_up(old.id) == new
    assert texts_of(await stores.messages.context(PROJECT, THREAD)) == ["hi"]
    assert await stores.events.read(old.id, Seq(1)) == []
    assert await stores.checkpoints.intents(old.id) == {}
    assert await stores.checkpoints.journal(old) == []
    assert await stores.asked(old) == []


async def test_text_before_the_state_of_a_body_was_shown_twice_when_its_worker_died_before_the_end(
    stores: Stores,
) -> None:
    """The state was a checkpoint, so the next owner took the text for a part of the history, and let it stand."""
    run = await stores.claimed()
    await stores.checkpoints.record_journal(run, [], LogTail(Seq(2), [ENTRY]), NOW, state=b'{"count": 1}')
    stored = await stores.runs.look_up(run.id)
    assert (stored.last_seq, stored.checkpoint_seq) == (2, run.checkpoint_seq)
    assert await stores.checkpoints.body_state(run) == b'{"count": 1}'


async def test_an_entry_alone_is_stored_in_one_statement_as_it_is_among_others(stores: Stores) -> None:
    """A step of a body, between which nothing is shown, cost a worker four statements and their round trips."""
    run = await stores.claimed()
    begun = [some_entry(number, state="started", result=None, ended_at=None) for number in (1, 2)]
    ended = some_entry(2, result=b'{"a": "1"}', attempt=2, started_at=NOW, ended_at=NOW + timedelta(seconds=1))
    await record_entries(stores, run, *begun)
    with sent_statements() as statements:
        await record_entries(stores, run, ended)
        await record_entries(stores, run, some_entry(3, kind="tool", branch="a/", result=None))

    assert await stores.checkpoints.journal(run) == [
        begun[0],
        ended,
        some_entry(3, kind="tool", branch="a/", result=None),
    ]
    locks = [one.text for one in statements if one.text.startswith("SELECT")]
    assert len(locks) == (1 if stores.database.is_sqlite else 0)
    stored = await stores.runs.look_up(run.id)
    assert (stored.last_seq, stored.attempts_without_progress) == (run.last_seq, 0)


async def test_a_write_of_a_long_turn_read_all_messages_of_the_turn(stores: Stores) -> None:
    """Each of 800 tool calls of one turn took longer than the one before: ten milliseconds at the end."""
    run = await stores.claimed()
    written = [answer(f"part {number}") for number in range(300)]
    await stores.recorded(run, *written)
    with sent_statements() as statements:
        await stores.checkpoints.record(run, checkpoint(run, written[-1], answer("the last")))

    [reads] = [one for one in statements if one.text.startswith("SELECT") and "FROM messages" in one.text]
    async with stores.database.read() as connection:
        found = (await connection.exec_driver_sql(reads.text, tuple(reads.parameters))).all()
    assert len(found) == 3  # the last one, and those that are to be stored, which are there now
    assert texts_of(await stores.messages.context(PROJECT, THREAD))[-2:] == ["part 299", "the last"]


ENDS_AGAIN = {"settle", "park"}
"""Repeated by the owner that ended the run, they give what they gave: `test_lost_answers.py`."""


@pytest.mark.parametrize("write", [pytest.param(WRITES[name], id=name) for name in sorted(WRITES.keys() - ENDS_AGAIN)])
async def test_a_run_that_has_ended_takes_no_writes(stores: Stores, write: Write) -> None:
    run = await stores.claimed()
    await stores.inbox.inject(run, [said("psst")], "next")
    ended = (await stores.settle(run)).run
    with pytest.raises(IllegalTransition):
        await write(stores, run)
    assert await stores.runs.look_up(run.id) == ended
    assert texts_of(await stores.messages.context(PROJECT, THREAD)) == ["hi"]


def entries(count: int) -> list[bytes]:
    return [b'{"type":"status","at":%d,"status":"running"}' % number for number in range(count)]


async def test_a_long_log_is_read_back_from_anywhere(stores: Stores) -> None:
    run = await stores.claimed()
    written = entries(2 * BLOCK_ENTRIES + 500)
    await stores.checkpoints.record_events(run, LogTail(Seq(2), written), NOW)
    numbered = [(Seq(number), entry) for number, entry in enumerate(written, start=2)]
    assert await stores.events.read(run.id, Seq(1), limit=10_000) == numbered
    assert await stores.events.read(run.id, Seq(1)) == numbered[:BLOCK_ENTRIES]
    assert await stores.events.read(run.id, Seq(1500)) == numbered[1499 : 1499 + BLOCK_ENTRIES]
    assert await stores.events.read(run.id, Seq(1500), limit=3) == numbered[1499:1502]
    assert await stores.events.read(run.id, Seq(len(written) + 1)) == []


async def test_a_log_of_many_small_blocks_is_read_in_one_go(stores: Stores) -> None:
    run = await stores.claimed()
    written = entries(20)
    for first in range(0, 20, 4):
        await stores.checkpoints.record_events(run, LogTail(Seq(2 + first), written[first : first + 4]), NOW)
    assert [entry for _, entry in await stores.events.read(run.id, Seq(1), limit=20)] == written
    assert [seq for seq, _ in await stores.events.read(run.id, Seq(4), limit=5)] == [5, 6, 7, 8, 9]


async def test_a_reader_gets_over_entries_that_are_gone(stores: Stores) -> None:
    run = await stores.claimed()
    await stores.checkpoints.record_events(run, LogTail(Seq(2), [ENTRY]), NOW)
    await stores.checkpoints.record_events(run, LogTail(Seq(5000), [ENTRY]), NOW)
    assert await stores.events.read(run.id, Seq(2), limit=10) == [(5000, ENTRY)]


async def told_and_claimed(stores: Stores, *later: NewMessage) -> tuple[Message, Run]:
    """The message of a run that has ended, and the run after it."""
    before = await stores.claimed(said("long ago"))
    await stores.settle(await stores.recorded(before, answer("so it was")))
    run = await stores.claimed(said("now"))
    run = await stores.recorded(run, *later) if later else run
    return (await stores.messages.list_of_run(before))[0], run


def summary_for(*gone: Message) -> Compaction:
    return Compaction([one.id for one in gone], message(Summary("Long ago.")))


async def test_a_compaction_in_a_run_changes_history_usage_and_log_at_once(stores: Stores) -> None:
    told, run = await told_and_claimed(stores)
    done = summary_for(told)
    await stores.checkpoints.compact(run, done, LogTail(Seq(2), [ENTRY]), Usage(prompt_tokens=7), NOW)
    assert [type(body) for body in await stores.context()] == [Summary, AssistantMessage, UserMessage]
    assert told.id in [one.id for one in await stores.lists.page(IN_THREAD, limit=10)], "what left is listed"
    stored = await stores.runs.look_up(run.id)
    assert (stored.usage.prompt_tokens, stored.last_seq, stored.checkpoint_seq, stored.step_count) == (7, 2, 2, 0)
    assert stored.attempts_without_progress == 1, "no step was finished"


async def test_a_compaction_under_an_old_fence_changes_nothing(stores: Stores) -> None:
    told, run = await told_and_claimed(stores)
    before = await stores.context()
    await stores.claim(run)
    with pytest.raises(StaleFence):
        await stores.checkpoints.compact(run, summary_for(told), LogTail(Seq(2), [ENTRY]), Usage(), NOW)
    assert await stores.context() == before


async def test_a_rollback_brings_back_what_the_run_has_compacted_and_nothing_else(stores: Stores) -> None:
    told, first = await told_and_claimed(stores)
    await stores.checkpoints.compact(first, summary_for(told), LogTail(Seq(2), ()), Usage(), NOW)
    await stores.settle(first)
    before = await stores.messages.context(PROJECT, THREAD)
    run = await stores.claimed(said("and now"))
    await stores.checkpoints.compact(run, summary_for(*before), LogTail(Seq(2), ()), Usage(), NOW)
    await stores.settle(run, RunTrigger.CANCEL, rollback=True)
    assert await stores.messages.context(PROJECT, THREAD) == before
    assert told.id not in [one.id for one in before]


async def test_a_run_that_fails_keeps_the_summary_that_it_made(stores: Stores) -> None:
    told, run = await told_and_claimed(stores)
    await stores.checkpoints.compact(run, summary_for(told), LogTail(Seq(2), ()), Usage(), NOW)
    await stores.settle(run, RunTrigger.FAIL)
    assert [type(body) for body in await stores.context()] == [Summary, AssistantMessage]


async def test_a_run_that_fails_keeps_its_question_when_a_summary_stands_for_its_steps(stores: Stores) -> None:
    _, run = await told_and_claimed(stores, answer("", call("a")), results(found("a")))
    steps = [one for one in await stores.messages.list_of_run(run) if not isinstance(one.body, UserMessage)]
    await stores.checkpoints.compact(run, summary_for(*steps), LogTail(Seq(2), ()), Usage(), NOW)
    await stores.settle(run, RunTrigger.FAIL)
    assert UserMessage("now") in await stores.context()
