"""Services that are there and refuse: a role, a database, a password. The command says which setting that is. And a
limit of the machine, which a process names at its start."""

import os
import resource
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy.engine import make_url

from cli.operator.processes import open_process, warn_of_clocks
from shared.process.settings import Settings
from shared.redis.embedded import connect_embedded
from shared.secret_keys import SecretKeys
from shared.sql.engine import Database
from tests.kit.clocks import SettableClock
from tests.kit.services.databases import open_database
from tests.kit.services.redis_servers import PrivateRedis
from tests.unit.test_command_line import PASSWORD, REDIS, URL, refused


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"username": "nobody_of_this_name", "password": PASSWORD}, "refuses the role or its password"),
        ({"database": "no_database_of_this_name"}, "has no database of this name"),
    ],
)
async def test_postgres_that_refuses_is_a_mistake(
    tmp_path: Path, postgres_url: str, change: dict[str, str], said: str
) -> None:
    wrong = make_url(postgres_url).set(**cast("Any", change)).render_as_string(hide_password=False)
    for command in (["migrate"], ["api"], ["prune", "--older-than-days", "1"]):
        line = await refused(tmp_path, command, {URL: wrong, REDIS: _closed()})
        assert "HOLDFAST_DATABASE_URL (postgresql://" in line
        assert said in line


async def test_redis_that_refuses_is_a_mistake(tmp_path: Path, sqlite_url: str, private_redis: PrivateRedis) -> None:
    server = f"127.0.0.1:{private_redis.port}"
    await cast("Any", private_redis.client()).config_set("requirepass", "another")
    for url in (f"redis://{server}/0", f"redis://:{PASSWORD}@{server}/0"):
        assert "HOLDFAST_REDIS_URL: Redis refuses this process" in await refused(
            tmp_path, ["worker"], {URL: sqlite_url, REDIS: url}
        )
    assert "DB index is out of range" in await refused(
        tmp_path, ["api"], {URL: sqlite_url, REDIS: f"redis://:another@{server}/99"}
    )


def _closed() -> str:
    return os.environ.get("HOLDFAST_TEST_REDIS_URL") or "redis://127.0.0.1:6379/9"


@pytest.mark.parametrize(("files", "said"), [(200, "leaves an API 72 for connections"), (256, "")])
async def test_a_process_that_might_open_few_files_refused_connections_and_tools_without_a_word(
    sqlite_url: str, capsys: pytest.CaptureFixture[str], files: int, said: str
) -> None:
    """One that had room for a single connection looked like one that serves; the worker named no limit."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, before[1]))
    try:
        async with open_process(Settings(), Database(sqlite_url), connect_embedded(), SecretKeys({"k1": bytes(32)})):
            printed = capsys.readouterr().err
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert said in printed
    assert ("ulimit -n" in printed) is bool(said)


@pytest.mark.parametrize(
    ("minutes", "said"), [(60, " s behind this machine's"), (-60, " s ahead of this machine's"), (0, "")]
)
async def test_only_doctor_noticed_a_clock_that_was_an_hour_wrong(
    postgres_url: str, capsys: pytest.CaptureFixture[str], minutes: int, said: str
) -> None:
    clock = SettableClock()
    clock.advance(minutes=minutes)
    async with open_database(postgres_url) as database:
        await warn_of_clocks(Settings(), database, clock)
    printed = capsys.readouterr().err
    assert said in printed
    assert bool(printed) is bool(said)
