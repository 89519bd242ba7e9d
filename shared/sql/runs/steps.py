"""Stores steps, people's feedback on them, and the events of runs. Clients read steps by id, by run or by agent.

A worker rewrites a step's document many times. Feedback has separate columns, which no worker writes. A run's log lies
in compressed blocks, which stay as long as the run.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import RowMapping

from shared.concurrency import beside
from shared.domain.errors import NotFound
from shared.domain.ids import AgentId, ProjectId, RunId, Seq, StepId
from shared.domain.log_writer import Entries, LogTail, consecutive
from shared.domain.runs import Feedback, Run, Step
from shared.sql.connection import Connection
from shared.sql.engine import Store
from shared.sql.paging import Page, field_of_document, rows_of_page
from shared.sql.portable import PositionOf
from shared.sql.run_tables import event_blocks, steps
from shared.sql.tables import EPOCH, document_of, from_json, made_of, to_json

MOST_OF_A_RUN = 10_000

_COLUMNS = (steps.c.document, steps.c.feedback, steps.c.tags)

_HAS_OPINION = steps.c.feedback.is_not(None) | steps.c.tags.is_not(None)
"""The condition of `ix_steps_opinions`: a database uses a partial index only for the same condition."""


class StepFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which steps to list. None: no condition."""

    run_id: RunId | None = None
    agent_id: AgentId | None = None
    model: str | None = None
    """The name of a model, with or without its provider."""
    since: datetime | None = None
    until: datetime | None = None
    feedback: Feedback | None = None
    has_feedback: bool | None = None
    tags: list[str] | None = None
    """A step must have at least one of these."""


@cache
def _upsert_of(insert: Callable[[sa.Table], Any]) -> sa.Executable:
    stored = insert(steps)
    return stored.on_conflict_do_update(index_elements=[steps.c.id], set_={"document": stored.excluded.document})


def upsert_step(connection: Connection, run: Run, step: Step) -> None:
    """Stores a step, or its new state. The write is deferred."""
    connection.defer(
        _upsert_of(connection.insert),
        {
            "id": step.id,
            "project_id": run.project_id,
            "run_id": run.id,
            "agent_id": run.agent_id,
            "number": step.number,
            "document": to_json(step),
            "created_at": step.created_at,
        },
    )


class StepStore(Store):
    """Reads steps, and stores people's feedback on them."""

    async def get(self, project_id: ProjectId, step_id: StepId) -> Step:
        """One step of this project. Raises `NotFound`."""
        is_it = (steps.c.id == step_id, steps.c.project_id == project_id)
        async with self._database.read() as connection:
            row = (await connection.execute(sa.select(*_COLUMNS).where(*is_it))).mappings().one_or_none()
        if row is None:
            raise _not_found(step_id)
        return _step_of(row)

    async def of_run(self, run: Run) -> list[Step]:
        """Returns the run's steps in order, without feedback: the first ten thousand."""
        query = sa.select(steps.c.document).where(steps.c.run_id == run.id).order_by(steps.c.number)
        async with self._database.read() as connection:
            found = await connection.execute(query.limit(MOST_OF_A_RUN))
            return await made_of(found.mappings().all(), _timed_step_of, "document")

    async def list(self, project_id: ProjectId, page: Page, wanted: StepFilter) -> list[Step]:
        """Returns a page of the steps of a project, a run or an agent."""
        conditions = _conditions(wanted)
        if wanted.run_id is not None:
            keys = [steps.c.number, steps.c.id]
        else:
            keys = [steps.c.created_at, steps.c.number, steps.c.id]
        async with self._database.read() as connection:
            rows = await rows_of_page(connection, steps, project_id, page, *conditions, columns=_COLUMNS, keys=keys)
            return await made_of(rows, _step_of, "document")

    async def give_feedback(
        self, project_id: ProjectId, step_id: StepId, *, feedback: Feedback | None, tags: Sequence[str]
    ) -> Step:
        """Stores a person's feedback on a step, in place of earlier feedback. Raises `NotFound`, and `InvalidRequest`
        for a tag that cannot be stored."""
        is_it = (steps.c.id == step_id, steps.c.project_id == project_id)
        values = {"feedback": feedback, "tags": document_of({"tags": tags}) if tags else None}
        async with self._database.write() as connection:
            changed = await connection.execute(sa.update(steps).where(*is_it).values(values).returning(*_COLUMNS))
            row = changed.mappings().one_or_none()
        if row is None:
            raise _not_found(step_id)
        return _step_of(row)


