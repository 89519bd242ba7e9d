"""Connections that die are replaced, and a busy process does not ask before every use whether they have."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
import sqlalchemy as sa

from shared.domain.errors import Unavailable
from shared.sql.engine import Database
from tests.kit.services.databases import open_database
from tests.kit.stream_server import stream_server
from tests.kit.wait_until import after


@asynccontextmanager
async def one_connection(url: str, *, trusted_s: float) -> AsyncGenerator[Database]:
    database = Database(url, connections=1, trusted_s=trusted_s)
    yield database
    await database.aclose()


async def backend_of(database: Database) -> int:
    async with database.read() as connection:
        return (await connection.execute(sa.select(sa.func.pg_backend_pid()))).scalar_one()


async def end_backend(url: str, backend: int) -> None:
    async with one_connection(url, trusted_s=0) as other, other.read() as connection:
        ended = await connection.execute(sa.select(sa.func.pg_terminate_backend(backend, 5000)))
        assert ended.scalar_one()


async def test_a_connection_that_died_while_nobody_used_it_is_replaced_unnoticed(postgres_url: str) -> None:
    async with one_connection(postgres_url, trusted_s=0) as database:
        first = await backend_of(database)
        await end_backend(postgres_url, first)
        assert await backend_of(database) != first


async def test_a_connection_that_died_between_two_uses_fails_at_most_once(postgres_url: str) -> None:
    """Not at all when the process has heard by then that the server closed it."""
    async with one_connection(postgres_url, trusted_s=60) as database:
        first = await backend_of(database)
        await end_backend(postgres_url, first)
        with suppress(Unavailable):
            assert await backend_of(database) != first
        assert await backend_of(database) != first


async def test_a_connection_that_the_driver_had_closed_hid_why_its_transaction_ended(postgres_url: str) -> None:
    """A request that the server's shutdown cancelled was answered as an error of the server."""
    async with one_connection(postgres_url, trusted_s=60) as database:
        with pytest.raises(asyncio.CancelledError):
            async with database.write() as connection:
                driver: Any = (await connection.get_raw_connection()).driver_connection
                driver.terminate()
                raise asyncio.CancelledError
        await database.greet()


async def test_a_failover_left_processes_at_the_standby_and_each_write_was_an_error_of_the_server(
    postgres_url: str,
) -> None:
    """A standby serves its connections as before, but refuses writes: the next connection may find the primary."""
    async with one_connection(postgres_url, trusted_s=60) as database:
        async with database.read() as connection:
            await connection.execute(sa.text("SET default_transaction_read_only = on"))
        first = await backend_of(database)
        with pytest.raises(Unavailable, match="refuses writes"):
            async with database.write() as connection:
                await connection.execute(sa.text("CREATE TABLE of_the_primary ()"))
        assert await backend_of(database) != first
        async with database.write() as connection:
            await connection.execute(sa.text("CREATE TEMPORARY TABLE of_the_primary ()"))


async def test_after_a_failover_each_connection_of_the_pool_refused_a_write(postgres_url: str) -> None:
    """Each was replaced only after its own first write had failed."""
    write = sa.text("CREATE TEMPORARY TABLE of_the_primary ()")
    async with open_database(postgres_url) as database, AsyncExitStack() as in_use:
        for _ in range(3):
            connection = await in_use.enter_async_context(database.read())
            await connection.execute(sa.text("SET default_transaction_read_only = on"))
        await in_use.aclose()
        with pytest.raises(Unavailable, match="refuses writes"):
            async with database.write() as connection:
                await connection.execute(write)
        for _ in range(3):
            connection = await in_use.enter_async_context(database.write())
            await connection.execute(write)


async def test_a_check_of_health_kept_the_connection_to_the_standby(postgres_url: str) -> None:
    async with one_connection(postgres_url, trusted_s=60) as database:
        await database.try_writing()
        first = await backend_of(database)
        async with database.read() as connection:
            await connection.execute(sa.text("SET default_transaction_read_only = on"))
        with pytest.raises(Unavailable, match="refuses writes"):
            await database.try_writing()
        assert await backend_of(database) != first
        await database.try_writing()


async def test_a_query_of_no_rows_was_compiled_for_a_tenth_of_a_second(postgres_url: str) -> None:
    """The cost that the planner expects of a table with a policy grows with the table."""
    async with one_connection(postgres_url, trusted_s=60) as database, database.read() as connection:
        assert (await connection.execute(sa.text("SHOW jit"))).scalar_one() == "off"


TURNS = 50
"""Of the event loop, in each of which it takes all that has arrived: more than the end of a connection needs. By itself
the driver closes such a connection seconds later."""


class HeldAfterConnect:
    """Stands before Postgres, and keeps back what a client says once it is connected."""

    def __init__(self, host: str, port: int) -> None:
        self._place = (host, port)
        self.is_connected = asyncio.Event()
        self.is_closed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(*self._place)
        answers = asyncio.create_task(self._pass_on(server_reader, writer), name="answers of Postgres")
        is_held = False
        try:
            while data := await reader.read(65536):
                is_held = is_held or b"SET jit" in data
                if is_held:
                    self.is_connected.set()
                else:
                    server_writer.write(data)
            if is_held:  # not the connection by which the driver cancels a statement
                self.is_closed.set()
        finally:
            answers.cancel()
            server_writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)


async def test_a_caller_that_left_while_its_connection_was_set_up_left_it_open(postgres_url: str) -> None:
    url = sa.make_url(postgres_url)
    held = HeldAfterConnect(url.host or "127.0.0.1", url.port or 5432)
    async with stream_server(held.serve) as port:
        here = url.set(host="127.0.0.1", port=port)
        async with one_connection(here.render_as_string(hide_password=False), trusted_s=60) as database:
            caller = asyncio.create_task(backend_of(database), name="a caller that leaves")
            await held.is_connected.wait()
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            for _ in range(TURNS):
                await after()
            assert held.is_closed.is_set()
