"""Shared by the commands of production: they open the settings' database and Redis, and end on a signal."""

import asyncio
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from cli.operator.start import announce, require_database, require_redis
from shared.concurrency import Clock, SystemClock
from shared.domain.errors import Unavailable, Unusable
from shared.domain.ids import IdMaker
from shared.process.context import ProcessContext
from shared.process.data_directory import keys_of
from shared.process.settings import Settings
from shared.redis.connection import Redis, connect, try_writing
from shared.redis.log_servers import log_servers
from shared.secret_keys import SecretKeys
from shared.sql.engine import ANSWER_S, WAIT_S, Database, database_url, shown
from shared.sql.migrate import require_current

UNENCRYPTED = (
    "holdfast: WARNING: HOLDFAST_ENCRYPTION_KEY is not set: the secrets of agents are stored as plain text. `holdfast "
    "secrets generate-key` prints a key; give it to the workers and the API"
)

ENOUGH_FILES, FILES_OF_TOOLS = 256, 128
"""How many files a process must be able to open to start without a warning, and how many of them go to other things
than connections: as many as a tool needs."""

CLOCKS_APART_S = 5.0
"""Seconds by which the clocks of this machine and of the database may differ without a warning."""

START_S = 30.0
"""Seconds that a starting process waits for a database that does not answer."""


@asynccontextmanager
async def open_process(
    settings: Settings, database: Database, redis: Redis, secret_keys: SecretKeys, *, is_embedded: bool = False
) -> AsyncGenerator[ProcessContext]:
    if not secret_keys:
        announce(settings, "secrets_are_plain_text", UNENCRYPTED, stream=sys.stderr)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < ENOUGH_FILES:
        left = max(1, files - FILES_OF_TOOLS)
        said = (
            f"holdfast: WARNING: this process may open {files} files, which leaves an API {left} for connections, and "
            f"a worker cannot start tools with fewer than {FILES_OF_TOOLS}: run `ulimit -n 4096` before it "
            "(LimitNOFILE= of systemd, --ulimit of containers)"
        )
        announce(settings, "open_files_are_few", said, stream=sys.stderr, files=files, connections=left)
    try:
        async with log_servers(settings.event_log_url, redis) as servers:
            yield ProcessContext(
                settings=settings,
                database=database,
                redis=redis,
                log_servers=servers,
                is_embedded=is_embedded,
                clock=SystemClock(),
                ids=IdMaker(),
                environment=os.environ,
                secret_keys=secret_keys,
            )
    finally:
        await redis.aclose(close_connection_pool=True)
        await database.aclose()


def stop_signal() -> asyncio.Event:
    """Returns an event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


@asynccontextmanager
async def production_process(settings: Settings, *, wait_s: float = WAIT_S) -> AsyncGenerator[ProcessContext]:
    """Opens the settings' database and Redis for a block. Raises `InvalidRequest`, and `Unavailable` that names the
    setting."""
    keys = keys_of(settings)
    _database_place(settings)  # refuses a wrong URL before it waits for Redis
    redis = await production_redis(settings)
    try:
        database = await production_database(settings, wait_s=wait_s)
    except BaseException:
        await redis.aclose(close_connection_pool=True)
        raise
    async with open_process(settings, database, redis, keys) as process:
        with suppress(Unavailable):
            await warn_of_clocks(settings, database, process.clock)
        yield process


async def warn_of_clocks(settings: Settings, database: Database, clock: Clock) -> None:
    """Prints a warning if the database's clock differs from `clock`. Raises `Unavailable`."""
    ahead_s = (await database.now() - clock.now()).total_seconds()
    if abs(ahead_s) > CLOCKS_APART_S:
        place = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'}"
        said = (
            f"holdfast: WARNING: the database's clock is {place} this machine's: let both machines follow the "
            "same time server, or keys, approvals and budgets end early or late, and lists have the wrong order"
        )
        announce(settings, "clocks_differ", said, stream=sys.stderr, database_ahead_s=round(ahead_s, 1))


async def production_database(
    settings: Settings, *, wait_s: float = WAIT_S, answer_s: float | None = ANSWER_S, start_s: float = START_S
) -> Database:
    async with named_database(settings) as url:
        database = Database(url, connections=settings.database_connections, wait_s=wait_s, answer_s=answer_s)
        await _has_our_shape(settings, database, start_s)
    return database


async def _has_our_shape(settings: Settings, database: Database, start_s: float) -> None:
    """Waits until the database has the schema of this version: a database that does not answer may be starting."""
    deadline, waits = time.monotonic() + start_s, False
    while True:
        try:
            return await require_current(database)
        except Unavailable as error:
            if isinstance(error, Unusable) or time.monotonic() >= deadline:
                await database.aclose()
                raise
            if not waits:
                said = f"holdfast: waiting {start_s:g} s for the database{from_below(error)}"
                announce(settings, "waiting_for_the_database", said, stream=sys.stderr)
            waits = True
        await asyncio.sleep(1)


@asynccontextmanager
async def named_database(settings: Settings) -> AsyncGenerator[str]:
    """Yields the database's URL. The block's `Unavailable` errors then name the setting and the database's address."""
    place = _database_place(settings)
    try:
        yield settings.database_url
    except Unavailable as error:
        raise type(error)(f"HOLDFAST_DATABASE_URL ({place}): {error}{from_below(error)}") from error


@asynccontextmanager
async def named_file(file: Path) -> AsyncGenerator[None]:
    """Runs a block that opens the database of `holdfast dev`. Its `Unavailable` errors then name the file."""
    try:
        yield
    except Unavailable as error:
        raise type(error)(f"{file} (--data-dir, HOLDFAST_DATA_DIR): {error}") from error


def _database_place(settings: Settings) -> str:
    require_database(settings)
    return shown(database_url(settings.database_url))


def from_below(error: Unavailable) -> str:
    """Returns the operating system's reason why no connection was made."""
    cause = error.__cause__
    if isinstance(error, Unusable) or not isinstance(cause, OSError):
        return ""
    return f" ({cause.strerror or str(cause) or 'no answer in time'})"


async def production_redis(settings: Settings) -> Redis:
    """Returns a client of the settings' Redis. A process starts even if Redis does not answer, as it continues when it
    loses Redis later. Raises `Unusable` if Redis refuses us, because then the settings are wrong."""
    require_redis(settings)
    redis = connect(settings.redis_url)
    try:
        await try_writing(redis)
    except Unusable as error:
        await redis.aclose(close_connection_pool=True)
        raise Unusable(f"HOLDFAST_REDIS_URL: {error}") from error
    except Unavailable as error:
        said = f"holdfast: HOLDFAST_REDIS_URL: {str(error).rstrip('.')}. Going on without it"
        announce(settings, "started_without_redis", said, stream=sys.stderr)
    return redis
