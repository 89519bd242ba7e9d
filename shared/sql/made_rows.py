"""Nouns that are made of rows. Of many rows, or of long ones, they are made on a thread: nobody else waits for that."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from sqlalchemy import RowMapping

from shared.concurrency import beside

Noun = TypeVar("Noun")

CHARACTERS_OF_A_ROW = 500
"""As many characters of JSON are read in the time that a row takes without its long columns."""


async def made_of(rows: Sequence[RowMapping], make: Callable[[RowMapping], Noun], long_column: str) -> list[Noun]:
    """What `make` makes of each row, in order. The long column holds what takes longest to read."""
    size = sum(CHARACTERS_OF_A_ROW + len(row[long_column] or "") for row in rows)
    return await beside(partial(_made, rows, make), size)


def _made(rows: Sequence[RowMapping], make: Callable[[RowMapping], Noun]) -> list[Noun]:
    return [make(row) for row in rows]
