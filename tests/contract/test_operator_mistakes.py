"""Services that are there and refuse: a role, a database, a password. The command says which setting that is."""

import os
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy.engine import make_url

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
