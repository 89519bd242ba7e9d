"""What a database says about itself reaches those who can do something about it."""

import sqlite3

import pytest
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from shared.domain.errors import Unavailable, Unusable
from shared.sql.engine import as_ours


def postgres_error(state: str) -> DBAPIError:
    class Said(Exception):
        sqlstate = state

    return DBAPIError("SELECT 1", None, Said("with a value in it"))


def sqlite_error(kind: type[sqlite3.Error], name: str) -> DBAPIError:
    said = kind("with a value in it")
    said.sqlite_errorname = name
    wrapping = OperationalError if kind is sqlite3.OperationalError else DBAPIError
    return wrapping("SELECT 1", None, said)


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (postgres_error("53100"), Unavailable, "the disk of the database is full"),
        (sqlite_error(sqlite3.OperationalError, "SQLITE_FULL"), Unavailable, "the disk of the database is full"),
        (postgres_error("53300"), Unavailable, "no connection left"),
        (postgres_error("25006"), Unavailable, "refuses writes: its server is a standby"),
        (postgres_error("55P03"), Unavailable, "`lock_timeout`"),
        (postgres_error("57014"), Unavailable, "`statement_timeout`"),
        (postgres_error("40P01"), Unavailable, "deadlock"),
        (postgres_error("58030"), Unavailable, "does not answer; try again"),
        (PoolTimeout(), Unavailable, "HOLDFAST_DATABASE_CONNECTIONS"),
        (postgres_error("28P01"), Unusable, "refuses the role or its password"),
        (postgres_error("26000"), Unusable, "let it pool sessions"),
        (postgres_error("42P05"), Unusable, "let it pool sessions"),
        (postgres_error("3D000"), Unusable, "no database of this name"),
        (sqlite_error(sqlite3.OperationalError, "SQLITE_READONLY_DBMOVED"), Unusable, "may not be written"),
        (sqlite_error(sqlite3.OperationalError, "SQLITE_CANTOPEN_ISDIR"), Unusable, "cannot be opened"),
        (sqlite_error(sqlite3.DatabaseError, "SQLITE_CORRUPT_INDEX"), Unusable, "damaged"),
        (postgres_error("57P03"), Unavailable, "does not answer; try again"),
        (sqlite_error(sqlite3.OperationalError, "SQLITE_BUSY"), Unavailable, "does not answer; try again"),
        (OSError(113, "No route to host"), Unavailable, "does not answer; try again"),
    ],
    ids=str,
)
def test_a_full_disk_and_a_lack_of_connections_are_not_said_to_be_silence(
    error: BaseException, kind: type[Unavailable], said: str
) -> None:
    ours = as_ours(error)
    assert type(ours) is kind
    assert said in str(ours)
    assert "value" not in str(ours)


def test_a_statement_that_is_wrong_is_a_fault_of_ours() -> None:
    assert as_ours(postgres_error("42601")) is None
    assert as_ours(sqlite_error(sqlite3.IntegrityError, "SQLITE_CONSTRAINT")) is None
