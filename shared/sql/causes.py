"""Translates a database's errors into one sentence that says why it does not serve and who must act.

The sentences reach clients as well, so none of them names an address, a role or a value. The command line adds those.
"""

import os
import sqlite3
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from shared.domain.errors import HoldfastError, InvalidRequest, Unavailable, Unusable

_SILENT = "the database does not answer; try again"
_FULL = "the disk of the database is full"

_POOLED = Unusable(
    "a pooler before the database gives each transaction another session, and the statements that were prepared in "
    "one are missing in the next: let it pool sessions (docs/operations/postgres.md)"
)

_SQLSTATES: Mapping[str, Unavailable] = {
    "26000": _POOLED,
    "42P05": _POOLED,
    "28": Unusable("the database refuses the role or its password"),
    "3D": Unusable("the server of the database has no database of this name; `createdb` makes one"),
    "53100": Unavailable(_FULL),
    "53300": Unavailable(
        "the database has no connection left: give it a larger `max_connections`, or every process a smaller "
        "HOLDFAST_DATABASE_CONNECTIONS"
    ),
}
"""The errors by a whole SQLSTATE, or by its class (the first two characters)."""

_SQLITE: Mapping[str, Unavailable] = {
    "SQLITE_FULL": Unavailable(_FULL),
    "SQLITE_CANTOPEN": Unusable(
        "the database's file cannot be opened; it must be a file in a folder that this process may write"
    ),
    "SQLITE_READONLY": Unusable("the database's file or its folder may not be written"),
    "SQLITE_NOTADB": Unusable("the database's file is not a SQLite database; name another file"),
    "SQLITE_CORRUPT": Unusable("the database's file is damaged; restore a back-up (docs/operations/back-up.md)"),
}
"""The errors by the name of a primary error; `SQLITE_CANTOPEN_ISDIR` belongs to `SQLITE_CANTOPEN`."""


DATABASE_ERRORS = (DBAPIError, PoolTimeout, OSError, UnicodeEncodeError)
"""The errors that a statement may raise. A failed connect, DNS lookup or route is an OSError, because the driver does
not wrap it."""

_AWAY = ("08", "40", "53", "57", "26000", "42P05")
"""SQLSTATEs or their classes: connection lost, transaction aborted, out of resources and shutting down are temporary;
the last two mean that a prepared statement is missing or exists already."""
_DATA = "22"
"""The SQLSTATE class of values that the database cannot store, such as a NUL in a text."""


def as_ours(error: BaseException) -> HoldfastError | None:
    """Returns the domain error for a database's error; None if the error shows a defect in our code.

    The database's own text may hold statements and values. So it goes to the log with the cause, never into our
    message.
    """
    if isinstance(error, UnicodeEncodeError):
        return _unstorable()
    if not isinstance(error, DBAPIError) or isinstance(error, (OperationalError, InterfaceError)):
        return unavailable(error)
    # asyncpg's errors have their SQLSTATE, and SQLAlchemy has its own classes for few of them.
    state = str(getattr(error.orig, "sqlstate", None))
    if error.connection_invalidated or state.startswith(_AWAY) or is_damaged(error):
        return unavailable(error)
    return _unstorable() if state.startswith(_DATA) else None


@asynccontextmanager
async def database_answers() -> AsyncGenerator[None]:
    """Turns the errors of the database into domain errors."""
    try:
        yield
    except DATABASE_ERRORS as error:
        ours = as_ours(error)
        if ours is None:
            raise
        raise ours from error


def unavailable(error: BaseException) -> Unavailable:
    """Returns the domain error for an error that means that no statement can be executed now."""
    if isinstance(error, PoolTimeout):
        return Unavailable("every connection to the database is in use (HOLDFAST_DATABASE_CONNECTIONS); try again")
    known = _known(error.orig if isinstance(error, DBAPIError) else error)
    # A new one each time: a raised error collects a traceback.
    return type(known)(known.message) if known else Unavailable(_SILENT)


def check_file(file: Path) -> None:
    """Raises `Unusable` if the path cannot be a SQLite database. The driver works on its own thread, which would still
    report the error after the process has ended."""
    if not file.exists():
        if not os.access(file.parent, os.W_OK | os.X_OK):
            raise Unusable(_SQLITE["SQLITE_CANTOPEN"].message)
        return
    try:
        with closing(sqlite3.connect(file, timeout=0)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        known = _known(error)
        if isinstance(known, Unusable):
            raise Unusable(known.message) from error


def is_damaged(error: DBAPIError) -> bool:
    """Whether the error means that the file is not a database or is damaged. SQLite's driver has no exception class for
    that."""
    return isinstance(_known(error.orig), Unusable)


def _unstorable() -> InvalidRequest:
    return InvalidRequest("A text contains a NUL or half a surrogate pair, which cannot be stored: remove it")


def _known(said: BaseException | None) -> Unavailable | None:
    if isinstance(said, sqlite3.Error):
        name = str(getattr(said, "sqlite_errorname", ""))
        return _SQLITE.get("_".join(name.split("_")[:2]))
    # asyncpg's errors have their SQLSTATE, and SQLAlchemy has its own classes for few of them.
    state = str(getattr(said, "sqlstate", None))
    return _SQLSTATES.get(state) or _SQLSTATES.get(state[:2])
