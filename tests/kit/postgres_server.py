"""A Postgres server on which tests make databases of their own."""

import asyncio
import itertools
import os
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

CONNECT_S = 5


class PostgresServer:
    """Makes databases on the server of `admin_url` and drops them again.

    Synchronous, each statement on a thread with a loop of its own: the calling thread's event loop is the test's.
    """

    def __init__(self, admin_url: str) -> None:
        self._admin = make_url(admin_url)
        self._prefix = f"holdfast_test_{os.getpid()}"
        self._numbers = itertools.count(1)

    def check(self) -> None:
        """Raises `OSError` or `SQLAlchemyError` when the server does not answer or does not let us in."""
        self._execute("SELECT 1")

    def create_database(self, template: str | None = None) -> str:
        """The URL of a new database: an empty one, or a copy of the one whose URL is `template`."""
        name = f"{self._prefix}_{next(self._numbers)}"
        copied = f' TEMPLATE "{make_url(template).database}"' if template else ""
        self._execute(f'CREATE DATABASE "{name}"{copied}')
        return self._admin.set(database=name).render_as_string(hide_password=False)

    def drop_database(self, url: str) -> None:
        """Drop it, and with it any connection that a test has left open."""
        self._execute(f'DROP DATABASE IF EXISTS "{make_url(url).database}" WITH (FORCE)')

    def cut_connections(self, url: str) -> None:
        """Ends every connection to that database, as a server does that is restarted."""
        name = make_url(url).database
        self._execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")  # noqa: S608 - our own name

    def _execute(self, statement: str) -> None:
        with ThreadPoolExecutor(max_workers=1) as thread:
            thread.submit(asyncio.run, _execute(self._admin, statement)).result()


async def _execute(url: URL, statement: str) -> None:
    engine = create_async_engine(
        url.set(drivername="postgresql+asyncpg"),
        poolclass=NullPool,
        isolation_level="AUTOCOMMIT",  # CREATE DATABASE refuses to run in a transaction
        connect_args={"timeout": CONNECT_S},
    )
    async with engine.connect() as connection:
        await connection.execute(sa.text(statement))
    await engine.dispose()
