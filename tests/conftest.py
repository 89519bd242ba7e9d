"""The services that tests run on. A test that asks for `database_url` runs once per kind of database."""

import faulthandler
import functools
import gc
import hashlib
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import certifi
import pytest
import structlog
from sqlalchemy.exc import SQLAlchemyError

from tests.kit.left_connections import watch_connections
from tests.kit.services.compiled_statements import share_compiled_statements
from tests.kit.services.databases import PostgresServer, migrate_database, on_another_loop
from tests.kit.services.missing_service import missing_service

pytest_plugins = [
    "tests.kit.services.redis_fixtures",
    "tests.kit.exhaustive_parts",
    "tests.kit.side_by_side",
    "tests.kit.tiers",
]

TEST_DATABASE = "HOLDFAST_TEST_DATABASE_URL"
LAST_LINE = "-----END CERTIFICATE-----"
SERVICES = frozenset({"postgres_server", "postgres_url", "private_redis", "redis_cluster"})
HUNG_S = 900
"""More than what one phase of a test may take. See `_watch`."""
WATCHED_ANEW_S = 30
"""Each new watch costs a thread, and waits until the one before has ended: two for each test are a few per cent of all
that the tests take."""

_STDERR = pytest.StashKey[int]()
_WATCHED_SINCE = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    """Makes cheap what no test looks at, and each pays for."""
    # A process that may not keep what it compiled, compiles it each time. The tests start hundreds of processes.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # No test speaks TLS, and the world's certificates take each HTTP client 20 ms to load: here there is one.
    certificates = Path(certifi.where()).read_text()
    directory = tempfile.TemporaryDirectory(prefix="holdfast-certificate-")
    config.add_cleanup(directory.cleanup)
    file = Path(directory.name, "one.pem")
    file.write_text(certificates[: certificates.index(LAST_LINE) + len(LAST_LINE)] + "\n")
    os.environ["SSL_CERT_FILE"] = str(file)
    # A configured key takes each process that starts 50 ms and more, as it should: here one takes it once.
    hashlib.scrypt = functools.cache(hashlib.scrypt)
    # Unless told otherwise, structlog draws a traceback with the sources and variables around it: that takes seconds.
    plain = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], plain])
    share_compiled_statements()
    watch_connections()
    config.stash[_STDERR] = os.dup(2)  # what a test writes there is caught; what is written of a test must not be


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Sets up nothing: here a try begins, be it the first or a later one."""
    _watch(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Tears down nothing: here what is cleaned up after a test begins."""
    _watch(item)


def _watch(item: pytest.Item) -> None:
    """Ends this process, with what each of its threads does, unless the next phase of a test begins in time.

    The setting `timeout` fails a test that hangs, but the plugin stops its clock at the first failure: what is cleaned
    up then, and the second try, could hang for ever and be named by nobody. The process is replaced, the test named.
    """
    stash, now = item.config.stash, time.monotonic()
    if now - stash.get(_WATCHED_SINCE, -math.inf) < WATCHED_ANEW_S:
        return
    stash[_WATCHED_SINCE] = now
    faulthandler.dump_traceback_later(HUNG_S, exit=True, file=item.config.stash[_STDERR])


def pytest_sessionfinish() -> None:
    """Nothing is left to watch."""
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leaves what is there once the tests are known, some million objects, out of every later search for garbage.

    Searching through them took a seventh of the processor time of the tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 10, 10)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what asks for a service by name; a parameter of a fixture brings its own mark."""
    for item in items:
        if isinstance(item, pytest.Function) and SERVICES.intersection(item.fixturenames):
            item.add_marker(pytest.mark.services)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The server that HOLDFAST_TEST_DATABASE_URL names, or the one on this machine."""
    server = PostgresServer(os.environ.get(TEST_DATABASE) or "postgresql://127.0.0.1/test")
    try:
        server.check()
    except (OSError, SQLAlchemyError) as error:
        missing_service("Postgres", TEST_DATABASE, error)
    yield server
    server.drop_free()


@pytest.fixture(scope="session")
def migrated_sqlite_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite database of the product's shape, for tests to copy."""
    file = tmp_path_factory.mktemp("migrated") / "holdfast.sqlite3"
    on_another_loop(migrate_database(f"sqlite:///{file}"))
    return file


@pytest.fixture
def sqlite_url(tmp_path: Path, migrated_sqlite_file: Path) -> str:
    """A new SQLite database, migrated, without rows."""
    file = shutil.copy(migrated_sqlite_file, tmp_path)
    return f"sqlite:///{file}"


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A Postgres database, migrated, without rows."""
    url = postgres_server.lend_migrated()
    yield url
    postgres_server.release(url)


@pytest.fixture
def plain_owner_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A Postgres database, migrated, without rows, for its owner, whom the tables' policies bind."""
    url = postgres_server.lend_migrated_of_plain_owner()
    yield url
    postgres_server.release(url)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def database_url(request: pytest.FixtureRequest) -> str:
    """A migrated database without rows: first SQLite, then Postgres."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A new database without tables: first SQLite, then Postgres."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.sqlite3'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.create_database()
    yield url
    server.drop_database(url)
