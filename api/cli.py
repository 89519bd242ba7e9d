"""The command `holdfast`: run the whole product in one process, or each of its parts.

The only module that imports both the API and the worker, because `dev` runs both.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta

import uvloop
from fastapi import FastAPI
from pydantic import ValidationError

from api.auth import ApiKeys
from api.http_server import serve
from api.main import serving
from api.middleware import LOOPBACK_NAMES
from shared.clock import SystemClock
from shared.crash_points import arm
from shared.domain.errors import HoldfastError, InvalidRequest, Unavailable
from shared.domain.ids import IdMaker
from shared.process.context import ProcessContext, only_process
from shared.process.logging import configure_logging
from shared.process.settings import Settings
from shared.process.version import VERSION
from shared.redis.connection import Redis, connect
from shared.redis.embedded import connect_embedded
from shared.runs.retention import Retention
from shared.sql.engine import ANSWER_S, WAIT_S, Database
from shared.sql.migrate import is_current, migrate
from shared.sql.runs.retention import RetentionStore
from worker.main import working

START_S = 30.0
"""How long a process that starts waits for a database that is away."""

PROGRESS_S = 5.0

WORKER_WAIT_S = 15.0
"""Nobody waits for an answer of a worker's: when it takes up many runs at once, they may queue for connections."""

WHAT_NEXT = """
  every path, to try in a browser: {address}/docs
  a first program, and the same with curl: README.md; what the words mean: docs/concepts.md"""
"""What `holdfast dev` says behind its address."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Parses the command line and runs the command."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        settings = _settings(options)
        configure_logging(settings)
        if settings.crash_at:
            arm(settings.crash_at)
            print(f"holdfast: THIS PROCESS WILL END ITSELF at {settings.crash_at}", file=sys.stderr, flush=True)
        uvloop.run(options.run(settings, options))
    except HoldfastError as error:
        sys.exit(f"holdfast: {error.message}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="holdfast",
        description="Background agent runs that survive. Settings are HOLDFAST_… variables: docs/settings.md.",
    )
    parser.add_argument("--version", action="version", version=f"holdfast {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="command")
    dev = commands.add_parser("dev", help="run everything in one process, on embedded parts; no key, loopback only")
    _add_address(dev)
    dev.add_argument("--data-dir", help="where the database is kept (default: .holdfast)")
    _add_drain(dev, "0, at once")
    dev.set_defaults(run=_run_dev)
    api = commands.add_parser("api", help="serve the API; needs HOLDFAST_DATABASE_URL and HOLDFAST_REDIS_URL")
    _add_address(api)
    api.set_defaults(run=_run_api)
    worker = commands.add_parser("worker", help="execute runs; needs HOLDFAST_DATABASE_URL and HOLDFAST_REDIS_URL")
    worker.add_argument("--max-runs", type=_positive, help="runs at once (default: 100)")
    _add_drain(worker, "5")
    worker.set_defaults(run=_run_worker)
    migrating = commands.add_parser("migrate", help="bring the database to the shape that this version needs")
    migrating.set_defaults(run=_run_migrate)
    pruning = commands.add_parser("prune", help="delete logs, steps and keys of runs that ended long ago")
    pruning.add_argument("--older-than-days", type=_positive, metavar="N", help="(default: HOLDFAST_RETAIN_DAYS)")
    pruning.add_argument("--dry-run", action="store_true", help="say what would be deleted, and delete nothing")
    pruning.set_defaults(run=_run_prune)
    return parser


def _add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8283, help="port to listen on (default: 8283)")


def _add_drain(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--drain-seconds",
        type=float,
        help=f"after SIGTERM, let runs finish their steps for so long before they go on elsewhere (default: {default})",
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _settings(options: argparse.Namespace) -> Settings:
    fields = {"max_runs": "max_runs", "data_dir": "data_dir", "drain_seconds": "drain_s"}
    fields["older_than_days"] = "retain_days"
    given = {field: getattr(options, option, None) for option, field in fields.items()}
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        wrong = [f"HOLDFAST_{'_'.join(map(str, one['loc'])).upper()}: {one['msg']}" for one in error.errors()]
        raise InvalidRequest("; ".join(wrong)) from error


async def _run_dev(settings: Settings, options: argparse.Namespace) -> None:
    _refuse_list_without_keys(settings, options.host, is_dev=True)
    if settings.redis_url or settings.database_url:
        raise InvalidRequest(
            "holdfast dev runs on embedded parts: unset HOLDFAST_REDIS_URL and HOLDFAST_DATABASE_URL, or use "
            "holdfast api and holdfast worker"
        )
    # What is not chosen suits somebody at a terminal: models without a key, and an end at once.
    defaults = {"builtin_models": True, "drain_s": 0.0}
    chosen = settings.model_fields_set
    settings = settings.model_copy(update={name: value for name, value in defaults.items() if name not in chosen})
    with only_process(settings.data_dir):
        database = Database(f"sqlite:///{settings.data_dir / 'holdfast.db'}")
        async with _process(settings, database, connect_embedded(), is_embedded=True) as process:
            await migrate(database)
            async with working(process, alone=True), serving(process) as app:
                await _serve(app, settings, options, WHAT_NEXT)


async def _run_api(settings: Settings, options: argparse.Namespace) -> None:
    _refuse_list_without_keys(settings, options.host)
    database = await _production_database(settings)
    async with _process(settings, database, _production_redis(settings)) as process, serving(process) as app:
        await _serve(app, settings, options)


async def _run_worker(settings: Settings, _options: argparse.Namespace) -> None:
    database = await _production_database(settings, wait_s=WORKER_WAIT_S)
    stop = _told_to_end()
    async with _process(settings, database, _production_redis(settings)) as process, working(process):
        print(f"holdfast worker: up to {settings.max_runs} runs at once", flush=True)
        await stop.wait()


async def _run_migrate(settings: Settings, _options: argparse.Namespace) -> None:
    database = Database(_database_url(settings), answer_s=None)
    try:
        revision = await migrate(database)
    finally:
        await database.aclose()
    print(f"holdfast migrate: the database is at revision {revision}")


async def _run_prune(settings: Settings, options: argparse.Namespace) -> None:
    if not settings.retain_days:
        raise InvalidRequest("runs are kept for ever: say --older-than-days N, or set HOLDFAST_RETAIN_DAYS")
    database = await _production_database(settings, answer_s=None if options.dry_run else ANSWER_S)
    keep = timedelta(days=settings.retain_days)
    retention = Retention(store=RetentionStore(database), clock=SystemClock(), keep=keep)
    try:
        before = retention.before
        print(f"holdfast prune: runs that ended before {before:%Y-%m-%d %H:%M} UTC", flush=True)
        if not options.dry_run:
            await _prune(retention)
            return
        async for name, count in retention.store.count(before):
            print(f"{count:>12,} {name} would be {'pruned' if name == 'runs' else 'deleted'}", flush=True)
    finally:
        await database.aclose()


async def _prune(retention: Retention) -> None:
    """Prunes until nothing is left, or until the process is asked to end."""
    total = Counter(runs=0)
    try:
        await _add_pruned(retention, total)
    finally:
        for name, count in total.items():
            print(f"{count:>12,} {name} {'pruned' if name == 'runs' else 'deleted'}", flush=True)


async def _add_pruned(retention: Retention, total: Counter[str]) -> None:
    stop, said_at = _told_to_end(), time.monotonic()
    async with aclosing(retention.prune()) as pruning:
        async for pruned in pruning:
            total.update(pruned)
            if stop.is_set():
                print("holdfast prune: told to end; what is left is pruned another time", file=sys.stderr, flush=True)
                return
            if time.monotonic() > said_at + PROGRESS_S:
                said_at = time.monotonic()
                print(f"holdfast prune: {total['runs']:,} runs so far", file=sys.stderr, flush=True)


@asynccontextmanager
async def _process(
    settings: Settings, database: Database, redis: Redis, *, is_embedded: bool = False
) -> AsyncGenerator[ProcessContext]:
    try:
        yield ProcessContext(
            settings=settings,
            database=database,
            redis=redis,
            is_embedded=is_embedded,
            clock=SystemClock(),
            ids=IdMaker(),
            environment=os.environ,
        )
    finally:
        await redis.aclose(close_connection_pool=True)
        await database.aclose()


def _told_to_end() -> asyncio.Event:
    """Set when the process is asked to end."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def _production_database(
    settings: Settings, *, wait_s: float = WAIT_S, answer_s: float | None = ANSWER_S
) -> Database:
    database = Database(
        _database_url(settings), connections=settings.database_connections, wait_s=wait_s, answer_s=answer_s
    )
    if not await _is_current(database):
        await database.aclose()
        raise InvalidRequest("the database does not have the shape that this version needs: run `holdfast migrate`")
    return database


