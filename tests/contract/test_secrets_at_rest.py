"""Secrets are stored encrypted and stay readable while keys change; `holdfast secrets rotate` ends such a change."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from shared.domain.agents import Agent
from shared.domain.ids import AgentId, IdMaker
from shared.secret_keys import NO_KEYS, SecretKeys, key_id_of
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.imported_agents import ImportBundle, ImportedAgent, ImportedAgentStore
from shared.sql.definitions.mcp_servers import McpServerStore
from shared.sql.definitions.tools import StoredSecretStore
from shared.sql.engine import Database
from shared.sql.runs.webhooks import FORMER_SECRET, SECRET, WebhookEndpointStore
from shared.sql.tables import agents
from tests.kit.commands import Command, fork
from tests.kit.runs.definitions import NOW, OTHER_PROJECT, PROJECT, some_agent, some_server
from tests.kit.runs.stored_runs import some_endpoint
from tests.kit.services.databases import patient_database
from tests.kit.wait_until import wait_until

LATER = NOW + timedelta(minutes=1)
OLD, NEW = f"old:{'A' * 43}=", f"new:{'B' * 43}="
SECRETS = {"TOKEN": "swordfish", "EMPTY": ""}


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    opened = patient_database(database_url)
    yield opened
    await opened.aclose()


def keys(*texts: str) -> SecretKeys:
    return SecretKeys.parse(",".join(texts), "HERE")


async def create(database: Database, secret_keys: SecretKeys, **fields: object) -> Agent:
    agent = some_agent(**{"tool_environment": SECRETS, **fields})
    return (await AgentEditor(database, secret_keys).create(agent, system_message_id=IdMaker().message())).agent


async def stored(database: Database, agent_id: AgentId) -> str:
    async with database.read() as connection:
        return (await connection.execute(sa.select(agents.c.document).where(agents.c.id == agent_id))).scalar_one()


async def environment(database: Database, agent: Agent) -> dict[str, str]:
    return (await AgentEditor(database).get(agent.project_id, agent.id)).tool_environment


async def test_agents_secrets_were_plain_text_in_the_database(database: Database) -> None:
    """Finding M9 of the security audit."""
    made = await create(database, keys(OLD))
    assert "swordfish" not in await stored(database, made.id)
    assert '"TOKEN"' in await stored(database, made.id), "the names are there"
    assert keys(OLD).open_all(made.id, await environment(database, made)) == SECRETS

    brought = some_agent(tool_environment=SECRETS)
    arrival = ImportedAgent(agent=brought, tool_names=[], system_message_id=IdMaker().message(), history=[])
    await ImportedAgentStore(database, keys(OLD)).store(
        PROJECT, ImportBundle(agents=[arrival], blocks=[], tools=[], replace_tools=False)
    )
    assert "swordfish" not in await stored(database, brought.id)


async def test_what_was_stored_in_plain_text_is_encrypted_with_the_next_change(database: Database) -> None:
    made = await create(database, NO_KEYS)
    assert "swordfish" in await stored(database, made.id)

    editor = AgentEditor(database, keys(OLD))
    await editor.update(PROJECT, made.id, lambda agent: replace(agent, description="changed"), LATER)

    assert "swordfish" not in await stored(database, made.id)
    assert keys(OLD).open_all(made.id, await environment(database, made)) == SECRETS


async def test_a_process_without_the_key_changes_an_agent_and_leaves_its_secrets(database: Database) -> None:
    """As one of the former release does while two run side by side."""
    made = await create(database, keys(OLD))
    before = await environment(database, made)
    await AgentEditor(database).update(PROJECT, made.id, lambda agent: replace(agent, description="changed"), LATER)
    assert await environment(database, made) == before


async def test_an_agent_that_was_changed_meanwhile_keeps_the_change(database: Database) -> None:
    made = await create(database, keys(OLD))
    store = StoredSecretStore(database)
    [seen] = await store.some(0, 10)
    await AgentEditor(database, keys(OLD)).update(PROJECT, made.id, lambda a: replace(a, description="new"), LATER)
    now = await stored(database, made.id)

    assert not await store.replace(seen, {})
    assert await stored(database, made.id) == now


async def test_fields_of_a_newer_release_outlive_a_change_of_the_key(database: Database) -> None:
    made = await create(database, NO_KEYS)
    known = await stored(database, made.id)
    newer = known.replace('{"id"', '{"of_tomorrow":{"n":1.50},"id"', 1)
    async with database.write() as connection:
        await connection.execute(sa.update(agents).where(agents.c.id == made.id).values(document=newer))
    store = StoredSecretStore(database)
    [seen] = await store.some(0, 10)

    assert await store.replace(seen, seen.secrets)
    assert await stored(database, made.id) == newer


@dataclass(frozen=True)
class Said:
    """What `holdfast secrets` printed, and how it ended."""

    status: int | None
    output: str
    errors: str


async def secrets(url: str, directory: Path, *arguments: str, **settings: str) -> Said:
    files = directory / "output", directory / "errors"
    for file in files:
        file.write_text("")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    command = Command(["secrets", *arguments], clean | {"HOLDFAST_DATABASE_URL": url} | settings, *files)
    process = await asyncio.to_thread(fork, command)
    await wait_until(lambda: process.exit_status() is not None, description="the command to end")
    return Said(process.exit_status(), *(file.read_text() for file in files))


async def test_rotate_encrypts_everything_with_the_first_key(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    plain = await create(database, NO_KEYS)
    old = await create(database, keys(OLD), project_id=OTHER_PROJECT)
    new = await create(database, keys(NEW, OLD))
    without = await create(database, keys(OLD), tool_environment={})
    untouched = await environment(database, new), await stored(database, without.id)
    both = {"HOLDFAST_ENCRYPTION_KEY": f"{NEW},{OLD}"}

    dry = await secrets(database_url, tmp_path, "rotate", "--dry-run", **both)
    assert (dry.status, dry.errors) == (0, "")
    assert [line.split(maxsplit=1) for line in dry.output.splitlines()] == [
        ["1", "secrets are not encrypted"],
        ["1", "secrets are encrypted with the key 'new'"],
        ["1", "secrets are encrypted with the key 'old'"],
    ]
    assert "swordfish" in await stored(database, plain.id)

    done = await secrets(database_url, tmp_path, "rotate", **both)
    assert (done.status, done.errors) == (0, "")
    assert [line.split(maxsplit=1) for line in done.output.splitlines()] == [
        ["2", "agents had secrets that are now encrypted with the key 'new'"],
        ["0", "webhook endpoints had secrets that are now encrypted with the key 'new'"],
        ["0", "MCP servers had secrets that are now encrypted with the key 'new'"],
        ["3", "secrets are encrypted with the key 'new'"],
    ]
    for agent in (plain, old, new):
        assert keys(NEW).open_all(agent.id, await environment(database, agent)) == SECRETS
    assert (await environment(database, new), await stored(database, without.id)) == untouched

    again = await secrets(database_url, tmp_path, "rotate", **both)
    assert again.output.splitlines()[0].split()[0] == "0", "what is done is not done again"
    told = json.loads((await secrets(database_url, tmp_path, "rotate", "--json", **both)).output)
    assert told == {
        "dry_run": False,
        "current": "new",
        "agents_changed": 0,
        "webhook_endpoints_changed": 0,
        "mcp_servers_changed": 0,
        "secrets_by_key": {"new": 3},
    }


async def test_rotate_encrypts_what_signs_for_webhook_endpoints(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    store, old = WebhookEndpointStore(database), keys(OLD)
    made = some_endpoint(former_until=LATER)
    sealed = replace(
        made, secret=old.seal(made.id, SECRET, "now"), former_secret=old.seal(made.id, FORMER_SECRET, "then")
    )
    await store.create(sealed)
    await store.create(some_endpoint(secret="plain"))
    both = {"HOLDFAST_ENCRYPTION_KEY": f"{NEW},{OLD}"}

    done = await secrets(database_url, tmp_path, "rotate", **both)

    assert (done.status, done.errors) == (0, "")
    assert "2 webhook endpoints had secrets that are now encrypted with the key 'new'" in done.output
    assert "3 secrets are encrypted with the key 'new'" in done.output
    stored = await store.get(PROJECT, made.id)
    assert list(keys(NEW).open_all(made.id, stored.secrets_at(NOW)).values()) == ["now", "then"]
    lost = await secrets(database_url, tmp_path, "rotate", HOLDFAST_ENCRYPTION_KEY=OLD)
    assert lost.status == 2
    assert f"webhook endpoint {made.id}: the secret '{SECRET}' cannot be read" in lost.errors


async def test_rotate_encrypts_what_mcp_servers_are_sent(database: Database, database_url: str, tmp_path: Path) -> None:
    store, old = McpServerStore(database), keys(OLD)
    made = some_server(name="old")
    values = {"token": "now", "header:X-Team": "blue"}
    await store.create(replace(made, secrets=old.seal_all(made.id, values)))
    await store.create(some_server(name="plain", secrets={"token": "plain"}))
    await store.create(some_server(name="without"))
    both = {"HOLDFAST_ENCRYPTION_KEY": f"{NEW},{OLD}"}

    done = await secrets(database_url, tmp_path, "rotate", **both)

    assert (done.status, done.errors) == (0, "")
    assert "2 MCP servers had secrets that are now encrypted with the key 'new'" in done.output
    assert "3 secrets are encrypted with the key 'new'" in done.output
    stored = await store.get(PROJECT, made.id)
    assert keys(NEW).open_all(made.id, stored.secrets) == values
    assert (stored.name, stored.updated_at) == ("old", made.updated_at)
    lost = await secrets(database_url, tmp_path, "rotate", HOLDFAST_ENCRYPTION_KEY=OLD)
    assert f"MCP server {made.id}: the secret 'token' cannot be read" in lost.errors


async def test_rotate_goes_on_after_a_secret_that_it_cannot_read_and_names_the_key(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    lost, plain = await create(database, keys(OLD)), await create(database, NO_KEYS)
    before = await environment(database, lost)

    said = await secrets(database_url, tmp_path, "rotate", HOLDFAST_ENCRYPTION_KEY=NEW)

    assert said.status == 2
    assert f"agent {lost.id}: the secret 'TOKEN' cannot be read" in said.errors
    assert "the key 'old', which is not configured" in said.errors
    assert "1 secrets are encrypted with the key 'old', which is not configured" in said.output
    assert await environment(database, lost) == before
    assert [key_id_of(value) for value in (await environment(database, plain)).values()] == ["new", ""]


async def test_generate_key_prints_a_key_that_the_setting_takes(tmp_path: Path) -> None:
    said = await secrets("", tmp_path, "generate-key")
    assert (said.status, said.errors) == (0, "")
    assert keys(said.output.strip()).current


async def test_rotate_without_a_key_says_how_to_make_one(tmp_path: Path) -> None:
    said = await secrets("sqlite:///nowhere", tmp_path, "rotate")
    assert said.status == 2
    assert "HOLDFAST_ENCRYPTION_KEY is not set" in said.errors
    assert "generate-key" in said.errors
