"""What the command line says to those who got it wrong: one line that names what to change, and a status of 2."""

import asyncio
import json
import os
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.commands import HOLDFAST, Command, CommandProcess, execute, fork
from tests.kit.free_ports import free_port
from tests.kit.wait_until import wait_until

NOTHING = socket.gethostname() + ".invalid"
URL, REDIS = "HOLDFAST_DATABASE_URL", "HOLDFAST_REDIS_URL"
PASSWORD = "geheimes-wort"
SECRET_URL = f"postgresql://holdfast:{PASSWORD}@127.0.0.1"

SERVICES = {URL: "sqlite:////tmp/x.db", REDIS: "redis://127.0.0.1:6379/0"}
"""Named, and never asked: what is wrong is said before."""

WRONG_SETTINGS: list[tuple[list[str], dict[str, str], str]] = [
    (["worker"], {"HOLDFAST_MAX_RUNS": "many"}, "HOLDFAST_MAX_RUNS is 'many': it should be a valid integer"),
    (["worker"], {"HOLDFAST_LEASE_S": "-1"}, "HOLDFAST_LEASE_S is '-1': it should be greater than 0.2"),
    (["worker", "--drain-seconds", "-1"], {}, "HOLDFAST_DRAIN_S"),
    (
        ["worker"],
        {"HOLDFAST_PROJECT_DAILY_COST": "inf"},
        "HOLDFAST_PROJECT_DAILY_COST is 'inf': it should be less than",
    ),
    (["worker"], {"HOLDFAST_RUN_COST_BUDGET": "1e308"}, "HOLDFAST_RUN_COST_BUDGET is '1e308': it should be less than"),
    (["worker"], {"HOLDFAST_AGENT_DAILY_COST": "nan"}, "HOLDFAST_AGENT_DAILY_COST is 'nan': it should be"),
    (["worker"], {"HOLDFAST_KEY_DAILY_COST": "1e10"}, "HOLDFAST_KEY_DAILY_COST is '1e10': it should be less than"),
    (["worker", "--max-runs", "0"], {}, "--max-runs: Input should be greater than or equal to 1"),
    (["worker"], {"HOLDFAST_LOG_LEVEL": "LOUD"}, "HOLDFAST_LOG_LEVEL is 'LOUD': it should be one of DEBUG, INFO"),
    (["worker"], {"HOLDFAST_DEFAULT_MODEL": "gpt"}, "HOLDFAST_DEFAULT_MODEL is 'gpt': unknown model handle"),
    (["worker"], {"HOLDFAST_CRASH_AT": "noon"}, "HOLDFAST_CRASH_AT='noon'"),
    (["api"], {"HOLDFAST_CORS_ORIGINS": "app.example"}, "write it as https://app.example.org"),
    (["api"], {"HOLDFAST_ALLOWED_HOSTS": "http://app"}, "write it as app.example.org"),
    # names
    (["worker"], {"HOLDFAST_MAXRUNS": "3"}, "HOLDFAST_MAXRUNS is no setting: did you mean HOLDFAST_MAX_RUNS?"),
    (["dev"], {"HOLDFAST_QQQ": "3"}, "HOLDFAST_QQQ is no setting; docs/settings.md lists them all"),
    (["migrate"], {"HOLDFAST_DATABASE": "x"}, "did you mean HOLDFAST_DATABASE_URL?"),
    (["prune"], {"HOLDFAST_RETAIN_DAY": "1"}, "did you mean HOLDFAST_RETAIN_DAYS?"),
    # keys and addresses to listen on
    (["dev", "--host", "0.0.0.0"], {}, "HOLDFAST_API_KEYS"),  # noqa: S104 - refused, and that is the point
    (["api"], {"HOLDFAST_API_KEYS": "", **SERVICES}, "HOLDFAST_API_KEYS is set and empty"),
    (["api"], {"HOLDFAST_API_KEYS": " , ,", **SERVICES}, "no key is in it"),
    (["dev", "--host", "127.0.0.2"], {"HOLDFAST_API_KEYS": ""}, "without API keys"),
    (["dev", "--host", "127.0.0.2"], {"HOLDFAST_API_KEYS": ","}, "no key is in it"),
    (["api"], {"HOLDFAST_API_KEYS": "nonsense", **SERVICES}, "entry 1: write it as project=key"),
    (["dev", "--port", "99999"], {}, "--port: Input should be less than or equal to 65535"),
    (["api", "--port", "-1"], {}, "--port"),
    (["dev", "--host", "192.0.2.1"], {"HOLDFAST_API_KEYS": "a=b"}, "--host 192.0.2.1 is no address of this machine"),
    (["api", "--host", NOTHING], {"HOLDFAST_API_KEYS": "a=b", **SERVICES}, "no address is known for this name"),
    # the database
    (["worker"], {}, "HOLDFAST_DATABASE_URL is not set"),
    (["migrate"], {}, "HOLDFAST_DATABASE_URL is not set"),
    (["migrate"], {URL: "mysql://host/db"}, "HOLDFAST_DATABASE_URL names 'mysql'"),
    (["migrate"], {URL: f"postgresql//holdfast:{PASSWORD}@h/db"}, "HOLDFAST_DATABASE_URL is not a database URL"),
    (["migrate"], {URL: f"{SECRET_URL}:port/db"}, "HOLDFAST_DATABASE_URL is not a database URL"),
    (["migrate"], {URL: f"{SECRET_URL}:99999/db"}, "HOLDFAST_DATABASE_URL names port 99999"),
    (["migrate"], {URL: f"{SECRET_URL}/db?sslmode=some"}, "sslmode is one of disable"),
    (["migrate"], {URL: f"{SECRET_URL}/db?pool=9"}, "HOLDFAST_DATABASE_URL has a parameter 'pool'"),
    (["migrate"], {URL: "sqlite://"}, "HOLDFAST_DATABASE_URL names no file"),
    (["migrate"], {URL: "sqlite:////proc/holdfast/h.db"}, "the folder /proc/holdfast cannot be made"),
    (["migrate"], {URL: "sqlite:////dev/null/h.db"}, "the folder /dev/null cannot be made"),
    (["migrate"], {URL: "sqlite:////tmp"}, "the database's file cannot be opened"),
    (["dev"], {REDIS: "redis://127.0.0.1:6379/0"}, "holdfast worker"),
    (["dev", "--data-dir", "/dev/null"], {}, "/dev/null (--data-dir, HOLDFAST_DATA_DIR) cannot be written"),
    (["dev"], {"HOLDFAST_DATA_DIR": "/proc/holdfast"}, "/proc/holdfast (--data-dir, HOLDFAST_DATA_DIR) cannot be"),
    # Redis
    (["worker"], {URL: "sqlite:////tmp/x.db"}, "HOLDFAST_REDIS_URL is not set"),
    (["worker"], {URL: "sqlite:////tmp/x.db", REDIS: "http://x"}, "HOLDFAST_REDIS_URL is not the address of a Redis"),
    (["api"], {URL: "sqlite:////tmp/x.db", REDIS: f"redis://:{PASSWORD}@h:port/0"}, "HOLDFAST_REDIS_URL is not the"),
    (["api"], {URL: "sqlite:////tmp/x.db", REDIS: "redis://h/first"}, "HOLDFAST_REDIS_URL is not the address"),
    (["api"], {URL: "sqlite:////tmp/x.db", REDIS: "redis://h/0?colour=red"}, "HOLDFAST_REDIS_URL is not the address"),
    # agents' secrets
    (
        ["worker"],
        {"HOLDFAST_ENCRYPTION_KEY": "nonsense", **SERVICES},
        "HOLDFAST_ENCRYPTION_KEY, entry 1: write it as id:key",
    ),
    (["secrets", "rotate"], {}, "HOLDFAST_ENCRYPTION_KEY is not set"),
    # the command itself
    (["serve"], {}, "No such command 'serve'"),
    (["keys"], {}, "Missing command; `holdfast keys --help` shows"),
    (["runs", "list", "--status", "done"], {}, "argument --status: 'done' is not one of 'created', 'running'"),
    (["runs", "list"], {"HOLDFAST_API_KE": "x"}, "did you mean HOLDFAST_API_KEY?"),
    (["dev"], {"HOLDFAST_OTLP_ENDPOINT": "collector:4317"}, "HOLDFAST_OTLP_ENDPOINT: it should be the address"),
    (["dev"], {"HOLDFAST_OTLP_ENDPOINT": f"https://ada:{PASSWORD}@collector"}, "OTEL_EXPORTER_OTLP_HEADERS"),
]

