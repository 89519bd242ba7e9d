"""A commit whose answer was lost: the write is repeated by whoever waits for it, and is recognised.

Each test makes a write, forgets the answer, and makes the same write again, once and twice. The answer is the first
one's, and no row of any table has changed.
"""

import importlib
import inspect
import pkgutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

import shared.sql.runs
from shared.domain.events import LogContinued, encode, is_end
from shared.domain.ids import ConversationId, Fence, Seq, ThreadId
from shared.domain.lifecycle import RunTrigger
from shared.domain.limits import Account, Amount, Limit
from shared.domain.log_writer import LogTail, first_seq_of
from shared.domain.messages import Summary
from shared.domain.run_trees import ParentCall, SeenChild
from shared.domain.runs import Compaction, Dispatch, Run, RunError, RunOptions, Step, Usage
from shared.sql.definitions.conversations import ConversationStore, opening
from shared.sql.engine import Database
from shared.sql.run_tables import metadata, runs
from shared.sql.runs.budgets import BudgetStore
from shared.sql.runs.checkpoints import Spent
from shared.sql.runs.effects import EffectStore
from shared.sql.runs.run_store import Place, Submitted
from shared.sql.runs.settlement import Settled
from tests.kit.runs.definitions import NOW, PROJECT
from tests.kit.runs.stored_runs import (
    AGENT,
    CANCEL,
    IDS,
    SOME_KEYS,
    THREAD,
    Stores,
    answer,
    approve,
    call,
    checkpoint,
    decided,
    ending,
    found,
    message,
    next_seq,
    request_of,
    run_end,
    said,
    some_conversation,
    some_entry,
    some_run,
    some_settled_effect,
    stored_runs,
)

URL = "http://127.0.0.1/called"
WAITS = call("a", needs_approval=True)
ENTRY = b'{"type":"status","at":1,"status":"running"}'

Write = Callable[[], Awaitable[object]]
"""The same write, as often as it is called."""


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


def some_step(run: Run) -> Step:
    return Step(id=IDS.step(), run_id=run.id, agent_id=AGENT.id, number=1, model="builtin/echo", created_at=NOW)


def continued(run: Run, *entries: bytes) -> LogTail:
    """What a later owner of the run has emitted first."""
    return LogTail(next_seq(run), [encode(LogContinued(1, follows=run.last_seq)), *entries])


async def handed_over(stores: Stores, **fields: Any) -> Run:
    """A run that its second owner has, and whose first one has shown something."""
    first = await stores.claimed(**fields)
    await stores.checkpoints.hand_over(first, LogTail(Seq(2), [ENTRY, ENTRY]), NOW)
    return await stores.claim(first)


async def checkpoint_of_an_answer(stores: Stores) -> Write:
    run = await stores.claimed()
    used, asking = Usage(prompt_tokens=7), answer("let me see", call("a"))
    once = checkpoint(run, asking, entries=[ENTRY, ENTRY], usage=used, step=some_step(run))
    return lambda: stores.checkpoints.record(run, once, starting=[call("a")])


async def checkpoint_of_a_second_owner(stores: Stores) -> Write:
    run, said_so = await handed_over(stores), answer("so")
    return lambda: stores.checkpoints.record(run, checkpoint(run, said_so, tail=continued(run, ENTRY)))


async def reservation(stores: Stores) -> Write:
    run, accounts = await stores.claimed(), [Account("project", PROJECT, Limit(tokens=100))]
    return lambda: BudgetStore(stores.database).reserve(run, accounts, Amount(tokens=60), NOW)


async def intents(stores: Stores) -> Write:
    run = await stores.recorded(await stores.claimed(), answer("", call("a"), call("b")))
    return lambda: stores.checkpoints.record_intents(run, [call("a"), call("b")], NOW)


async def intents_behind_a_result(stores: Stores) -> Write:
    run = await stores.recorded(await stores.claimed(), answer("", call("a"), call("b")), starting=[call("a")])
    return lambda: stores.checkpoints.record_intents(run, [call("b")], NOW, results=[found("a")])


async def results_beside_calls(stores: Stores) -> Write:
    asked = [call("a"), call("b")]
    run = await stores.recorded(await stores.claimed(), answer("", *asked), starting=asked)
    return lambda: stores.checkpoints.record_results(run, [found("a")])


async def a_second_start(stores: Stores) -> Write:
    run = await stores.recorded(await stores.claimed(), answer("", call("a")), starting=[call("a")])
    return lambda: stores.checkpoints.record_intents(run, [call("a")], NOW, attempt=2)


VERDICT = some_settled_effect()


