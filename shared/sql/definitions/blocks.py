"""Memory blocks. A change of a block changes the instructions of every agent that has it, in the same transaction."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec.structs import replace

from shared.crash_points import CrashPoint
from shared.domain.agents import Block
from shared.domain.errors import Conflict, NotFound
from shared.domain.ids import AgentId, ArchiveId, BlockId, ProjectId
from shared.domain.memory import EditedMemory, RefusedEdit
from shared.domain.messages import ToolCall, ToolReturn
from shared.domain.runs import Run
from shared.domain.searches import NewPassage
from shared.sql.access.audit import record
from shared.sql.archival.passages import insert_for_agent
from shared.sql.connection import Connection
from shared.sql.definitions.agent_changes import render_agents, render_agents_of
from shared.sql.definitions.agents import (
    block_of,
    block_values,
    blocks_of_agents,
    definitions_lock,
    load_agent,
    load_blocks,
)
from shared.sql.definitions.groups import share_blocks
from shared.sql.engine import Store
from shared.sql.paging import Page, contains, count_rows, field_of_document, remember_place, rows_of_page
from shared.sql.portable import PositionOf
from shared.sql.runs.checkpoints import EditedBlock, FinishedEdit, finish_intent, finished_edit
from shared.sql.runs.rows import lock_owned
from shared.sql.tables import agent_blocks, agent_tags, agents, blocks, from_json, made_of, to_json


class BlockFilter(msgspec.Struct, frozen=True):
    """Which blocks of a project a list shows. All given conditions must hold."""

    label: str | None = None
    agent_id: AgentId | None = None
    label_search: str | None = None
    description_search: str | None = None
    value_search: str | None = None
    """Parts of the texts, in any case."""
    tags: Sequence[str] = ()
    match_all_tags: bool = False
    """If true, a block must have all of the tags; otherwise one of them."""
    agents_more_than: int | None = None
    agents_less_than: int | None = None
    agents_exactly: Sequence[int] | None = None
    """The number of agents that have the block must be one of these."""


class BlockStore(Store):
    """Reads and writes memory blocks."""

    async def create(self, block: Block) -> Block:
        """Stores a block that no agent has yet."""
        async with self._database.write() as connection:
            await connection.execute(sa.insert(blocks).values(block_values(block)))
        return block

    async def get(self, project_id: ProjectId, block_id: BlockId) -> Block:
        """One block of this project. Raises `NotFound`."""
        async with self._database.read() as connection:
            [block] = await load_blocks(connection, project_id, [block_id])
            return block

    async def list(self, project_id: ProjectId, wanted: BlockFilter, page: Page) -> list[Block]:
        """A page of the project's blocks."""
        async with self._database.read() as connection:
            conditions = _conditions(wanted)
            rows = await rows_of_page(connection, blocks, project_id, page, *conditions)
            return await made_of(rows, block_of, "document")

    async def count(self, project_id: ProjectId) -> int:
        """Returns the number of the project's blocks."""
        async with self._database.read() as connection:
            return await count_rows(connection, blocks, project_id)

    async def for_agent(self, project_id: ProjectId, agent_id: AgentId) -> Sequence[Block]:
        """The agent's blocks, in the order in which they were attached. Raises `NotFound`."""
        async with self._database.read() as connection:
            await load_agent(connection, project_id, agent_id)
            return (await blocks_of_agents(connection, [agent_id]))[agent_id]

    async def with_label(self, project_id: ProjectId, agent_id: AgentId, label: str) -> Block:
        """The agent's block of this label. Raises `NotFound`."""
        of_agent = await self.for_agent(project_id, agent_id)
        found = next((block for block in of_agent if block.label == label), None)
        if found is None:
            raise NotFound(f"Agent {agent_id} has no memory block labelled {label!r}")
        return found

    async def update(
        self, project_id: ProjectId, block_id: BlockId, change: Callable[[Block], Block], now: datetime
    ) -> Block:
        """Changes the stored block and the instructions of its agents in one transaction.

        `change` must be quick and pure. Raises `NotFound`, and `Conflict` if an agent would have two blocks of its
        label.
        """
        async with self._database.write(None, definitions_lock(project_id)) as connection:
            [before] = await load_blocks(connection, project_id, [block_id])
            block = replace(change(before), updated_at=now, version=before.version + 1)
            await connection.execute(sa.update(blocks).where(blocks.c.id == block_id).values(block_values(block)))
            await render_agents_of(connection, block_id)
            return block

    async def delete(self, project_id: ProjectId, block_id: BlockId) -> None:
        """Deletes a block and takes it from all agents. Raises `NotFound`."""
        async with self._database.write(None, definitions_lock(project_id)) as connection:
            await load_blocks(connection, project_id, [block_id])
            await remember_place(connection, blocks, block_id)
            await connection.execute(sa.delete(blocks).where(blocks.c.id == block_id))
            await render_agents_of(connection, block_id)
            await connection.execute(sa.delete(agent_blocks).where(agent_blocks.c.block_id == block_id))
            await record(connection, project_id, "block.deleted", block_id)


