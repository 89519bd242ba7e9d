"""The command `holdfast`: run the whole product in one process, or each of its parts.

The only module that imports both the API and the worker, because `dev` runs both.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from socket import socket
from typing import NoReturn

import uvloop
from fastapi import FastAPI
from pydantic import ValidationError

from api.access.callers import ConfiguredKeys
from api.commands.audit import add_audit_command
from api.commands.budgets import add_budget_commands
from api.commands.keys import add_keys_command
from api.commands.processes import (
    FAILURE,
    MISTAKE,
    named_file,
    open_process,
    port_number,
    positive,
    production_process,
    told_to_end,
)
from api.commands.secrets import add_secrets_commands
from api.commands.status import add_status_command
from api.commands.upkeep import add_upkeep_commands
from api.connection_rules import ConnectionRules
from api.http_server import serve
from api.listening import bound_sockets
from api.main import serving
from api.middleware import LOOPBACK_NAMES
from shared.crash_points import arm
from shared.domain.errors import HoldfastError, InvalidRequest, Unavailable
from shared.process.data_directory import DATABASE, only_process, own_keys
from shared.process.logging import configure_logging
from shared.process.settings import Settings
from shared.process.version import VERSION
from shared.process.wrong_settings import unknown_names, wrong_values
from shared.redis.embedded import connect_embedded
from shared.sql.access.api_keys import ApiKeyStore
from shared.sql.engine import Database
from shared.sql.migrate import migrate
from worker.main import working

WORKER_WAIT_S = 15.0
"""Nobody waits for an answer of a worker's: when it takes up many runs at once, they may queue for connections."""

WHAT_NEXT = """
  every path, to try in a browser: {address}/docs
  a first program, and the same with curl: README.md; what the words mean: docs/concepts.md"""
"""What `holdfast dev` says behind its address."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Parses the command line and runs the command. What an operator can mend is said in one line, without a
    traceback: a status of 2 asks for another setting, 1 means that something else is amiss."""
    options = _parser().parse_args(arguments)
    mistakes: list[HoldfastError] = []
    try:
        _run(options)
    except* HoldfastError as group:
        # From what runs beside others, such as a callback's key, it comes inside of groups.
        mistakes = _leaves(group)
    if mistakes:
        print(f"holdfast: {mistakes[0].message}", file=sys.stderr, flush=True)
        is_away = type(mistakes[0]) is Unavailable
        sys.exit(FAILURE if is_away else MISTAKE)


def _run(options: argparse.Namespace) -> None:
    settings = _settings(options)
    configure_logging(settings)
    if settings.crash_at:
        arm(settings.crash_at)
        print(f"holdfast: THIS PROCESS WILL END ITSELF at {settings.crash_at}", file=sys.stderr, flush=True)
    uvloop.run(options.run(settings, options))


def _leaves(group: BaseExceptionGroup[HoldfastError]) -> list[HoldfastError]:
    found: list[HoldfastError] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


