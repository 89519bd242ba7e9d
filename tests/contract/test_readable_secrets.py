"""A worker without the key of the secrets failed each run that needed one, and was ready everywhere."""

from collections.abc import AsyncGenerator

import pytest
from structlog.testing import capture_logs

from shared.domain.ids import IdMaker
from shared.domain.operations import ApiState
from shared.redis.connection import Redis
from shared.redis.embedded import connect_embedded
from shared.redis.process_presence import ProcessPresence
from shared.secret_keys import NO_KEYS, SecretKeys, can_read
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.tools import StoredSecretStore
from shared.sql.engine import Database
from tests.kit.runs.definitions import NOW, OTHER_PROJECT, some_agent
from tests.kit.services.databases import patient_database
from worker.health_port import ReadableSecrets

OLD, NEW = SecretKeys({"old": b"o" * 32}), SecretKeys({"new": b"n" * 32})
BOTH, TURNED = SecretKeys({"old": b"o" * 32, "new": b"n" * 32}), SecretKeys({"new": b"n" * 32, "old": b"o" * 32})
FORGED = SecretKeys({"old": b"another key of 32 bytes, one id.."[:32]})


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    opened = patient_database(database_url)
    yield opened
    await opened.aclose()


@pytest.fixture
async def redis() -> AsyncGenerator[Redis]:
    redis = connect_embedded()
    yield redis
    await redis.aclose(close_connection_pool=True)


async def agent_with_secret(database: Database, keys: SecretKeys, **fields: object) -> None:
    agent = some_agent(**{"tool_environment": {"CRM_KEY": "swordfish"}, **fields})
    await AgentEditor(database, keys).create(agent, system_message_id=IdMaker().message())


async def problem(keys: SecretKeys, database: Database, redis: Redis) -> str:
    found = ReadableSecrets(keys, StoredSecretStore(database), ProcessPresence(redis))
    assert found.problem, "until it has looked, a worker does not know"
    await found.look()
    return found.problem


async def api_with(keys: SecretKeys | None, redis: Redis) -> None:
    fingerprints = None if keys is None else keys.fingerprints
    state = ApiState(name="api-1", version="1", started_at=NOW, seen_at=NOW, readers=0, secret_keys=fingerprints)
    await ProcessPresence(redis).show(state)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (NO_KEYS, "encrypted with the key 'old', which is not configured"),
        (NEW, "encrypted with the key 'old', which is not configured"),
        (FORGED, "the key 'old' is not the one that it was encrypted with"),
        (OLD, ""),
        (BOTH, ""),
        (TURNED, ""),
    ],
    ids=["none", "another", "another of the same id", "the key", "behind it a new one", "behind a new one"],
)
async def test_a_worker_knows_whether_it_reads_what_is_stored(
    database: Database, redis: Redis, keys: SecretKeys, said: str
) -> None:
    await agent_with_secret(database, OLD)
    await agent_with_secret(database, keys=OLD, tool_environment={}, project_id=OTHER_PROJECT)
    found = await problem(keys, database, redis)
    assert said in found if said else found == ""
    assert "CRM_KEY" not in found, "the port asks for no key, and names are the agent's owner's"
    assert ("HOLDFAST_ENCRYPTION_KEY" in found) == bool(said)


async def test_secrets_in_plain_text_need_no_key(database: Database, redis: Redis) -> None:
    await agent_with_secret(database, NO_KEYS)
    for keys in (NO_KEYS, OLD):
        assert await problem(keys, database, redis) == ""


@pytest.mark.parametrize(
    ("api", "worker", "is_fine"),
    [
        (OLD, NO_KEYS, False),
        (OLD, FORGED, False),
        (NEW, OLD, False),
        (TURNED, OLD, False),
        (BOTH, OLD, True),
        (TURNED, BOTH, True),
        (NO_KEYS, OLD, True),
        (NO_KEYS, NO_KEYS, True),
        (None, NO_KEYS, True),
    ],
)
async def test_a_worker_knows_whether_it_reads_what_the_api_will_store(
    database: Database, redis: Redis, api: SecretKeys | None, worker: SecretKeys, is_fine: bool
) -> None:
    """Nothing is stored yet. An API that says nothing of its keys is no reason to doubt."""
    await api_with(api, redis)
    found = await problem(worker, database, redis)
    assert (found == "") is is_fine
    if api is not None:
        assert can_read(worker.fingerprints, api.fingerprints) is is_fine


async def test_a_problem_is_logged_once_and_ends_when_the_secret_is_set_anew(database: Database, redis: Redis) -> None:
    await agent_with_secret(database, OLD)
    found = ReadableSecrets(NEW, StoredSecretStore(database), ProcessPresence(redis))
    with capture_logs() as logged:
        for _ in range(3):
            await found.look()
    assert [line["event"] for line in logged] == ["secrets_cannot_be_read"]
    store = StoredSecretStore(database)
    for one in await store.newest(10):
        await store.replace(one, NEW.seal_all(one.owner_id, {"CRM_KEY": "marlin"}))
    await found.look()
    assert found.problem == ""


async def test_only_so_many_agents_are_looked_at(database: Database, redis: Redis) -> None:
    await agent_with_secret(database, OLD, name="first")
    await agent_with_secret(database, OLD, name="second")
    await agent_with_secret(database, OLD, name="third", tool_environment={})
    store = StoredSecretStore(database)
    assert [len(await store.newest(agents)) for agents in (1, 2, 3, 1000)] == [0, 1, 2, 2]