def _conditions(wanted: BlockFilter) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if wanted.label is not None:
        conditions.append(blocks.c.label == wanted.label)
    if wanted.label_search:
        conditions.append(contains(blocks.c.label, wanted.label_search))
    for name, text in (("description", wanted.description_search), ("value", wanted.value_search)):
        if text:
            field = field_of_document(blocks, name)
            conditions.append(contains(field.as_string(), text))
    if wanted.agent_id is not None:
        linked = sa.select(agent_blocks.c.block_id).where(agent_blocks.c.agent_id == wanted.agent_id)
        conditions.append(blocks.c.id.in_(linked))
    if wanted.tags:
        tags = field_of_document(blocks, "tags").as_string()
        # Unlike LIKE, these are sensitive to case on both databases.
        has = [PositionOf(tags, to_json(tag)) > 0 for tag in wanted.tags]
        conditions.append(sa.and_(*has) if wanted.match_all_tags else sa.or_(*has))
    return [*conditions, *_by_number_of_agents(wanted)]


def _by_number_of_agents(wanted: BlockFilter) -> Iterator[sa.ColumnElement[bool]]:
    having = sa.select(sa.func.count()).where(agent_blocks.c.block_id == blocks.c.id).scalar_subquery()
    if wanted.agents_more_than is not None:
        yield having > wanted.agents_more_than
    if wanted.agents_less_than is not None:
        yield having < wanted.agents_less_than
    if wanted.agents_exactly is not None:
        yield having.in_(wanted.agents_exactly)


# An agent's memory as a run sees it and edits it: its blocks, the edits of its memory tools, and the passages that its
# tools store.
#
# An edit is one transaction. It is computed from the blocks as the transaction sees them, and its result is stored with
# them, in the row that records the call's start. So it happens once: if the answer to the commit or the worker was lost
# and the call is repeated, the repetition gets the stored result.


Edit = Callable[[Sequence[Block]], EditedMemory]


