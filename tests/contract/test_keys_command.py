"""`holdfast keys` makes, shows, rotates and revokes keys where the database is, and running servers follow."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import pytest

from shared.concurrency import SystemClock
from shared.domain.ids import ProjectId
from shared.sql.access.api_keys import ApiKeyStore
from shared.sql.access.audit import AuditFilter, AuditLog
from shared.sql.engine import Database
from shared.sql.paging import Page
from tests.kit.commands import Command, fork
from tests.kit.free_ports import free_port
from tests.kit.keys import KeyMaker
from tests.kit.product.in_process import api_client
from tests.kit.services.databases import open_database
from tests.kit.wait_until import wait_until

TEAM = ProjectId("team-b")
CONFIGURED = "a-long-key-of-the-operator"


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    async with open_database(database_url) as database:
        yield database


@dataclass(frozen=True)
class Said:
    """What a command printed, and how it ended."""

    status: int
    output: str
    errors: str


@dataclass
class KeysCommand:
    """`holdfast keys`, in a process of its own each time."""

    url: str
    directory: Path

    async def __call__(self, *arguments: str) -> Said:
        files = self.directory / "output", self.directory / "errors"
        for file in files:
            file.write_text("")
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        environment = clean | {"HOLDFAST_DATABASE_URL": self.url}
        process = await asyncio.to_thread(fork, Command(["keys", *arguments], environment, *files))
        await wait_until(lambda: process.exit_status() is not None, description="the command to end", timeout=60)
        status = process.exit_status()
        assert status is not None
        return Said(status, *(file.read_text() for file in files))


@pytest.fixture
def keys(database_url: str, tmp_path: Path) -> KeysCommand:
    return KeysCommand(database_url, tmp_path)


async def test_the_output_of_create_is_the_secret_alone(keys: KeysCommand, database: Database) -> None:
    said = await keys("create", "--project", "team-b", "--name", "a page", "--scope", "read", "--expires-in-days", "30")

    assert said.status == 0, said.errors
    secret = said.output.removesuffix("\n")
    assert secret.startswith("holdfast_")
    assert secret not in said.errors
    [key] = await ApiKeyStore(database).list_all()
    assert key.id in said.errors
    assert (key.project_id, key.name, key.scopes, key.created_by) == (TEAM, "a page", ["read"], "command-line")
    assert key.expires_at is not None
    assert (key.expires_at - key.created_at).days in (29, 30)
    async with api_client(database) as http:
        headers = {"Authorization": f"Bearer {secret}"}
        assert (await http.get("/v1/agents", headers=headers)).json() == []
        assert (await http.get("/v1/agents")).status_code == 401, "the database has a key now"


async def test_programs_read_a_key_with_its_id(keys: KeysCommand) -> None:
    made = json.loads((await keys("create", "--name", "x", "--json")).output)
    assert made["key"].startswith("holdfast_")
    rotated = json.loads((await keys("rotate", made["id"], "--json")).output)
    assert rotated["id"] == made["id"]
    assert rotated["key"] != made["key"]
    revoked = json.loads((await keys("revoke", made["id"], "--json")).output)
    assert (revoked["id"], revoked["status"]) == (made["id"], "revoked")
    assert "key" not in revoked


async def test_keys_are_listed_without_their_secrets(keys: KeysCommand) -> None:
    assert "PROJECT" in (await keys("list")).output
    made = await keys("create", "--name", "x")
    listed = (await keys("list", "--project", "default")).output
    assert made.output.strip()[:13] in listed
    assert made.output.strip() not in listed
    assert "active" in listed
    assert "write" in listed, "what a key may do that nobody has narrowed or widened"
    assert "key-" not in (await keys("list", "--project", "other")).output


async def test_a_running_api_follows_within_five_seconds(keys: KeysCommand, database: Database) -> None:
    """The command has no way to the API but the database."""
    made = await keys("create", "--name", "x")
    async with api_client(database, api_keys=f"default={CONFIGURED}") as http:

        async def status(said: Said) -> int:
            headers = {"Authorization": f"Bearer {said.output.strip()}"}
            return (await http.get("/v1/agents", headers=headers)).status_code

        assert await status(made) == 200
        [key] = await ApiKeyStore(database).list_all()
        rotated = await keys("rotate", key.id, "--grace", "0")
        assert await status(rotated) == 200

        async def is_refused() -> bool:
            return await status(made) == 401

        await wait_until(is_refused, description="the old secret to end")
        revoked = await keys("revoke", key.id)
        assert "is revoked" in revoked.output

        async def is_revoked() -> bool:
            return await status(rotated) == 401

        await wait_until(is_revoked, description="the key to end")


async def test_what_the_command_does_is_recorded(keys: KeysCommand, database: Database) -> None:
    await keys("create", "--project", "team-b", "--name", "x")
    [key] = await ApiKeyStore(database).list_all()
    await keys("revoke", key.id)
    events = await AuditLog(database).list(TEAM, AuditFilter(), Page())
    assert [(event.action, event.object_id, event.key_id) for event in events] == [
        ("key.revoked", key.id, "command-line"),
        ("key.created", key.id, "command-line"),
    ]
    assert all(event.key_name for event in events)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["revoke", "key-1"], "Key key-1 not found"),
        (["create", "--name", "x", "--scope", "root"], "unknown scope 'root'"),
        (["create", "--name", "x", "--project", " "], "--project is empty"),
        # It printed a secret that verifies no callback.
        (["callback-secret", "--project", ""], "--project is empty"),
    ],
)
async def test_a_mistake_is_one_line(keys: KeysCommand, arguments: list[str], said: str) -> None:
    refused = await keys(*arguments)
    assert refused.status != 0
    assert said in refused.errors
    assert refused.errors.count("\n") == 1


@pytest.fixture
def data(sqlite_url: str, tmp_path: Path) -> Path:
    """The data of `holdfast dev`, with a database that has no key."""
    directory = tmp_path / "data"
    directory.mkdir()
    Path(sqlite_url.removeprefix("sqlite:///")).rename(directory / "holdfast.db")
    return directory


@pytest.mark.parametrize("has_key", [False, True])
async def test_a_server_listens_beyond_loopback_if_its_database_has_had_a_key(
    data: Path, tmp_path: Path, has_key: bool
) -> None:
    if has_key:
        async with open_database(f"sqlite:///{data / 'holdfast.db'}") as database:
            made = await KeyMaker(database)("read")
            await ApiKeyStore(database).revoke(None, made.key.id, SystemClock().now())
    files = tmp_path / "output", tmp_path / "errors"
    for file in files:
        file.touch()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    arguments = ["dev", "--host", "127.0.0.2", "--port", str(free_port()), "--data-dir", str(data)]
    process = await asyncio.to_thread(fork, Command(arguments, clean, *files))
    try:
        await wait_until(
            lambda: "http://" in files[0].read_text() or process.exit_status() is not None,
            description="the server to listen or to refuse",
            timeout=60,
        )
        assert ("without API keys" in files[1].read_text()) is not has_key
    finally:
        if process.exit_status() is None:
            os.kill(process.pid, signal.SIGKILL)
