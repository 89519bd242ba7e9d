"""`holdfast status` says what works and which walls tools have, as an operator asks for it."""

import asyncio
import json
from pathlib import Path

from shared.sql.migrate import migrate
from tests.kit.commands import Command, fork
from tests.kit.free_ports import free_port
from tests.kit.product.processes import processes_in
from tests.kit.services.databases import patient_database, read_only
from tests.kit.services.redis_servers import PrivateRedis
from tests.kit.services.redis_servers import read_only as read_only_redis
from tests.kit.wait_until import wait_until


async def _said(environment: dict[str, str], files: tuple[Path, Path], *arguments: str) -> tuple[int, str]:
    for file in files:
        file.write_text("")
    process = await asyncio.to_thread(fork, Command(["status", *arguments], environment, *files))
    await wait_until(lambda: process.exit_status() is not None, description="the command to end")
    return process.exit_status() or 0, "".join(file.read_text() for file in files)


async def test_a_database_that_was_away_kept_the_rest_of_the_status_back(
    tmp_path: Path, private_redis: PrivateRedis
) -> None:
    """It waited half a minute, wrote a line a second, and said nothing of Redis and the workers."""
    url = f"postgresql://127.0.0.1:{free_port()}/holdfast"
    environment = {"HOLDFAST_DATABASE_URL": url, "HOLDFAST_REDIS_URL": private_redis.url}
    files = tmp_path / "output", tmp_path / "errors"
    status, text = await _said(environment, files)
    away = f"database   HOLDFAST_DATABASE_URL ({url}): the database does not answer"
    assert (status, away in text, "redis      answers" in text, "workers    none" in text) == (1, True, True, True), (
        text
    )
    assert "waiting" not in text
    status, text = await _said(environment, files, "--json")
    told = json.loads(text)
    assert (status, told["database"], told["redis"], told["workers"]) == (1, False, True, False)

    await private_redis.kill()
    status, text = await _said(environment, files)
    assert (status, away in text, "redis      does not answer" in text) == (1, True, True), text
    assert ".. " not in text and "Going on without it" in text


async def test_the_walls_of_the_workers_are_shown(
    tmp_path: Path, postgres_url: str, private_redis: PrivateRedis
) -> None:
    database = patient_database(postgres_url)
    await migrate(database)
    await database.aclose()
    environment = {"HOLDFAST_DATABASE_URL": postgres_url, "HOLDFAST_REDIS_URL": private_redis.url}
    files = tmp_path / "output", tmp_path / "errors"

    status, text = await _said(environment, files)
    assert (status, "none is alive" in text, "walls      unknown" in text) == (1, True, True), text

    async with processes_in(tmp_path, environment) as processes:
        await processes.worker(sandbox="process", tool_user="root")

        async def is_shown() -> bool:
            return "plain processes (HOLDFAST_SANDBOX=process)" in (await _said(environment, files))[1]

        await wait_until(is_shown, description="the worker's walls")
        status, text = await _said(environment, files)
        assert (status, "workers    1 live" in text) == (0, True), text
        told = json.loads((await _said(environment, files, "--json"))[1])
        assert (told["redis"], told["workers"], told["worker_count"]) == (True, True, 1)
        assert told["sandboxes"] == ["process"]

    await private_redis.kill()
    status, text = await _said(environment, files)
    assert (status, "redis      does not answer" in text) == (1, True), text
    told = json.loads((await _said(environment, files, "--json"))[1].splitlines()[0])
    assert (told["redis"], told["workers"], told["worker_count"]) == (False, None, None), "workers may live"


async def test_services_that_refused_writes_were_said_to_answer(
    tmp_path: Path, postgres_url: str, private_redis: PrivateRedis
) -> None:
    environment = {"HOLDFAST_DATABASE_URL": postgres_url, "HOLDFAST_REDIS_URL": private_redis.url}
    files = tmp_path / "output", tmp_path / "errors"
    async with read_only(postgres_url), read_only_redis(private_redis):
        status, text = await _said(environment, files)
        assert (status, "database   the database refuses writes" in text) == (1, True), text
        assert "redis      refuses writes; `holdfast doctor` says why" in text
        told = json.loads((await _said(environment, files, "--json"))[1].splitlines()[0])
    answers, writes = (told["database"], told["redis"]), (told["database_writes"], told["redis_writes"])
    assert (answers, writes) == ((True, True), (False, False))