class MemoryStore(Store):
    """Reads and edits the memory of running agents."""

    async def edit(self, run: Run, call: ToolCall, edit: Edit, now: datetime) -> FinishedEdit:
        """Applies the edit of a call, or returns the stored result if it was applied before.

        `edit` must be quick and pure. Changes nothing if it raises `RefusedEdit`, or `StaleFence` because the run has a
        new owner.
        """
        # All transactions lock in this order: the deletion of an agent locks the project's definitions and then the
        # agent's runs.
        async with self._database.write(CrashPoint.EDIT_MEMORY, definitions_lock(run.project_id)) as connection:
            await lock_owned(connection, run.id, run.fence)
            done = await finished_edit(connection, run.id, call.id)
            if done is not None:
                return done
            edited = edit((await blocks_of_agents(connection, [run.agent_id]))[run.agent_id])
            try:
                await _store(connection, run.agent_id, edited, now)
            except Conflict as error:
                raise RefusedEdit(error.message) from error
            result = ToolReturn(tool_call_id=call.id, tool_name=call.name, status="success", text=edited.text)
            finished = FinishedEdit(result, [EditedBlock(before.id, before.version) for before in edited.changed])
            await finish_intent(connection, run.id, finished, now)
            return finished

    async def remember(
        self, run: Run, call: ToolCall, passage: NewPassage, *, new_archive_id: ArchiveId, now: datetime
    ) -> ToolReturn:
        """Stores the passage of a call in the agent's archive, unless it is stored. Returns the result for the model.

        The worker's maintenance computes its vector later. Raises `StaleFence` if the run has a new owner.
        """
        async with self._database.write(CrashPoint.REMEMBER, definitions_lock(run.project_id)) as connection:
            await lock_owned(connection, run.id, run.fence)
            done = await finished_edit(connection, run.id, call.id)
            if done is not None:
                return done.result
            await insert_for_agent(
                connection, run.project_id, run.agent_id, passage, new_archive_id=new_archive_id, now=now
            )
            result = ToolReturn(
                tool_call_id=call.id, tool_name=call.name, status="success", text=f"Stored as {passage.id}."
            )
            await finish_intent(connection, run.id, FinishedEdit(result), now)
            return result


async def _store(connection: Connection, agent_id: AgentId, edited: EditedMemory, now: datetime) -> None:
    """Stores the result of an edit, and the instructions of every agent that it changes. Raises `Conflict` (labels)."""
    if edited.detached:
        is_link = sa.and_(agent_blocks.c.agent_id == agent_id, agent_blocks.c.block_id.in_(edited.detached))
        await connection.execute(sa.delete(agent_blocks).where(is_link))
    for block in edited.changed:
        changed = replace(block, updated_at=now, version=block.version + 1)
        await connection.execute(sa.update(blocks).where(blocks.c.id == changed.id).values(block_values(changed)))
    for block in edited.made:
        await connection.execute(sa.insert(blocks).values(block_values(block)))
        await connection.execute(sa.insert(agent_blocks).values(agent_id=agent_id, block_id=block.id))
    sleepers = await share_blocks(connection, agent_id, edited.made)
    # This check comes after all writes, because two blocks may share a label between two writes.
    for block in edited.changed:
        await render_agents_of(connection, block.id)
    if edited.made or edited.detached:
        await render_agents(connection, [agent_id, *sleepers])


# The tags of a project: those of its agents and of its blocks.


class TagStore(Store):
    """Reads tags."""

    async def list(self, project_id: ProjectId, page: Page, text: str | None = None) -> list[str]:
        """A page of the tags by name, each once; its cursors are tags. With `text`, only tags that contain it."""
        tags = await self._all(project_id)
        if text:
            tags = {tag for tag in tags if text.casefold() in tag.casefold()}
        if page.after is not None:
            tags = {tag for tag in tags if (tag > page.after if page.ascending else tag < page.after)}
        if page.before is not None:
            tags = {tag for tag in tags if (tag < page.before if page.ascending else tag > page.before)}
        return sorted(tags, reverse=not page.ascending)[: page.limit]

    async def _all(self, project_id: ProjectId) -> set[str]:
        of_agents = sa.select(agent_tags.c.tag).join(agents, agents.c.id == agent_tags.c.agent_id)
        # Few blocks have tags, so the query reads only the documents of those.
        has_tags = sa.not_(blocks.c.document.contains('"tags":[]'))
        async with self._database.read() as connection:
            found = await connection.execute(of_agents.where(agents.c.project_id == project_id).distinct())
            tags = set(found.scalars())
            tagged = await connection.execute(
                sa.select(blocks.c.document).where(blocks.c.project_id == project_id, has_tags)
            )
            for document in tagged.scalars():
                block = from_json(document, dict[str, Any])
                tags.update(block.get("tags") or ())
        return tags