async def _is_current(database: Database) -> bool:
    """Whether the database has our shape. Waits for one that is away: it may be starting, too."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            return await is_current(database)
        except Unavailable as error:
            if time.monotonic() > deadline:
                await database.aclose()
                raise
            print(f"holdfast: waiting for the database: {error}", file=sys.stderr, flush=True)
        await asyncio.sleep(1)


def _database_url(settings: Settings) -> str:
    if not settings.database_url:
        raise InvalidRequest("HOLDFAST_DATABASE_URL is not set: use postgresql://user:password@host/database")
    return settings.database_url


def _production_redis(settings: Settings) -> Redis:
    if not settings.redis_url:
        raise InvalidRequest(
            "HOLDFAST_REDIS_URL is not set: use redis://host:6379/0. The embedded Redis lives in one process, so the "
            "API and the workers cannot share it; `holdfast dev` runs both in one"
        )
    return connect(settings.redis_url)


def _refuse_list_without_keys(settings: Settings, host: str, *, is_dev: bool = False) -> None:
    """Raises `InvalidRequest` for keys that are malformed, and where everybody would be let in by mistake."""
    if ApiKeys.parse(settings.api_keys.get_secret_value()).are_required:
        return
    if "api_keys" in settings.model_fields_set and not is_dev:
        raise InvalidRequest(
            "HOLDFAST_API_KEYS is set and empty: set it to project=key, or unset it to serve this machine without a key"
        )
    if host not in LOOPBACK_NAMES:
        raise InvalidRequest(
            f"refusing to listen on {host} without API keys: set HOLDFAST_API_KEYS=project=key, or use --host 127.0.0.1"
        )


async def _serve(app: FastAPI, settings: Settings, options: argparse.Namespace, hints: str = "") -> None:
    address = f"http://{options.host}:{options.port}"
    print(f"holdfast: {address}{hints.format(address=address)}", flush=True)
    await serve(app, host=options.host, port=options.port, timeout_s=settings.request_timeout)
