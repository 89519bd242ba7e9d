"""An old and a new release on one database, as during an upgrade: words that this release does not know are read
without harm, and what they stand for is kept as it was."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from shared.domain.errors import CancelMode, CancelRequested
from shared.domain.events import Ended, Stopped, StopReason, TextChunk, Unknown, decode, encode
from shared.domain.ids import MessageId, RunId, Seq, StepId
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.log_writer import LogTail, unbroken
from shared.domain.messages import NewMessage
from shared.domain.runs import RunOptions, Step
from shared.domain.settling import ShownStep
from shared.sql.run_tables import approvals, injected_messages, run_inputs, runs, steps
from shared.sql.tables import messages
from tests.kit.runs.definitions import NOW, PROJECT
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
    stored_runs,
    texts_of,
)

WAITS = call("a", needs_approval=True)
HOLOGRAM = b'{"type":"hologram","at":5,"depth":[1,2]}'
"""An event of a type that we do not have."""
NEWER_TEXT = b'{"type":"text","at":6,"version":2,"pieces":[{"text":"so"}]}'
"""An event of a type that we have, in a version that we do not have."""


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


async def with_unknown_mode(stores: Stores, run_id: RunId) -> None:
    await stores.runs.request_cancel(await stores.runs.look_up(run_id), CANCEL)
    async with stores.database.write() as connection:
        await connection.execute(sa.update(runs).where(runs.c.id == run_id).values(cancel_mode="gracefully"))


async def test_a_cancel_mode_of_a_newer_release_stops_the_run(stores: Stores) -> None:
    run = await stores.claimed()
    await with_unknown_mode(stores, run.id)
    cancel = (await stores.runs.look_up(run.id)).cancel
    assert cancel is not None
    assert cancel.mode is CancelMode.INTERRUPT
    assert await stores.runs.cancels_among([run.id]) == {run.id: CancelMode.INTERRUPT}
    with pytest.raises(CancelRequested) as asked:
        await stores.park(run, WAITS)
    assert asked.value.mode is CancelMode.INTERRUPT
    assert (await stores.settle(run, RunTrigger.CANCEL)).run.status is RunStatus.CANCELLED


async def test_a_cancel_mode_of_a_newer_release_stays_as_it_was_asked_for(stores: Stores) -> None:
    run = await stores.submitted()
    await with_unknown_mode(stores, run.id)
    await stores.runs.request_cancel(run, CANCEL)
    assert [found.id for found in await stores.listing.cancelled_but_unclaimed()] == [run.id]
    async with stores.database.read() as connection:
        found = await connection.execute(sa.select(runs.c.cancel_mode).where(runs.c.id == run.id))
        assert found.scalar_one() == "gracefully"


async def test_events_of_a_newer_release_are_kept_and_passed_over(stores: Stores) -> None:
    """An adoption decoded the whole log, and failed on the first word that it did not know: the run could neither go on
    nor end."""
    first = await stores.claimed()
    shown = encode(TextChunk(4, StepId("step-1"), MessageId("message-1"), "known"))
    log = [HOLOGRAM, NEWER_TEXT, shown]
    await stores.checkpoints.record_events(first, LogTail(Seq(2), log[:1]), NOW)
    run = await stores.claim(first)
    await stores.checkpoints.adopt(run, [(Seq(3), NEWER_TEXT), (Seq(4), shown)], NOW)
    entries = await stores.events.read(run.id, Seq(1))
    assert [entry for _, entry in entries] == log
    assert unbroken(Seq(1), entries) == entries
    assert [decode(entry) for entry in log[:2]] == [Unknown(5), Unknown(6)]
    assert ShownStep(decode(entry) for _, entry in entries).text == "known"
    settled = await stores.settle(await stores.runs.look_up(run.id), RunTrigger.FAIL)
    stored = await stores.events.read(run.id, Seq(1))
    assert [entry for _, entry in stored][:3] == log
    assert isinstance(decode(stored[-1][1]), Ended)
    assert stored[-1][0] == settled.run.last_seq


async def add_field(stores: Stores, column: sa.Column[Any]) -> None:
    """Has every document of a column say something that this release does not know."""
    table, [key] = column.table, column.table.primary_key
    async with stores.database.write() as connection:
        rows = (await connection.execute(sa.select(key, column).where(column.is_not(None)))).all()
        assert rows, f"{column} has no rows to read"
        for number, text in rows:
            document: dict[str, Any] | list[dict[str, Any]] = json.loads(text)
            for part in document if isinstance(document, list) else [document]:
                part["mood"] = {"since": 1}
            newer = {column: json.dumps(document)}
            await connection.execute(sa.update(table).where(key == number).values(newer))


async def test_fields_of_a_newer_release_are_passed_over(stores: Stores) -> None:
    """Documents are read whole, and each of them may have grown."""
    run = await stores.submitted(said("one"))
    await add_field(stores, run_inputs.c.input)
    run = await stores.claim(run)
    await stores.inbox.inject(run, [said("psst")], "next")
    await add_field(stores, injected_messages.c.message)
    assert [type(told) for told in await stores.delivered(run)] == [NewMessage]
    step = Step(id=IDS.step(), run_id=run.id, agent_id=AGENT.id, number=1, model="builtin/echo", created_at=NOW)
    run = await stores.runs.look_up(run.id)
    await stores.checkpoints.record(run, checkpoint(run, answer("so"), step=step))
    run = await stores.park(await stores.runs.look_up(run.id), WAITS)
    await stores.decide(approve("a"))
    for column in (runs.c.options, runs.c.usage, steps.c.document, messages.c.body, approvals.c.decision):
        await add_field(stores, column)
    known = await stores.runs.look_up(run.id)
    assert (known.options, known.usage) == (run.options, run.usage)
    assert await stores.steps.get(PROJECT, step.id) == step
    assert texts_of(await stores.messages.context(PROJECT, THREAD)) == ["one", "psst", "so", "may I?"]
    assert [one.decision for one in await stores.asked(run)] == [approve("a")]


def test_rows_and_logs_have_the_words_that_they_had() -> None:
    """The names in the code are the domain's; a database of an earlier version is read, and written, as before."""
    options = RunOptions(shown_types=["text"], echoed={"max_steps": 3}, item_events=True)
    stored = {"include_return_message_types": ["text"], "request_config": {"max_steps": 3}, "item_events": True}
    assert msgspec.json.decode(msgspec.json.encode(options)) == stored
    assert msgspec.json.decode(b"{}", type=RunOptions) == RunOptions()
    assert RunOptions().run_type == "send_message"
    assert encode(Stopped(1, StopReason.ANSWERED)) == b'{"type":"stop","at":1,"reason":"end_turn"}'
