"""Steps, as clients read them: by id, by run or by agent; and what people think of them.

A worker writes a step's document again and again. What people think has columns of its own, which it never touches.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import RowMapping
from sqlalchemy.dialects import postgresql, sqlite

from shared.domain.errors import NotFound
from shared.domain.ids import AgentId, ProjectId, RunId, StepId
from shared.domain.runs import Feedback, Run, Step
from shared.sql.connection import Connection
from shared.sql.engine import Database
from shared.sql.paging import Page, field_of_document, made_of, rows_of_page
from shared.sql.run_tables import steps
from shared.sql.tables import EPOCH, document_of, from_json, to_json

MOST_OF_A_RUN = 10_000

_COLUMNS = (steps.c.document, steps.c.feedback, steps.c.tags)

_HAS_OPINION = steps.c.feedback.is_not(None) | steps.c.tags.is_not(None)
"""As `ix_steps_opinions` says it: a database uses a partial index only for a condition that says the same."""


class StepFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which steps to list. None: no condition."""

    run_id: RunId | None = None
    agent_id: AgentId | None = None
    model: str | None = None
    """With its provider, or without."""
    since: datetime | None = None
    until: datetime | None = None
    feedback: Feedback | None = None
    has_feedback: bool | None = None
    tags: list[str] | None = None
    """One of these is enough."""


def _upsert_of(insert: Callable[[sa.Table], Any]) -> sa.Executable:
    stored = insert(steps)
    return stored.on_conflict_do_update(index_elements=[steps.c.id], set_={"document": stored.excluded.document})


_UPSERT_STEP = {"sqlite": _upsert_of(sqlite.insert), "postgresql": _upsert_of(postgresql.insert)}


def upsert_step(connection: Connection, run: Run, step: Step) -> None:
    """Stores a step, or its new state; deferred."""
    connection.defer(
        _UPSERT_STEP[connection.dialect.name],
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


class StepStore:
    """Reads steps, and stores what people think of them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, project_id: ProjectId, step_id: StepId) -> Step:
        """One step of this project. Raises `NotFound`."""
        is_it = (steps.c.id == step_id, steps.c.project_id == project_id)
        async with self._database.read() as connection:
            row = (await connection.execute(sa.select(*_COLUMNS).where(*is_it))).mappings().one_or_none()
        if row is None:
            raise _not_found(step_id)
        return _step_of(row)

    async def of_run(self, run: Run) -> list[Step]:
        """The run's steps, in order, without what people think of them; the first ten thousand."""
        query = sa.select(steps.c.document).where(steps.c.run_id == run.id).order_by(steps.c.number)
        async with self._database.read() as connection:
            found = await connection.execute(query.limit(MOST_OF_A_RUN))
            return await made_of(found.mappings().all(), _timed_step_of, "document")

    async def list(self, project_id: ProjectId, page: Page, wanted: StepFilter) -> list[Step]:
        """A page of the project's steps, or of those of a run or an agent."""
        conditions = _conditions(wanted, is_sqlite=self._database.is_sqlite)
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
        """Stores what a person thinks of a step, in place of what was stored. Raises `NotFound`, and `InvalidRequest`
        for a tag that cannot be stored."""
        is_it = (steps.c.id == step_id, steps.c.project_id == project_id)
        values = {"feedback": feedback, "tags": document_of({"tags": tags}) if tags else None}
        async with self._database.write() as connection:
            changed = await connection.execute(sa.update(steps).where(*is_it).values(values).returning(*_COLUMNS))
            row = changed.mappings().one_or_none()
        if row is None:
            raise _not_found(step_id)
        return _step_of(row)


def _conditions(wanted: StepFilter, *, is_sqlite: bool) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if wanted.run_id is not None:
        conditions.append(steps.c.run_id == wanted.run_id)
    if wanted.agent_id is not None:
        conditions.append(steps.c.agent_id == wanted.agent_id)
    if wanted.model is not None:
        model = field_of_document(steps, "model", is_sqlite=is_sqlite).as_string()
        conditions.append((model == wanted.model) | model.endswith(f"/{wanted.model}", autoescape=True))
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
        # LIKE does not know small letters from great ones on SQLite.
        place_of = sa.func.instr if is_sqlite else sa.func.strpos
        conditions.append(sa.or_(*(place_of(steps.c.tags, to_json(tag)) > 0 for tag in wanted.tags)))
    return conditions


def first_token(run_id: RunId, step: Step | None, shown_at: int) -> dict[str, Any]:
    """The run's column for the first piece of an answer, as far as it is known; what is written first stays.

    The step has the times of the worker that finished it. An earlier worker may have shown a piece before: `shown_at`,
    in Unix milliseconds, 0 for none. The step with which a continuation begins is that of the parked run, whose model
    had answered before this run was there.
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
