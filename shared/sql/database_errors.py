"""The one place where the database's errors become ours. What is a fault of the code is left as it is."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from shared.domain.errors import HoldfastError, InvalidRequest, Unavailable

DATABASE_ERRORS = (DBAPIError, PoolTimeout, ConnectionError, TimeoutError, UnicodeEncodeError)
"""What a statement may raise. A connection that cannot be made is a child of OSError: the driver does not wrap it."""

_AWAY = ("08", "40", "53", "57")
"""Classes of SQLSTATE: connection lost, transaction given up, out of resources, shutting down. All pass."""
_DATA = "22"
"""The class of values that cannot be stored, such as a NUL in a text."""


def as_ours(error: BaseException) -> HoldfastError | None:
    """The error of the domain that a database's error means; None where it means that the code is wrong.

    The database's own text may hold statements and values: it goes to the log with the cause, never into ours.
    """
    if isinstance(error, UnicodeEncodeError):
        return _unstorable()
    if not isinstance(error, DBAPIError) or isinstance(error, (OperationalError, InterfaceError)):
        return Unavailable("the database does not answer; try again")
    # asyncpg's errors carry their SQLSTATE, and SQLAlchemy gives few of them a class of their own.
    state = str(getattr(error.orig, "sqlstate", None))
    if error.connection_invalidated or state.startswith(_AWAY):
        return Unavailable("the database does not answer; try again")
    return _unstorable() if state.startswith(_DATA) else None


@asynccontextmanager
async def database_answers() -> AsyncGenerator[None]:
    """Raises the errors of the database as ours."""
    try:
        yield
    except DATABASE_ERRORS as error:
        ours = as_ours(error)
        if ours is None:
            raise
        raise ours from error


def _unstorable() -> InvalidRequest:
    return InvalidRequest("A text contains what cannot be stored, a NUL or half a surrogate pair: remove it")
