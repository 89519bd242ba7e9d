"""The inputs that a store brings to the conformance suite.

A guest adapts one store to the calls of the suite. `StoreGuest` is for a store whose rows clients create and list, and
`ChangingGuest` for one whose rows they also change and delete.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

import sqlalchemy as sa
from msgspec.structs import replace

from shared.domain.ids import IdMaker, ProjectId
from shared.sql.engine import Database
from shared.sql.paging import Page
from shared.sql.run_tables import runs
from tests.kit.runs.definitions import NOW, PROJECT

LATER = NOW + timedelta(minutes=1)
BY_CREATION = "created_at"
EVERYTHING = Page(limit=1000, ascending=True)


@dataclass(frozen=True)
class Order:
    """The ids of a list in both directions of one of its sorts."""

    ascending: Sequence[str]
    descending: Sequence[str]


Change = Callable[[Any], Any]


class StoreGuest(ABC):
    """A store whose rows clients create, read and list. A guest replaces the calls that its store has otherwise."""

    store: ClassVar[type]
    """The class of `shared.sql` that the cases test."""
    table: ClassVar[sa.Table]
    """The table of the rows."""
    text_field: ClassVar[str] = "name"
    """A field with a free text."""
    has_document: ClassVar[bool] = True
    """Whether the table stores most fields as JSON in `document`."""
    is_paged: ClassVar[bool] = True
    """Whether `list` takes a page. Otherwise it returns all rows, the oldest first."""
    sorts: ClassVar[Sequence[str]] = (BY_CREATION,)
    """The sorts of a paged list."""
    most: ClassVar[int | None] = None
    """The limit for the rows of a project; None for no limit."""
    unique_field: ClassVar[str | None] = None
    """The field whose value only one row of a project has."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.ids = IdMaker()
        self.rows: Any = self.store(database)

    @abstractmethod
    async def make(self, number: int, project_id: ProjectId = PROJECT) -> Any:
        """Returns a new value that is not stored yet. Values with different numbers are accepted beside each other."""

    async def create(self, noun: Any) -> Any:
        """Stores the value. Returns it as stored."""
        return await self.rows.create(noun)

    async def get(self, project_id: ProjectId, noun_id: str) -> Any:
        """Returns a stored value."""
        return await self.rows.get(project_id, noun_id)

    async def list(self, project_id: ProjectId, page: Page = EVERYTHING, order: str = BY_CREATION) -> Sequence[Any]:
        """Returns a page of the project's values in one of the sorts."""
        assert order == BY_CREATION
        return await self.rows.list(project_id, page)

    async def count(self, project_id: ProjectId) -> int:
        """Returns the number of the project's values."""
        return await self.rows.count(project_id) if hasattr(self.rows, "count") else len(await self.list(project_id))

    async def arrange(self, order: str, nouns: Sequence[Any]) -> Order:
        """Changes stored values, which it gets oldest first, so that the sort has another order than their creation.
        Called for each of the sorts except the time of creation."""
        raise AssertionError(f"{order} is no sort of these")

    async def created(self, how_many: int, project_id: ProjectId = PROJECT) -> Sequence[Any]:
        """Returns stored values, oldest first."""
        return [await self.create(await self.make(number, project_id)) for number in range(how_many)]

    def worded(self, noun: Any, text: str) -> Any:
        """Returns the value with this text."""
        return replace(noun, **{self.text_field: text})


class ChangingGuest(StoreGuest):
    """A store that also changes and deletes rows."""

    counts_changes: ClassVar[bool] = False
    """Whether a change increments the value's `version`, a repeated one as well."""
    sees_no_change: ClassVar[bool] = False
    """Whether a change that changes nothing leaves `updated_at` as it was."""
    takes_fields: ClassVar[bool] = False
    """Whether the store takes new values of fields instead of a function, so that the last of two changes wins."""

    async def update(self, project_id: ProjectId, noun_id: str, change: Change, now: datetime) -> Any:
        """Changes a stored value. Returns it as stored."""
        return await self.rows.update(project_id, noun_id, change, now)

    async def delete(self, project_id: ProjectId, noun_id: str) -> None:
        """Deletes a stored value."""
        await self.rows.delete(project_id, noun_id)

    def with_word(self, noun: Any, word: str) -> Any:
        """Returns the value with one more word in its text."""
        return self.worded(noun, f"{getattr(noun, self.text_field) or ''} {word}")


def filled(table: sa.Table) -> dict[str, object]:
    """Returns a value for each column that needs one."""
    values: dict[type, object] = {str: "created", int: 7, bool: False, bytes: b""}
    return {
        column.key: NOW if column.name.endswith("_at") else values[column.type.python_type]
        for column in table.c
        if not column.nullable and column.autoincrement is not True
    }


async def order_by_runs(guest: StoreGuest, owner: sa.Column[str], nouns: Sequence[Any]) -> Order:
    """Gives the third and then the first value a run that has ended. The others come last in both directions."""
    first, second, third, *others = [noun.id for noun in nouns]
    rest = [second, *others]
    for minutes, noun_id in enumerate([third, first], start=1):
        at = NOW + timedelta(minutes=minutes)
        links: dict[str, object] = {"agent_id": "another", "thread_id": "another", owner.key: noun_id}
        values = {"id": guest.ids.run(), "created_at": at, "completed_at": at, "project_id": PROJECT, "turn": 1}
        ended = {"status": "completed"}
        async with guest.database.write() as connection:
            await connection.execute(sa.insert(runs).values(filled(runs) | values | links | ended))
    return Order([third, first, *rest], [first, third, *reversed(rest)])