def _conditions(wanted: StepFilter) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if wanted.run_id is not None:
        conditions.append(steps.c.run_id == wanted.run_id)
    if wanted.agent_id is not None:
        conditions.append(steps.c.agent_id == wanted.agent_id)
    if wanted.model is not None:
        model = field_of_document(steps, "model").as_string()
        is_it = (model == wanted.model) | model.endswith(f"/{wanted.model}", autoescape=True)
        # Most documents need not be parsed: they do not have the name at all.
        has_name = PositionOf(steps.c.document, to_json(wanted.model)[1:]) > 0
        conditions.append(sa.case((has_name, is_it), else_=sa.false()))
    if wanted.since is not None:
        conditions.append(steps.c.created_at >= wanted.since)
    if wanted.until is not None:
        conditions.append(steps.c.created_at <= wanted.until)
    if wanted.feedback is not None or wanted.has_feedback or wanted.tags:
        conditions.append(_HAS_OPINION)
    if wanted.feedback is not None:
        conditions.append(steps.c.feedback == wanted.feedback)
    if wanted.has_feedback is not None:
        is_none = steps.c.feedback.is_(None)
        conditions.append(~is_none if wanted.has_feedback else is_none)
    if wanted.tags:
        conditions.append(sa.or_(*(PositionOf(steps.c.tags, to_json(tag)) > 0 for tag in wanted.tags)))
    return conditions


def first_token(run_id: RunId, step: Step | None, shown_at: int) -> dict[str, Any]:
    """Returns the run's column for the time of the first piece of its answer, if that is known. The column keeps its
    first value.

    The step has the times of the worker that finished it. An earlier worker may have shown a piece before: `shown_at`
    is that time in Unix milliseconds, 0 if there was none. A continuation begins with the step of the parked run, whose
    model had answered before the continuation existed.
    """
    came_at = 0 if step is None or step.run_id != run_id else step.timing.first_token_at
    known = [at for at in (came_at, shown_at) if at]
    return {"first_token_at": EPOCH + timedelta(milliseconds=min(known))} if known else {}


class _Tags(msgspec.Struct):
    tags: list[str]


def _step_of(row: RowMapping) -> Step:
    tags = [] if row["tags"] is None else from_json(row["tags"], _Tags).tags
    return msgspec.structs.replace(from_json(row["document"], Step), feedback=row["feedback"], tags=tags)


def _timed_step_of(row: RowMapping) -> Step:
    return from_json(row["document"], Step)


def _not_found(step_id: StepId) -> NotFound:
    return NotFound(f"Step {step_id} not found")


BLOCK_ENTRIES = 1000
"""The limit for a block, in entries: a read of the middle of a long log unpacks no more than this."""

BLOCK_BYTES = 1_000_000
"""The limit for the entries of a block, in bytes, unless one entry alone is longer."""

TIMES_SMALLER = 10
"""The approximate ratio of a log's size to the size of its compressed blocks."""

BLOCKS_AT_ONCE = 64
FIRST_BLOCKS = 4
"""The number of blocks of the first read. A page needs one or two blocks of a long log, and many blocks of a log with
short steps."""

SMALL_BYTES = 1 << 12

SMALL_BLOCK = 100
SMALL_BLOCK_BYTES = 50_000
"""A block with fewer entries and fewer compressed bytes than these is small."""
WORTH_MERGING = 8
"""If a run has at least this many small blocks at its end, they are merged."""


async def insert_events(connection: Connection, run_id: RunId, tail: LogTail) -> None:
    """Stores entries. The writes are deferred. The caller has locked the run's row, and has left out the entries that
    SQL has."""
    connection.defer(_INSERT_BLOCKS, *await packed_blocks(run_id, tail))


async def packed_blocks(run_id: RunId, tail: LogTail) -> list[dict[str, Any]]:
    """Like `blocks_of`, but compresses many bytes on a thread."""
    return await beside(partial(blocks_of, run_id, tail), sum(map(len, tail.entries)))


def blocks_of(run_id: RunId, tail: LogTail) -> list[dict[str, Any]]:
    """Returns the rows for these entries."""
    return [
        {
            "run_id": run_id,
            "first_seq": tail.first + start,
            "last_seq": tail.first + end - 1,
            "data": _packed(tail.entries[start:end]),
        }
        for start, end in _parts(tail.entries)
    ]