class CommandParser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong with the arguments."""

    def error(self, message: str) -> NoReturn:
        self.exit(MISTAKE, f"holdfast: {message}; `{self.prog} --help` shows what can be given\n")


def _parser() -> CommandParser:
    parser = CommandParser(
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
    worker.add_argument("--max-runs", type=positive, help="runs at once (default: 100)")
    _add_drain(worker, "5")
    worker.set_defaults(run=_run_worker)
    add_keys_command(commands.add_parser)
    add_upkeep_commands(commands.add_parser)
    add_secrets_commands(commands.add_parser)
    add_budget_commands(commands.add_parser)
    add_audit_command(commands.add_parser)
    add_status_command(commands.add_parser)
    return parser


def _add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=port_number, default=8283, help="port to listen on (default: 8283)")


def _add_drain(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--drain-seconds",
        type=float,
        help=f"after SIGTERM, let runs finish their steps for so long before they go on elsewhere (default: {default})",
    )


def _settings(options: argparse.Namespace) -> Settings:
    fields = {"max_runs": "max_runs", "data_dir": "data_dir", "drain_seconds": "drain_s"}
    fields["older_than_days"] = "retain_days"
    given = {field: getattr(options, option, None) for option, field in fields.items()}
    unknown = unknown_names(os.environ)
    if unknown:
        raise InvalidRequest("; ".join(unknown))
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        # `from None`: the error shows what it was given, keys included.
        raise InvalidRequest("; ".join(wrong_values(error))) from None


async def _run_dev(settings: Settings, options: argparse.Namespace) -> None:
    configured = ConfiguredKeys.parse(settings.api_keys.get_secret_value(), settings.api_keys_file)
    file = settings.data_dir / DATABASE
    if not file.exists():
        _refuse_if_open(options.host, has_keys=bool(configured))  # before anything is made there
    if settings.redis_url or settings.database_url:
        raise InvalidRequest(
            "holdfast dev runs on embedded parts: unset HOLDFAST_REDIS_URL and HOLDFAST_DATABASE_URL, or use "
            "holdfast api and holdfast worker"
        )
    # What is not chosen suits somebody at a terminal: models without a key, and an end at once.
    defaults: dict[str, object] = {"builtin_models": True, "drain_s": 0.0, "docs": "on"}
    chosen = settings.model_fields_set
    settings = settings.model_copy(update={name: value for name, value in defaults.items() if name not in chosen})
    with bound_sockets(options.host, options.port) as sockets, only_process(settings.data_dir):
        async with named_file(file):
            database = Database(f"sqlite:///{file}")
        redis, keys = connect_embedded(), own_keys(settings)
        async with open_process(settings, database, redis, keys, is_embedded=True) as process:
            async with named_file(file):
                await migrate(database)
            _refuse_if_open(options.host, has_keys=bool(configured) or await ApiKeyStore(database).has_any())
            async with working(process, alone=True), serving(process) as app:
                await _serve(app, settings, options, sockets, WHAT_NEXT)


async def _run_api(settings: Settings, options: argparse.Namespace) -> None:
    configured = ConfiguredKeys.parse(settings.api_keys.get_secret_value(), settings.api_keys_file)
    if not configured and "api_keys" in settings.model_fields_set:
        raise InvalidRequest(
            "HOLDFAST_API_KEYS is set and empty: set it to project=key, or unset it to serve this machine without a key"
        )
    with bound_sockets(options.host, options.port) as sockets:
        async with production_process(settings) as process:
            has_keys = bool(configured) or await ApiKeyStore(process.database).has_any()
            _refuse_if_open(options.host, has_keys=has_keys)
            async with serving(process) as app:
                await _serve(app, settings, options, sockets)


async def _run_worker(settings: Settings, _options: argparse.Namespace) -> None:
    stop = told_to_end()
    async with production_process(settings, wait_s=WORKER_WAIT_S) as process, working(process):
        print(f"holdfast worker: up to {settings.max_runs} runs at once", flush=True)
        await stop.wait()


def _refuse_if_open(host: str, *, has_keys: bool) -> None:
    """Raises `InvalidRequest` where everybody would be let in by mistake."""
    if not has_keys and host not in LOOPBACK_NAMES:
        raise InvalidRequest(
            f"refusing to listen on {host} without API keys: set HOLDFAST_API_KEYS=project=key, make a key with "
            "`holdfast keys create`, or use --host 127.0.0.1"
        )


async def _serve(
    app: FastAPI, settings: Settings, options: argparse.Namespace, sockets: list[socket], hints: str = ""
) -> None:
    address = f"http://{options.host}:{options.port}"
    print(f"holdfast: {address}{hints.format(address=address)}", flush=True)
    rules = ConnectionRules(settings.request_timeout, settings.reader_timeout, settings.max_connections)
    await serve(app, sockets, rules)
