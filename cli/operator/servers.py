"""`holdfast dev`, `api` and `worker`: run the whole product in one process, or each of its parts.

The only module that imports both the API and the worker, because `dev` runs both.
"""

import gc
import json
from functools import partial
from socket import socket
from typing import Annotated

import typer
from fastapi import FastAPI

from api.access.callers import ConfiguredKeys
from api.application import openapi_document
from api.connection_rules import ConnectionRules
from api.http_server import serve
from api.main import serving
from api.middleware import LOOPBACK_NAMES
from cli.operator.processes import named_file, open_process, production_process, told_to_end
from cli.operator.start import announce, operate
from cli.options import positive
from shared.domain.errors import InvalidRequest
from shared.process.data_directory import DATABASE, only_process, own_keys
from shared.process.listening import bound_sockets
from shared.process.settings import Settings
from shared.redis.embedded import connect_embedded
from shared.sql.access.api_keys import ApiKeyStore
from shared.sql.engine import Database
from shared.sql.migrate import migrate
from worker.main import working

commands = typer.Typer()

WORKER_WAIT_S = 15.0
"""Nobody waits for an answer of a worker's: when it takes up many runs at once, they may queue for connections."""

LOOPBACK, PORT = "127.0.0.1", 8283

DRAIN_HELP = (
    "After SIGTERM, let runs finish their steps for so many seconds before they go on elsewhere (default: {default})."
)

WHAT_NEXT = """
  every path, to try in a browser: {address}/docs
  a first program, and the same with curl: README.md; what the words mean: docs/concepts.md"""
"""What `holdfast dev` says behind its address."""


def _port_number(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= 65535:
        raise typer.BadParameter("must be from 1 to 65535")
    return number


HostOption = Annotated[str, typer.Option(help="Address to listen on.")]
PortOption = Annotated[int, typer.Option(parser=_port_number, metavar="PORT", help="Port to listen on.")]


@commands.command(epilog="Example: holdfast dev --port 9000 --data-dir /tmp/holdfast")
def dev(
    host: HostOption = LOOPBACK,
    port: PortOption = PORT,
    data_dir: Annotated[str | None, typer.Option(help="Where the database is kept (default: .holdfast).")] = None,
    drain_seconds: Annotated[float | None, typer.Option(help=DRAIN_HELP.format(default="0, at once"))] = None,
) -> None:
    """Run everything in one process, on embedded parts; no key, loopback only."""
    operate(partial(_run_dev, host=host, port=port), data_dir=data_dir, drain_s=drain_seconds)


@commands.command(epilog="Example: holdfast api --host 0.0.0.0 --port 8283")
def api(host: HostOption = LOOPBACK, port: PortOption = PORT) -> None:
    """Serve the API. Needs HOLDFAST_DATABASE_URL and HOLDFAST_REDIS_URL."""
    operate(partial(_run_api, host=host, port=port))


@commands.command(epilog="Example: holdfast openapi > openapi.json")
def openapi() -> None:
    """Print the OpenAPI document of this version: of every request, answer, stream and error."""
    print(json.dumps(openapi_document(), indent=1, ensure_ascii=False))


@commands.command(epilog="Example: OPENAI_API_KEY=… holdfast worker --max-runs 50 --health-port 8284")
def worker(
    max_runs: Annotated[
        int | None, typer.Option(parser=positive, metavar="N", help="Runs at once (default: 100).")
    ] = None,
    drain_seconds: Annotated[float | None, typer.Option(help=DRAIN_HELP.format(default="5"))] = None,
    health_port: Annotated[
        int | None,
        typer.Option(
            parser=_port_number,
            metavar="PORT",
            help="Port of health and metrics (default: HOLDFAST_WORKER_PORT).",
        ),
    ] = None,
) -> None:
    """Execute runs. Needs HOLDFAST_DATABASE_URL and HOLDFAST_REDIS_URL."""
    operate(_run_worker, max_runs=max_runs, drain_s=drain_seconds, worker_port=health_port)


async def _run_dev(settings: Settings, *, host: str, port: int) -> None:
    configured = ConfiguredKeys.parse(settings.api_keys.get_secret_value(), settings.api_keys_file)
    file = settings.data_dir / DATABASE
    if not file.exists():
        _refuse_if_open(host, has_keys=bool(configured))  # before anything is made there
    if settings.redis_url or settings.database_url or settings.event_log_url:
        raise InvalidRequest(
            "holdfast dev runs on embedded parts: unset HOLDFAST_REDIS_URL, HOLDFAST_DATABASE_URL and "
            "HOLDFAST_EVENT_LOG_URL, or use holdfast api and holdfast worker"
        )
    # What is not chosen suits somebody at a terminal: models without a key, an end at once, and no line for each of the
    # requests that an open console sends all the time.
    defaults: dict[str, object] = {"builtin_models": True, "drain_s": 0.0, "docs": "on", "access_log": False}
    chosen = settings.model_fields_set
    settings = settings.model_copy(update={name: value for name, value in defaults.items() if name not in chosen})
    with bound_sockets(host, port) as sockets, only_process(settings.data_dir):
        async with named_file(file):
            database = Database(f"sqlite:///{file}")
        redis, keys = connect_embedded(), own_keys(settings)
        async with open_process(settings, database, redis, keys, is_embedded=True) as process:
            async with named_file(file):
                await migrate(database)
            _refuse_if_open(host, has_keys=bool(configured) or await ApiKeyStore(database).has_any())
            async with working(process, alone=True, on_warm=gc.freeze), serving(process) as app:
                await _serve(app, settings, f"http://{host}:{port}", sockets, WHAT_NEXT)


async def _run_api(settings: Settings, *, host: str, port: int) -> None:
    configured = ConfiguredKeys.parse(settings.api_keys.get_secret_value(), settings.api_keys_file)
    if not configured and "api_keys" in settings.model_fields_set:
        raise InvalidRequest(
            "HOLDFAST_API_KEYS is set and empty: set it to project=key, or unset it to serve this machine without a key"
        )
    with bound_sockets(host, port) as sockets:
        async with production_process(settings) as process:
            has_keys = bool(configured) or await ApiKeyStore(process.database).has_any()
            _refuse_if_open(host, has_keys=has_keys)
            async with serving(process) as app:
                await _serve(app, settings, f"http://{host}:{port}", sockets)


async def _run_worker(settings: Settings) -> None:
    stop = told_to_end()
    # What a worker has imported lives as long as it. Each full collection would look through all of it, and hold up
    # every run meanwhile.
    async with production_process(settings, wait_s=WORKER_WAIT_S) as process, working(process, on_warm=gc.freeze):
        said = f"holdfast worker: up to {settings.max_runs} runs at once"
        announce(settings, "worker_takes_runs", said, max_runs=settings.max_runs)
        await stop.wait()


def _refuse_if_open(host: str, *, has_keys: bool) -> None:
    """Raises `InvalidRequest` where everybody would be let in by mistake."""
    if not has_keys and host not in LOOPBACK_NAMES:
        raise InvalidRequest(
            f"refusing to listen on {host} without API keys: set HOLDFAST_API_KEYS=project=key, make a key with "
            "`holdfast keys create`, or use --host 127.0.0.1"
        )


async def _serve(app: FastAPI, settings: Settings, address: str, sockets: list[socket], hints: str = "") -> None:
    console = f"{address}/console"
    said = f"holdfast: {address} (console: {console}){hints.format(address=address)}"
    announce(settings, "api_listens", said, address=address, console=console)
    rules = ConnectionRules(settings.request_timeout, settings.reader_timeout, settings.max_connections)
    await serve(app, sockets, rules)