Start = Callable[[Command], CommandProcess]


async def refused(
    directory: Path, arguments: list[str], settings: dict[str, str], *, status: int = 2, start: Start = fork
) -> str:
    """The one line that the command says before it ends."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    files = directory / "output", directory / "errors"
    for file in files:
        file.write_text("")
    process = start(Command(arguments, clean | settings, *files))
    await wait_until(lambda: process.exit_status() is not None, description="the command to end")

    said = files[1].read_text()
    assert said.startswith("holdfast: "), said
    assert said.count("\n") == 1, said
    assert PASSWORD not in said
    assert files[0].read_text() == ""
    assert process.exit_status() == status
    return said


@pytest.mark.parametrize(("arguments", "settings", "named"), WRONG_SETTINGS, ids=lambda value: str(value)[:60])
async def test_a_wrong_start_is_refused_in_one_line(
    tmp_path: Path, arguments: list[str], settings: dict[str, str], named: str
) -> None:
    assert named in await refused(tmp_path, arguments, settings)


@pytest.mark.parametrize(
    ("arguments", "named"), [(["worker"], "HOLDFAST_DATABASE_URL is not set"), (["serve"], "No such command 'serve'")]
)
async def test_the_reason_of_a_failed_start_was_no_json_among_lines_of_json(
    tmp_path: Path, arguments: list[str], named: str
) -> None:
    files = tmp_path / "output", tmp_path / "errors"
    for file in files:
        file.write_text("")
    process = await asyncio.to_thread(fork, Command(arguments, {"HOLDFAST_LOG_JSON": "true"}, *files))
    await wait_until(lambda: process.exit_status() is not None, description="the command to end")
    line = json.loads(files[1].read_text())
    assert (line["event"], line["level"], line["status"]) == ("command_failed", "error", 2)
    assert named in line["reason"]


async def test_a_port_that_is_taken_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = await refused(tmp_path, ["dev", "--port", port, "--data-dir", str(tmp_path / "data")], {})
    assert f"--port {port} is taken on 127.0.0.1" in said
    assert not (tmp_path / "data").exists()


async def test_a_database_that_nobody_serves_is_a_failure_and_no_mistake(tmp_path: Path) -> None:
    said = await refused(tmp_path, ["migrate"], {URL: f"{SECRET_URL}:{free_port()}/db"}, status=1)
    assert "HOLDFAST_DATABASE_URL (postgresql://holdfast:***@127.0.0.1:" in said
    assert "refused" in said


async def test_a_host_that_does_not_exist_is_named(tmp_path: Path) -> None:
    said = await refused(tmp_path, ["migrate"], {URL: f"postgresql://u:{PASSWORD}@{NOTHING}/db"}, status=1)
    assert f"@{NOTHING}/db): the database does not answer" in said


async def test_a_driver_that_is_not_installed_is_named(tmp_path: Path) -> None:
    program = f"import sys; sys.modules['asyncpg'] = None; {HOLDFAST}"
    said = await refused(
        tmp_path, ["migrate"], {URL: f"{SECRET_URL}/db"}, start=lambda command: execute(command, program)
    )
    assert "'asyncpg', which is not installed. In a checkout of Holdfast, `pip install -e '.[postgres]'" in said


@pytest.mark.parametrize(
    "content", [b"Not a database, but long enough to be looked at." * 40, b"SQLite format 3\0" * 9]
)
async def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "holdfast.db"
    file.write_bytes(content)
    assert "is not a SQLite database" in await refused(tmp_path, ["migrate"], {URL: f"sqlite:///{file}"})
    said = await refused(tmp_path, ["dev", "--port", str(free_port()), "--data-dir", str(tmp_path)], {})
    assert f"{file} (--data-dir, HOLDFAST_DATA_DIR): the database's file is not a SQLite database" in said


def damage(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:100] + b"\xff" * 4000 + content[4100:])


async def test_a_damaged_database_is_refused(tmp_path: Path, sqlite_url: str) -> None:
    damage(Path(sqlite_url.removeprefix("sqlite:///")))
    assert "restore a back-up" in await refused(tmp_path, ["migrate"], {URL: sqlite_url})


async def test_a_database_of_a_newer_version_is_refused(tmp_path: Path, sqlite_url: str) -> None:
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0002_of_a_newer_one'")
    connection.close()
    for command in (["migrate"], ["prune", "--older-than-days", "1"]):
        said = await refused(tmp_path, command, {URL: sqlite_url})
        assert "a newer version has migrated the database, to revision '0002_of_a_newer_one'" in said


@pytest.mark.parametrize("revision", ["0001", "0023"])
async def test_a_database_from_before_the_first_release_is_refused(
    tmp_path: Path, sqlite_url: str, revision: str
) -> None:
    """`0002` was taken for what a newer version calls a migration, and the way back was said to be a back-up."""
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", [revision])
    connection.close()
    for command in (["migrate"], ["prune", "--older-than-days", "1"]):
        said = await refused(tmp_path, command, {URL: sqlite_url})
        assert f"from before 0.2.0, which was never released, made the database (revision '{revision}')" in said
        assert "give Holdfast a new, empty database" in said


async def test_tables_of_somebody_else_are_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "theirs.db") as connection:
        connection.execute("CREATE TABLE agents (name TEXT)")
    connection.close()
    said = await refused(tmp_path, ["migrate"], {URL: f"sqlite:///{tmp_path / 'theirs.db'}"})
    assert "give Holdfast its own database" in said


async def test_names_of_tests_and_of_kubernetes_are_no_settings(tmp_path: Path) -> None:
    foreign = {"HOLDFAST_TEST_REDIS_URL": "x", "HOLDFAST_SERVICE_HOST": "10.0.0.1", "HOLDFAST_PORT": "tcp://10.0.0.1:1"}
    foreign |= {"HOLDFAST_API_SERVICE_PORT_HTTP": "80", "HOLDFAST_API_PORT_8283_TCP_ADDR": "10.0.0.1"}
    assert "HOLDFAST_DATABASE_URL is not set" in await refused(tmp_path, ["migrate"], foreign)