def _parts(entries: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Returns where the entries of each block begin and end."""
    start = size = 0
    for place, entry in enumerate(entries):
        size += len(entry)
        if place > start and (place - start == BLOCK_ENTRIES or size > BLOCK_BYTES):
            yield start, place
            start, size = place, len(entry)
    if entries:
        yield start, len(entries)


_INSERT_BLOCKS = sa.insert(event_blocks)


def _is_small(run_id: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    size = event_blocks.c.last_seq - event_blocks.c.first_seq + 1
    is_short = sa.func.length(event_blocks.c.data) < SMALL_BLOCK_BYTES
    return sa.and_(event_blocks.c.run_id == run_id, size < SMALL_BLOCK, is_short)


def count_small_blocks() -> sa.ScalarSelect[int]:
    """Counts the small blocks of the run that the parameter `run_id` names."""
    is_small = _is_small(sa.bindparam("run_id", type_=sa.Text))
    return sa.select(sa.func.count()).select_from(event_blocks).where(is_small).scalar_subquery()


async def merge_small_blocks(connection: Connection, run_id: RunId, known: int) -> None:
    """Merges the small blocks of an ended run if their number, `known`, is at least `WORTH_MERGING`: each of them costs
    a row, and short blocks compress badly."""
    if known < WORTH_MERGING:
        return
    is_small = _is_small(sa.literal(run_id))
    found = await connection.execute(
        sa.select(event_blocks.c.first_seq, event_blocks.c.data).where(is_small).order_by(event_blocks.c.first_seq)
    )
    blocks = found.all()
    entries = await beside(partial(_all_of, blocks, Seq(0)), TIMES_SMALLER * sum(len(row.data) for row in blocks))
    await connection.execute(sa.delete(event_blocks).where(is_small))
    for tail in consecutive(entries):
        await insert_events(connection, run_id, tail)


_BLOCKS = (
    sa.select(event_blocks.c.first_seq, event_blocks.c.data)
    .where(event_blocks.c.run_id == sa.bindparam("run_id"))
    .order_by(event_blocks.c.first_seq)
    .limit(sa.bindparam("at_once"))
)
# Built once: to build the statement takes longer than to read a page.
_BLOCKS_AROUND = _BLOCKS.where(
    event_blocks.c.first_seq
    >= sa.func.coalesce(
        sa.select(sa.func.max(event_blocks.c.first_seq))
        .where(event_blocks.c.run_id == sa.bindparam("run_id"), event_blocks.c.first_seq <= sa.bindparam("seq"))
        .scalar_subquery(),
        0,
    )
)
_BLOCKS_BEHIND = _BLOCKS.where(event_blocks.c.first_seq > sa.bindparam("seq"))


async def read_events(connection: Connection, run_id: RunId, after: Seq, limit: int | None = None) -> Entries:
    """Returns the first `limit` entries after a cursor, or all of them, in order; empty if SQL has none. With a limit,
    stops early once the entries have as many bytes as a block may have."""
    entries: Entries = []
    wanted, seq = _BLOCKS_AROUND, after + 1
    at_once = BLOCKS_AT_ONCE if limit is None else FIRST_BLOCKS
    while True:
        found = await connection.execute(wanted, {"run_id": run_id, "seq": seq, "at_once": at_once})
        blocks = found.all()
        room = None if limit is None else limit - len(entries)
        packed = sum(len(row.data) for row in blocks)
        entries += await beside(partial(_all_of, blocks, after, room), TIMES_SMALLER * packed)
        if limit is not None and (len(entries) >= limit or _bytes_of(entries) >= BLOCK_BYTES):
            return entries[:limit]
        if len(blocks) < at_once:
            return entries
        wanted, seq, at_once = _BLOCKS_BEHIND, blocks[-1].first_seq, BLOCKS_AT_ONCE


def _all_of(blocks: Iterable[Any], after: Seq, most: int | None = None) -> Entries:
    """Returns the entries of these blocks after a cursor. With `most`, stops at that number or at the bytes of a full
    block; the last block may add a few more."""
    entries: Entries = []
    for row in blocks:
        entries += [item for item in _unpacked(row.first_seq, row.data) if item[0] > after]
        if most is not None and (len(entries) >= most or _bytes_of(entries) >= BLOCK_BYTES):
            break
    return entries


def _bytes_of(entries: Entries) -> int:
    return sum(len(entry) for _, entry in entries)


def _packed(entries: Sequence[bytes]) -> bytes:
    data = b"\n".join(entries)
    # zlib first clears a quarter of a megabyte, unless the window fits a short input.
    window, memory = (10, 1) if len(data) < SMALL_BYTES else (15, 8)
    packer = zlib.compressobj(1, zlib.DEFLATED, window, memory)
    return packer.compress(data) + packer.flush()


def _unpacked(first: int, data: bytes) -> Entries:
    return [(Seq(seq), entry) for seq, entry in enumerate(zlib.decompress(data).split(b"\n"), start=first)]


class EventStore(Store):
    """Reads logs from SQL."""

    async def read(self, run_id: RunId, after: Seq, limit: int | None = BLOCK_ENTRIES) -> Entries:
        """Returns the first `limit` entries after a cursor (None: all of them), in order; empty if SQL has none. A page
        of long entries is shorter than the limit."""
        async with self._database.read() as connection:
            return await read_events(connection, run_id, after, limit)
