"""Two transactions that need the same rows take them in one order. Otherwise Postgres ends one of them as a deadlock,
and its caller gets a 503."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from shared.domain.errors import NotFound, Unavailable
from shared.domain.ids import AgentId, ConversationId, ThreadId
from shared.domain.lifecycle import RunTrigger
from shared.domain.runs import SubmissionKeys
from shared.sql import tables
from shared.sql.archival.archives import ArchiveStore
from shared.sql.archival.passages import PassageStore, VectorStore
from shared.sql.connection import Connection
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.conversations import ConversationStore
from shared.sql.run_tables import approvals
from shared.sql.runs.rows import store_keys
from tests.kit.archival import new_passage
from tests.kit.runs.definitions import NOW, PROJECT
from tests.kit.runs.stored_runs import (
    AGENT,
    CANCEL,
    IDS,
    THREAD,
    Stores,
    call,
    callback_of,
    said,
    second_process,
    some_conversation,
    some_run,
    stored_runs,
)
from tests.kit.wait_until import wait_until

WAITERS = sa.text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


@pytest.fixture
async def stores(postgres_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(postgres_url) as stores:
        yield stores


@asynccontextmanager
async def holding(stores: Stores, *rows: sa.Select[Any]) -> AsyncGenerator[None]:
    """Locks rows for the block, so that a transaction which has some of its own locks waits for the rest."""
    async with second_process(stores) as other, other.database.write() as connection:
        for row in rows:
            await connection.execute(row.with_for_update())
        yield


@asynccontextmanager
async def undone(stores: Stores) -> AsyncGenerator[Connection]:
    """Yields a transaction that is rolled back after the block."""
    async with second_process(stores) as other:
        with suppress(NotFound):
            async with other.database.write() as connection:
                yield connection
                raise NotFound("rolls back")


async def waiting(stores: Stores, work: Coroutine[Any, Any, Any], number: int) -> "asyncio.Task[Any]":
    """Starts the work. Returns its task once this number of transactions wait for locks."""
    task = asyncio.create_task(work, name=f"transaction {number}")

    async def all_wait() -> bool:
        async with stores.database.read() as connection:
            return (await connection.execute(WAITERS)).scalar_one() == number

    await wait_until(all_wait, description=f"{number} transactions to wait")
    return task


async def test_a_client_that_deleted_its_run_when_the_callback_came_was_refused(stores: Stores) -> None:
    """The outcome of the callback locked the callback before the run."""
    parked = await stores.parked(call("a", needs_approval=True), callback_url="http://127.0.0.1/called")
    await stores.runs.request_cancel(parked, CANCEL)
    await stores.settle(parked, RunTrigger.CANCEL)
    async with holding(stores, sa.select(approvals.c.id)):
        deletion = await waiting(stores, stores.listing.delete(PROJECT, parked.id), 1)
        attempt = stores.callbacks.record_attempt(
            callback_of(parked), now=NOW, status_code=200, error=None, next_at=None
        )
        outcome = await waiting(stores, attempt, 2)
    await deletion
    await outcome


async def test_deletions_of_an_agent_and_its_conversation_refused_each_other(stores: Stores) -> None:
    """The one locked the runs before the conversation, the other the conversation before the runs."""
    conversations, conversation_id = ConversationStore(stores.database), ConversationId("conv-2")
    await conversations.create(some_conversation(conversation_id, name="x"), system_message_id=IDS.message())
    await stores.ended(thread_id=ThreadId(conversation_id), conversation_id=conversation_id)
    async with holding(stores, sa.select(tables.messages.c.id)):
        of_agent = await waiting(stores, AgentEditor(stores.database).delete(PROJECT, AGENT.id), 1)
        of_conversation = await waiting(stores, conversations.delete(PROJECT, conversation_id), 2)
    await of_agent
    with pytest.raises(NotFound):
        await of_conversation


async def test_a_conversation_that_was_created_while_its_agent_was_deleted_stayed(stores: Stores) -> None:
    conversations, conversation_id = ConversationStore(stores.database), ConversationId("conv-2")
    await stores.ended()
    async with holding(stores, sa.select(tables.messages.c.id)):
        deletion = await waiting(stores, AgentEditor(stores.database).delete(PROJECT, AGENT.id), 1)
        await conversations.create(some_conversation(conversation_id, name="x"), system_message_id=IDS.message())
    await deletion
    async with stores.database.read() as connection:
        assert (await connection.execute(sa.select(tables.conversations.c.id))).all() == []


async def test_a_passage_that_was_deleted_while_its_vector_was_stored_left_the_vector(stores: Stores) -> None:
    passages, passage, archive_id = PassageStore(stores.database), new_passage("a fact"), IDS.archive()
    await passages.insert_for_agent(PROJECT, AGENT.id, passage, new_archive_id=archive_id, now=NOW)
    async with stores.database.write() as connection:
        await connection.execute(sa.update(tables.passages).values(embed_at=NOW))
    vector = {"model": "m", "dimensions": 1, "signs": b"", "vector": [1.0]}
    async with undone(stores) as connection:
        number = sa.select(tables.passages.c.number).scalar_subquery()
        await connection.execute(sa.insert(tables.passage_vectors).values(number=number, **vector))
        stored = await waiting(stores, VectorStore(stores.database).record("m", [(passage.id, [1.0])]), 1)
        deletion = await waiting(stores, passages.delete_from_agent(PROJECT, AGENT.id, passage.id), 2)
    await stored
    await deletion
    async with stores.database.read() as connection:
        assert (await connection.execute(sa.select(tables.passage_vectors.c.number))).all() == []


async def test_deletions_of_an_agent_and_its_archive_refused_each_other(stores: Stores) -> None:
    """Each remembered the archive's place in lists. The agent's did so before it had the archive."""
    archive_id = IDS.archive()
    passages, passage = PassageStore(stores.database), new_passage("a fact")
    await passages.insert_for_agent(PROJECT, AGENT.id, passage, new_archive_id=archive_id, now=NOW)
    async with holding(stores, sa.select(tables.archives.c.id)):
        of_archive = await waiting(stores, ArchiveStore(stores.database).delete(PROJECT, archive_id), 1)
        of_agent = await waiting(stores, AgentEditor(stores.database).delete(PROJECT, AGENT.id), 2)
    await of_archive
    await of_agent


async def test_an_archive_that_another_agent_attached_meanwhile_was_deleted_with_its_agent(stores: Stores) -> None:
    """Two agents have the archive once the deletion of the first one gets it."""
    archive_id, other = IDS.archive(), replace(AGENT, id=AgentId("agent-2"), name="other")
    passages, archives = PassageStore(stores.database), ArchiveStore(stores.database)
    await passages.insert_for_agent(PROJECT, AGENT.id, new_passage("a fact"), new_archive_id=archive_id, now=NOW)
    await AgentEditor(stores.database).create(other, system_message_id=IDS.message())
    async with holding(stores, sa.select(tables.archives.c.id)):
        attached = await waiting(stores, archives.attach(PROJECT, other.id, archive_id), 1)
        deletion = await waiting(stores, AgentEditor(stores.database).delete(PROJECT, AGENT.id), 2)
    await attached
    await deletion
    async with stores.database.read() as connection:
        left = (await connection.execute(sa.select(tables.archives.c.id))).scalars().all()
    assert left == [archive_id]


async def test_an_agent_that_was_deleted_while_it_got_its_archive_refused_the_other(stores: Stores) -> None:
    """The attachment locked the agent before the archive, and the deletion the archive before the agent."""
    archive_id = IDS.archive()
    passages, archives = PassageStore(stores.database), ArchiveStore(stores.database)
    await passages.insert_for_agent(PROJECT, AGENT.id, new_passage("a fact"), new_archive_id=archive_id, now=NOW)
    async with holding(stores, sa.select(tables.archives.c.id)):
        deletion = await waiting(stores, AgentEditor(stores.database).delete(PROJECT, AGENT.id), 1)
        attached = await waiting(stores, archives.attach(PROJECT, AGENT.id, archive_id), 2)
    await deletion
    with pytest.raises(NotFound):
        await attached


@pytest.mark.parametrize("way", ["injected", "submitted"])
async def test_messages_that_came_twice_at_once_under_one_name_were_an_internal_error(stores: Stores, way: str) -> None:
    """An injection looks for the name under the lock of its run, and a submission under that of the thread."""
    run, messages, keys = await stores.claimed(), [said("more")], SubmissionKeys(names=["name"], content="more")

    async def send() -> bool:
        if way == "injected":
            return await stores.inbox.inject(run, messages, "next", keys=keys)
        return (await stores.runs.submit(some_run(), messages, keys=keys)).is_new

    async with second_process(stores) as other, other.database.write() as connection:
        store_keys(connection, THREAD, run.id, keys)
        await connection.flush()
        second = await waiting(stores, send(), 1)
    with pytest.raises(Unavailable, match="at this moment"):
        await second
    assert await send() is False