async def verdict_of_a_probe(stores: Stores) -> Write:
    run = await stores.recorded(await stores.claimed(), answer("", call("a")), starting=[call("a")])
    return lambda: stores.checkpoints.record_settled_effect(run, VERDICT, [found("a")])


async def word_of_a_person(stores: Stores) -> Write:
    run = await stores.claimed()
    word = replace(VERDICT, by="person", who="ada")
    return lambda: EffectStore(stores.database).settle(run, word)


async def entries_of_a_journal(stores: Stores) -> Write:
    run = await stores.claimed()
    return lambda: stores.checkpoints.record_journal(run, [some_entry(1), some_entry(2)], LogTail(Seq(2), [ENTRY]), NOW)


async def an_entry_of_a_journal_alone(stores: Stores) -> Write:
    run = await stores.claimed()
    return lambda: stores.checkpoints.record_journal(run, [some_entry(1)], LogTail(Seq(2), []), NOW)


async def answer_of_a_model_in_a_journal(stores: Stores) -> Write:
    run, accounts = await stores.claimed(), [Account("project", PROJECT, Limit(tokens=100))]
    spent = Spent(some_step(run), Usage(prompt_tokens=9), 1, accounts)
    entries, tail = [some_entry(1, kind="model")], LogTail(Seq(2), [ENTRY])
    return lambda: stores.checkpoints.record_journal(run, entries, tail, NOW, spent=spent)


async def a_journal_that_begins_anew(stores: Stores) -> Write:
    run = await stores.claimed()
    await stores.checkpoints.record_journal(run, [some_entry(1)], LogTail(Seq(2), [ENTRY]), NOW)
    tail, entries = LogTail(Seq(3), [ENTRY]), [some_entry(2, state="unknown", result=None)]
    return lambda: stores.checkpoints.record_journal(run, entries, tail, NOW, anew=True)


async def events_of_a_long_step(stores: Stores) -> Write:
    run = await stores.claimed()
    return lambda: stores.checkpoints.record_events(run, LogTail(Seq(2), [ENTRY, ENTRY]), NOW)


async def adoption(stores: Stores) -> Write:
    run = await stores.claim(await stores.claimed())
    return lambda: stores.checkpoints.adopt(run, [(Seq(2), ENTRY), (Seq(3), ENTRY)], NOW)


async def hand_over(stores: Stores) -> Write:
    run = await stores.claimed()
    return lambda: stores.checkpoints.hand_over(run, LogTail(Seq(2), [ENTRY]), NOW)


async def wait_for_a_child(stores: Stores) -> Write:
    run = await stores.claimed()
    child = await stores.submitted(**child_of(run))
    tail, until = LogTail(Seq(2), [ENTRY]), NOW + timedelta(hours=1)
    return lambda: stores.children.let_wait(run, tail, [SeenChild(child.id, False)], until=until, now=NOW)


async def child_that_is_late(stores: Stores) -> Write:
    child = await stores.submitted(**child_of(await stores.claimed()))
    return lambda: stores.children.stop_awaiting(child)


async def wait_for_an_ended_child(stores: Stores) -> Write:
    run = await stores.claimed()
    child = await stores.ended(**child_of(run))
    tail, until = LogTail(Seq(2), [ENTRY]), NOW + timedelta(hours=1)
    return lambda: stores.children.let_wait(run, tail, [SeenChild(child.id, False)], until=until, now=NOW)


def child_of(run: Run) -> dict[str, Any]:
    """The fields of a run that a call of this run has started."""
    parent = ParentCall(run_id=run.id, call_id="call-1", root_id=run.id, depth=1)
    return {"thread_id": ThreadId("another thread"), "options": RunOptions(parent=parent)}


async def new_fence(stores: Stores) -> Write:
    run = await stores.claimed()
    return lambda: stores.checkpoints.take_new_fence(run, LogTail(Seq(2), [ENTRY]), NOW)


async def delivery(stores: Stores) -> Write:
    run = await stores.claimed()
    await stores.inbox.inject(run, [said("one"), said("two")], "next")
    waiting = await stores.inbox.waiting(run.id)
    return lambda: stores.inbox.deliver(run, waiting, LogTail(Seq(2), [ENTRY]), NOW)


async def injection(stores: Stores) -> Write:
    run, given = await stores.claimed(), [said("one"), said("two")]
    return lambda: stores.inbox.inject(run, given, "next", keys=SOME_KEYS)


async def submission(stores: Stores) -> Write:
    run, given = some_run(), [said("hi")]
    return lambda: stores.runs.submit(run, given, keys=SOME_KEYS, refuse_if_busy=True, again=True)


