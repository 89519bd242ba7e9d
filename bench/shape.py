"""Shows the figures of the product's shape beside their limits: `python -m bench.shape`.

It counts files, lines, imports and two modules' import closures in the source. Then it executes runs with embedded
services and, if this machine has them, on Redis and Postgres, and counts the files that they pass through; each set-up
takes ten seconds. It starts a Redis server and makes a database in Postgres, and removes both. The limits are in
tests/architecture/shape.toml, and CONTRIBUTING.md ("Shape") says when to change them. Exit status 1: a figure differs
from its limit.
"""

import argparse
import asyncio
import logging
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog
from arq.connections import ArqRedis
from sqlalchemy.exc import SQLAlchemyError

from bench.files_per_run import Passed, files_per_run
from bench.progress import progress_bar
from shared.redis.embedded import connect_embedded
from shared.sql.engine import Database
from tests.kit.project.shape import beyond, product_figures, shape
from tests.kit.services.databases import PostgresServer, open_database
from tests.kit.services.redis_servers import PrivateRedis

EMBEDDED, SERVICES = "embedded", "services"

TITLES = {
    "modules": "product modules",
    "lines": "product lines",
    "import_lines": "import lines",
    "closure_of_routes_messages": "modules that api.letta.routes.messages imports",
    "closure_of_execute_run": "modules that worker.run.execute_run imports",
    "middlewares": "middlewares of our own",
    "dialect_questions": "dialect questions outside the driver",
    "private_names": "private names of libraries",
    "plain_run": "files of a plain streamed run",
    "cancel": "files of a cancel",
    "approval": "files of an approval, beyond a plain run's",
    "recovery": "files of a recovery after a crash",
}

Backends = tuple[Database, ArqRedis]


async def main() -> None:
    options = _parser().parse_args()
    # The product's log lines would mix with the figures.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    faults = _shown(product_figures(), shape()["source"], "source")
    for name in () if options.source else (EMBEDDED, SERVICES):
        passed = await _passed(name)
        if passed is None:
            continue
        figures = {figure: len(files) for figure, files in passed.items()}
        faults += _shown(figures, shape()["files"][name], f"files.{name}")
        if options.names:
            print("\n".join(_named(passed)))
    for fault in faults:
        print(fault, file=sys.stderr)
    sys.exit(1 if faults else 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.shape", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", action="store_true", help="make no runs: only the figures of the source")
    parser.add_argument(
        "--names", action="store_true", help="list the files, with the number of called functions of each"
    )
    return parser


def _shown(figures: Mapping[str, int], limits: Mapping[str, int], table: str) -> list[str]:
    """Prints a table of figures. Returns the figures that differ from their limits."""
    print(f"\n{f'[{table}]':<50}{'now':>8}{'limit':>8}")
    for name, figure in figures.items():
        print(f"{TITLES[name]:<50}{figure:>8}{limits.get(name, '-'):>8}")
    return list(beyond(figures, limits, table))


def _named(passed: Passed) -> Iterator[str]:
    for figure, files in passed.items():
        yield f"\n{TITLES[figure]}:"
        yield from (f"  {file}  {functions}" for file, functions in files.items())


async def _passed(setup: str) -> Passed | None:
    """Returns the files that runs pass through on this set-up. None, and a printed reason, if a service is missing."""
    with TemporaryDirectory(prefix="holdfast-shape-") as directory:
        backends = _embedded if setup == EMBEDDED else _services
        try:
            async with backends(Path(directory)) as (database, redis):
                with progress_bar(f"Runs on the {setup} set-up", total=4) as done:
                    begun = iter(range(4))
                    return await files_per_run(database, redis, on_scenario=lambda _: done(next(begun)))
        except _Missing as missing:
            print(f"\n[files.{setup}] is not measured: {missing}", file=sys.stderr)
            return None


class _Missing(Exception):
    """A service is missing."""


@asynccontextmanager
async def _embedded(directory: Path) -> AsyncGenerator[Backends]:
    redis = connect_embedded()
    async with open_database(f"sqlite:///{directory}/holdfast.db") as database:
        yield database, redis
    await redis.aclose(close_connection_pool=True)


@asynccontextmanager
async def _services(directory: Path) -> AsyncGenerator[Backends]:
    """Starts the services for a block. Raises `_Missing`."""
    if shutil.which("redis-server") is None:
        raise _Missing("there is no redis-server on this machine")
    postgres = PostgresServer(os.environ.get("HOLDFAST_TEST_DATABASE_URL") or "postgresql://127.0.0.1/test")
    try:
        url = await asyncio.to_thread(postgres.create_database)
    except (OSError, SQLAlchemyError) as error:
        raise _Missing(f"Postgres does not answer ({error}); HOLDFAST_TEST_DATABASE_URL names another one") from error
    server = PrivateRedis(directory)
    await server.start()
    try:
        async with open_database(url) as database:
            yield database, server.client()
    finally:
        await server.close()
        await server.kill()
        await asyncio.to_thread(postgres.drop_database, url)


if __name__ == "__main__":
    asyncio.run(main())
