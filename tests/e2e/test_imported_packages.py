"""Which packages each command imports: what it uses, and nothing else.

A start is imports, nearly all of it, so a package that a command does not need is time that everybody waits. The lists
are exact. Those of servers are taken when they end, with a run behind them: no run imported what was not there before.
`bench/start.py` has the times.
"""

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from cli.command_table import COMMANDS
from tests.kit.commands import HOLDFAST, Command, execute
from tests.kit.free_ports import free_port
from tests.kit.product.processes import api_at, processes_in
from tests.kit.services.redis_servers import PrivateRedis
from tests.kit.wait_until import wait_until

COMMAND_LINE = frozenset({"annotated_doc", "cli", "msgspec", "shared", "shellingham", "typer", "typing_extensions"})
HELP = COMMAND_LINE | {"attr", "markdown_it", "mdurl", "pygments", "rich"}
SETTINGS = COMMAND_LINE | {
    *("annotated_types", "cython_runtime", "dotenv", "greenlet", "packaging", "pydantic", "pydantic_core"),
    *("pydantic_settings", "structlog", "typing_inspection", "uvloop"),
}
STORES = SETTINGS | {"arq", "cryptography", "hiredis", "jwt", "redis", "sqlalchemy"}
DOCTOR = STORES | {"api", "h11", "httptools", "httpx2", "idna", "prometheus_client", "worker"}
SERVER = STORES | {"httptools", "httpx2", "idna", "prometheus_client", "tree_sitter", "tree_sitter_typescript"}
WORKER = SERVER | {"h11", "worker"}
API = SERVER | {
    *("anyio", "api", "click", "fastapi", "opentelemetry", "python_multipart", "sniffio", "starlette", "uvicorn"),
}
POSTGRES = frozenset({"asyncpg"})
EMBEDDED = frozenset({"aiosqlite", "fakeredis", "lupa", "sortedcontainers"})
MIGRATIONS = frozenset({"alembic", "mako", "markupsafe", "pygments"})

KEYS = {"OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none", "GEMINI_API_KEY": "none"}
"""A worker imported the SDKs of all providers that it had keys for, beside its first runs."""

OF_THE_MACHINE = frozenset({"sitecustomize", "usercustomize", "async_timeout"})
"""`async_timeout` is what redis-py takes where Python is older than 3.11.3."""

PROGRAM = f"""
import atexit, json, os, sys
place = os.path.join(os.environ["IMPORTED"], sys.argv[1] + ".json")
atexit.register(lambda: open(place, "w").write(json.dumps(list(sys.modules))))
{HOLDFAST}
"""


def _imported(directory: Path, command: str) -> frozenset[str]:
    """The packages that a process had imported at its end, without Python's own, and what depends on the machine's
    Python: Debian starts each with a module of its own."""
    packages = {name.partition(".")[0] for name in json.loads((directory / f"{command}.json").read_text())}
    return frozenset(name for name in packages - sys.stdlib_module_names - OF_THE_MACHINE if not name.startswith("_"))


async def _imported_by(
    directory: Path, command: str | Sequence[str], environment: dict[str, str], status: int
) -> frozenset[str]:
    files = directory / "output", directory / "log"
    arguments = [command] if isinstance(command, str) else command
    process = execute(Command(arguments, {"IMPORTED": str(directory), **environment}, *files), PROGRAM)
    await wait_until(lambda: process.exit_status() is not None, description=f"{command} to end")
    assert process.exit_status() == status, files[1].read_text()
    return _imported(directory, arguments[0])


async def _run(port: int) -> None:
    async with api_at(port) as http:
        agent = (await http.post("/v1/agents", json={"model": "builtin/echo"})).raise_for_status().json()
        asked = {"messages": [{"role": "user", "content": "Hello"}]}
        answer = (await http.post(f"/v1/agents/{agent['id']}/messages", json=asked)).raise_for_status().json()
    assert answer["stop_reason"]["stop_reason"] == "end_turn"