async def submission_that_opens_a_conversation(stores: Stores) -> Write:
    new = some_conversation(ConversationId("conv-9"), name="tea")
    run, given = some_run(thread_id=ThreadId(new.id), conversation_id=new.id), [said("hi")]
    place = Place(opens=opening(new, AGENT, IDS.message()))
    return lambda: stores.runs.submit(run, given, keys=SOME_KEYS, again=True, place=place)


async def refused_submission(stores: Stores) -> Write:
    await stores.parked(WAITS)
    run, given = some_run(), [said("let me in")]
    refused = ending(RunTrigger.FAIL, run)
    return lambda: stores.settlements.store_refused(run, given, refused, again=True)


async def first_claim(stores: Stores) -> Write:
    before = await stores.claimed()
    await stores.inbox.inject(before, [said("for the next one")], "next")
    await stores.settle(before)
    run, owner = await stores.submitted(), IDS.claim()
    return lambda: stores.runs.claim(run.id, run.dispatch, owner, NOW)


async def later_claim(stores: Stores) -> Write:
    run, owner = await stores.claimed(), IDS.claim()
    return lambda: stores.runs.claim(run.id, run.dispatch, owner, NOW)


async def take_over(stores: Stores) -> Write:
    run, owner = await stores.claimed(), IDS.claim()
    return lambda: stores.runs.take_over(run, owner, NOW)


async def cancel_request(stores: Stores) -> Write:
    run = await stores.claimed()
    return lambda: stores.runs.request_cancel(run, CANCEL)


async def acknowledgement(stores: Stores) -> Write:
    run = await stores.claimed()
    await stores.runs.request_cancel(run, CANCEL)
    return lambda: stores.runs.acknowledge_cancel(run.id, run.fence, NOW)


async def completion(stores: Stores) -> Write:
    run = await stores.claimed(callback_url=URL)
    await stores.submitted()
    end = ending(
        RunTrigger.COMPLETE, run, tail=LogTail(Seq(2), [ENTRY]), messages=[answer("done")], step=some_step(run),
        unless_more_input=True,
    )  # fmt: skip
    return lambda: stores.settlements.settle(run, end)


async def failure_over_open_calls(stores: Stores) -> Write:
    run = await handed_over(stores, callback_url=URL)
    run = await stores.recorded(run, answer("", call("a"), call("b")), starting=[call("a")])
    tail = continued(run, ENTRY)
    end = run_end(RunTrigger.FAIL, error=RunError("llm_error", "no"), cause="model_error")
    settlement = ending(RunTrigger.FAIL, run, end=end, tail=tail, known_returns={"a": found("a")})
    return lambda: stores.settlements.settle(run, settlement)


async def rollback(stores: Stores) -> Write:
    run = await stores.recorded(await stores.claimed(), answer("", call("a")))
    return lambda: stores.settlements.settle(run, ending(RunTrigger.CANCEL, run, rollback=True))


async def cancel_before_it_began(stores: Stores) -> Write:
    run = await stores.submitted()
    return lambda: stores.settlements.settle(run, ending(RunTrigger.CANCEL, run))


async def cancel_of_a_parked_run(stores: Stores) -> Write:
    """As the API cancels: it does not know how far the log goes."""
    run = await handed_over(stores, callback_url=URL)
    asking = answer("may I?", WAITS)
    parking = checkpoint(run, asking, tail=continued(run))
    await stores.settlements.park(run, parking, [request_of(run, asking, WAITS)])
    parked = await stores.runs.look_up(run.id)
    settlement = ending(RunTrigger.CANCEL, parked, tail=LogTail(first_seq_of(Fence(1)), ()))
    return lambda: stores.settlements.settle(parked, settlement)


async def compaction(stores: Stores) -> Write:
    before = await stores.ended()
    [told] = await stores.messages.list_of_run(before)
    run = await stores.claimed()
    summary = Compaction(gone=[told.id], summary=message(Summary("They said hi.")))
    return lambda: stores.settlements.settle(run, ending(RunTrigger.COMPLETE, run, compaction=summary))


async def compaction_in_a_run(stores: Stores) -> Write:
    before = await stores.ended()
    [told] = await stores.messages.list_of_run(before)
    run = await handed_over(stores)
    summary = Compaction(gone=[told.id], summary=message(Summary("They said hi.")))
    tail, used = continued(run, ENTRY), Usage(prompt_tokens=7)
    return lambda: stores.checkpoints.compact(run, summary, tail, used, NOW)