async def test_help_imports_nothing_of_the_product(tmp_path: Path) -> None:
    assert await _imported_by(tmp_path, "--help", {}, 0) == HELP


@pytest.mark.parametrize("command", ["dev", "api", "worker"])
@pytest.mark.parametrize(
    "wrong", [{"HOLDFAST_DRAIN_S": "soon"}, {"HOLDFAST_DRAIN": "1"}, {"HOLDFAST_EVENT_LOG_URL": "redis://localhost"}]
)
async def test_a_wrong_setting_was_said_after_all_imports(tmp_path: Path, command: str, wrong: dict[str, str]) -> None:
    """The last one is wrong for `dev`; the servers lack what they need."""
    assert await _imported_by(tmp_path, command, wrong, 2) == SETTINGS


OPERATORS_COMMANDS = {
    **{name: [name] for name, place in COMMANDS.items() if place.module == "cli.operator.maintenance"},
    "keys-create": ["keys", "create", "--name", "backend"],
    "keys-list": ["keys", "list"],
    "keys-revoke": ["keys", "revoke", "key-1"],
    "keys-rotate": ["keys", "rotate", "key-1"],
    "keys-callback-secret": ["keys", "callback-secret"],
    "secrets-generate-key": ["secrets", "generate-key"],
    "secrets-rotate": ["secrets", "rotate"],
}
NEEDS_NOTHING = ("doctor", "secrets-generate-key")
"""These do something without any setting."""


@pytest.mark.parametrize("wrong", [{"HOLDFAST_RUN_TIMEOUT": "abc"}, {"HOLDFAST_TIMEOUT": "1"}])
@pytest.mark.parametrize("command", OPERATORS_COMMANDS)
async def test_an_operators_wrong_setting_was_said_after_all_imports(
    tmp_path: Path, command: str, wrong: dict[str, str]
) -> None:
    assert await _imported_by(tmp_path, OPERATORS_COMMANDS[command], wrong, 2) == SETTINGS


@pytest.mark.parametrize("command", [name for name in OPERATORS_COMMANDS if name not in NEEDS_NOTHING])
async def test_a_missing_setting_was_said_after_all_imports(tmp_path: Path, command: str) -> None:
    assert await _imported_by(tmp_path, OPERATORS_COMMANDS[command], {}, 2) == SETTINGS


async def test_doctor_imports_no_server(tmp_path: Path) -> None:
    assert await _imported_by(tmp_path, "doctor", KEYS, 0) == DOCTOR


async def test_dev_imports_alembic_once_and_no_other_database(tmp_path: Path) -> None:
    program = partial(execute, program=PROGRAM)
    for migrations in (MIGRATIONS, frozenset[str]()):
        async with processes_in(tmp_path, {"IMPORTED": str(tmp_path), **KEYS}, program) as processes:
            port = free_port()
            process = await processes.dev(port)
            await _run(port)
            await process.terminate()
        assert _imported(tmp_path, "dev") == API | WORKER | EMBEDDED | migrations


async def test_api_and_worker_import_nothing_of_each_other(
    tmp_path: Path, postgres_url: str, private_redis: PrivateRedis
) -> None:
    services = {"HOLDFAST_DATABASE_URL": postgres_url, "HOLDFAST_REDIS_URL": private_redis.url}
    variables = {"IMPORTED": str(tmp_path), "HOLDFAST_BUILTIN_MODELS": "true", **services, **KEYS}
    async with processes_in(tmp_path, variables, partial(execute, program=PROGRAM)) as processes:
        port = free_port()
        api, worker = await processes.api(port), await processes.worker()
        await _run(port)
        await worker.terminate()
        await api.terminate()
    assert _imported(tmp_path, "worker") == WORKER | POSTGRES
    assert _imported(tmp_path, "api") == API | POSTGRES