async def rollback_of_a_compaction(stores: Stores) -> Write:
    before = await stores.ended()
    [told] = await stores.messages.list_of_run(before)
    run = await stores.claimed()
    summary = Compaction(gone=[told.id], summary=message(Summary("They said hi.")))
    await stores.checkpoints.compact(run, summary, LogTail(Seq(2), ()), Usage(), NOW)
    return lambda: stores.settlements.settle(run, ending(RunTrigger.CANCEL, run, rollback=True))


async def parking(stores: Stores) -> Write:
    run = await handed_over(stores, callback_url=URL)
    asking = answer("may I?", WAITS, call("b"))
    once = checkpoint(run, asking, tail=continued(run, ENTRY), step=some_step(run))
    asked = [request_of(run, asking, WAITS)]
    return lambda: stores.settlements.park(run, once, asked)


async def one_decision(stores: Stores) -> Write:
    [asked] = await stores.asked(await stores.parked(WAITS))
    return lambda: stores.decisions.decide(asked, approve("a"), by="ada", now=NOW)


async def all_decisions(stores: Stores) -> Write:
    await stores.parked(WAITS)
    continuation, given = some_run(), [decided(approve("a")), said("and then?")]
    return lambda: stores.decisions.decide_all(continuation, given, by="ada", again=True)


async def outcome_of_a_callback(stores: Stores) -> Write:
    await stores.ended(callback_url=URL)
    [due] = await stores.callbacks.claim_due(NOW)
    return lambda: stores.callbacks.record_attempt(due, now=NOW, status_code=503, error="busy", next_at=NOW)


async def conversation_with_a_name(stores: Stores) -> Write:
    made, store = some_conversation(ConversationId("conv-9"), name="tea"), ConversationStore(stores.database)
    return lambda: store.ensure(made, system_message_id=IDS.message())


RECOGNISED: dict[str, list[Callable[[Stores], Awaitable[Write]]]] = {
    "BudgetStore.reserve": [reservation],
    "CallbackStore.record_attempt": [outcome_of_a_callback],
    "CheckpointStore.adopt": [adoption],
    "CheckpointStore.compact": [compaction_in_a_run],
    "CheckpointStore.hand_over": [hand_over],
    "CheckpointStore.record": [checkpoint_of_an_answer, checkpoint_of_a_second_owner],
    "CheckpointStore.record_events": [events_of_a_long_step],
    "CheckpointStore.record_intents": [intents, intents_behind_a_result, a_second_start],
    "CheckpointStore.record_journal": [
        entries_of_a_journal,
        an_entry_of_a_journal_alone,
        answer_of_a_model_in_a_journal,
        a_journal_that_begins_anew,
    ],
    "CheckpointStore.record_results": [results_beside_calls],
    "CheckpointStore.record_settled_effect": [verdict_of_a_probe],
    "EffectStore.settle": [word_of_a_person],
    "ChildStore.stop_awaiting": [child_that_is_late],
    "ChildStore.let_wait": [wait_for_a_child, wait_for_an_ended_child],
    "CheckpointStore.take_new_fence": [new_fence],
    "DecisionStore.decide": [one_decision],
    "DecisionStore.decide_all": [all_decisions],
    "InboxStore.deliver": [delivery],
    "InboxStore.inject": [injection],
    "RunStore.acknowledge_cancel": [acknowledgement],
    "RunStore.claim": [first_claim, later_claim],
    "RunStore.request_cancel": [cancel_request],
    "RunStore.submit": [submission, submission_that_opens_a_conversation],
    "RunStore.take_over": [take_over],
    "SettlementStore.park": [parking],
    "SettlementStore.settle": [
        completion,
        failure_over_open_calls,
        rollback,
        rollback_of_a_compaction,
        cancel_before_it_began,
        cancel_of_a_parked_run,
        compaction,
    ],
    "SettlementStore.store_refused": [refused_submission],
}
"""Every write of a run's life, with the states that it is made in."""

BESIDE_RUNS = {"ConversationStore.ensure": [conversation_with_a_name]}
"""Writes of other stores that a request repeats."""

NOT_REPEATED = {
    **dict.fromkeys(("BudgetStore.prune", "RetentionStore.prune"), "the next round prunes what is left"),
    **dict.fromkeys(
        ("CallbackStore.retry", "WebhookDeliveryStore.retry", "StepStore.give_feedback"),
        "a person asks again, and it is so again",
    ),
    **dict.fromkeys(
        ("CallbackStore.claim_due", "WebhookDeliveryStore.claim_due"),
        "what was claimed is due again when the claim is over",
    ),
    "CallbackStore.postpone": "a callback that was not put off is claimed again when its claim is over",
    "ChildStore.wake": "a repetition gives the woken run another dispatch, as `test_children.py` has it",
    "ChildStore.wake_forgotten": "a wake that nobody heard of left a run without a job, which a sweep finds",
    **dict.fromkeys(
        ("WebhookEndpointStore.create", "WebhookEndpointStore.update", "WebhookEndpointStore.delete"),
        "an operator, and no run, writes the endpoints of a project",
    ),
    "EndpointSecretStore.replace": "secrets that were not encrypted anew are found by the next round",
    "RunListing.delete": "a client that deletes again is told that there is no such run",
    "RunStore.dispatch_again": "a dispatch that nobody heard of is made again by the next sweep",
}
"""The others, and why nobody repeats them."""


def stored_writes() -> Iterator[str]:
    """The public methods of the stores of runs that open a transaction to write."""
    for module in pkgutil.iter_modules(shared.sql.runs.__path__, f"{shared.sql.runs.__name__}."):
        for _, store in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if store.__module__ != module.name:
                continue
            for name, method in inspect.getmembers(store, inspect.isfunction):
                if not name.startswith("_") and f".{Database.write.__name__}(" in inspect.getsource(method):
                    yield f"{store.__name__}.{name}"


def test_every_write_of_a_run_is_shown_to_be_recognised_or_says_why_nobody_repeats_it() -> None:
    assert set(stored_writes()) == RECOGNISED.keys() | NOT_REPEATED.keys()
    assert not RECOGNISED.keys() & NOT_REPEATED.keys()


async def all_rows(stores: Stores) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table, but for the numbers of dispatches: the run that is next may be dispatched twice."""
    async with stores.database.read() as connection:
        tables = {
            table.name: (await connection.execute(sa.select(table).order_by(*table.primary_key))).mappings().all()
            for table in metadata.sorted_tables
            if table.name != "passage_words"  # on SQLite it is FTS5's; no run writes it
        }
    left_out = runs.c.dispatch.name
    return {name: [{key: row[key] for key in row if key != left_out} for row in rows] for name, rows in tables.items()}


def result_of(returned: object) -> object:
    """What a write has given, but for whether it was new and for the number of the next dispatch."""
    match returned:
        case Submitted():
            return returned.run
        case Settled():
            return (returned.run, returned.tail, None if returned.next is None else returned.next.run_id)
        case Dispatch():
            return returned.run_id
        case _:
            return returned


@pytest.mark.parametrize("lost", [1, 2], ids=["once", "twice"])
@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(way, id=f"{name}-{way.__name__}")
        for name, ways in {**RECOGNISED, **BESIDE_RUNS}.items()
        for way in ways
    ],
)
async def test_a_write_whose_answer_was_lost_is_recognised_when_repeated(
    stores: Stores, prepare: Callable[[Stores], Awaitable[Write]], lost: int
) -> None:
    write = await prepare(stores)
    before = await all_rows(stores)
    first, stored = result_of(await write()), await all_rows(stores)
    assert stored != before
    for _ in range(lost):
        assert result_of(await write()) == first
        assert await all_rows(stores) == stored


async def test_a_settlement_whose_answer_was_lost_is_recognised_when_repeated(stores: Stores) -> None:
    """The worker took the refusal of its second try for the end of its run by somebody else, and neither sent the end
    of the stream nor dispatched the next run of the thread."""
    write = await completion(stores)
    await write()
    again = await write()
    assert isinstance(again, Settled)
    log = await stores.events.read(again.run.id, Seq(1))
    assert [is_end(entry) for _, entry in log] == [False] * (len(log) - 1) + [True]
    assert again.tail == LogTail(Seq(2), [entry for _, entry in log])
    assert again.next is not None
    following = await stores.runs.claim(again.next.run_id, again.next.number, IDS.claim(), NOW)
    assert following is not None, "nobody waits for the sweeper"


async def test_a_cancel_of_a_parked_run_whose_answer_was_lost_sends_nothing_when_repeated(stores: Stores) -> None:
    """It gave the whole log as what Redis should get, numbered without its jump from one owner to the next."""
    write = await cancel_of_a_parked_run(stores)
    for _ in range(2):
        settled = await write()
        assert isinstance(settled, Settled)
        assert list(settled.tail.entries) == []


async def test_a_parking_whose_answer_was_lost_is_not_taken_for_somebody_elses(stores: Stores) -> None:
    """A second try was refused, and the stream of a run that waits for a person never ended."""
    write = await parking(stores)
    await write()
    tail = await write()
    assert isinstance(tail, LogTail)
    assert [is_end(entry) for entry in tail.entries] == [False] * (len(tail.entries) - 1) + [True]
    assert len(await stores.approvals.waiting_on_thread(PROJECT, THREAD)) == 1
