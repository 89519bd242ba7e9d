"""`holdfast doctor` names what is wrong, with the fix, and ends with 1 then."""

import json
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from shared.domain.ids import IdMaker
from shared.domain.operations import ApiState, WorkerState
from shared.redis.process_presence import ProcessPresence
from shared.secret_keys import SecretKeys
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.migrate import migrate
from shared.sql.runs.webhooks import SECRET, WebhookEndpointStore
from tests.kit.free_ports import free_port
from tests.kit.model_server import ModelServer
from tests.kit.product.terminal import clean_environment, said
from tests.kit.runs.definitions import NOW, some_agent
from tests.kit.runs.stored_runs import some_endpoint
from tests.kit.services.databases import patient_database, read_only
from tests.kit.services.redis_cluster import PrivateCluster
from tests.kit.services.redis_servers import PrivateRedis

PLAIN = {"HOLDFAST_SANDBOX": "process", "HOLDFAST_TOOL_USER": "root"}


async def _findings(directory: Path, *arguments: str, **settings: str) -> tuple[int, dict[str, dict[str, str]]]:
    done = await said(directory, ["doctor", "--json", *arguments], clean_environment(**PLAIN, **settings))
    assert done.output, done.errors
    findings = [json.loads(line) for line in done.output.splitlines()]
    return done.status, {finding["subject"]: finding for finding in findings}


async def test_services_that_are_well_are_said_to_be(
    tmp_path: Path, postgres_url: str, private_redis: PrivateRedis
) -> None:
    new = f"sqlite:///{tmp_path / 'new.db'}"
    status, found = await _findings(tmp_path, HOLDFAST_DATABASE_URL=new, HOLDFAST_REDIS_URL=private_redis.url)
    assert (status, found["migrations"]["verdict"]) == (1, "wrong")
    assert "holdfast migrate" in found["migrations"]["said"]

    database = patient_database(postgres_url)
    await migrate(database)
    await database.aclose()
    settings = {"HOLDFAST_DATABASE_URL": postgres_url, "HOLDFAST_REDIS_URL": private_redis.url}
    client = cast("Any", private_redis.client())
    await client.config_set("maxmemory-policy", "noeviction")
    status, found = await _findings(tmp_path, **settings)
    assert status == 0, found
    assert {
        found[name]["verdict"] for name in ("database", "database clock", "migrations", "redis", "redis clock")
    } == {"ok"}
    assert "plain processes" in found["walls around tools"]["said"]

    await client.config_set("maxmemory-policy", "allkeys-lru")
    status, found = await _findings(tmp_path, **settings)
    assert (status, found["redis eviction"]["verdict"]) == (1, "wrong")
    assert "noeviction" in found["redis eviction"]["fix"]


async def test_every_server_of_the_logs_was_left_out(
    tmp_path: Path, private_redis: PrivateRedis, redis_cluster: PrivateCluster
) -> None:
    """It said that they answer, not that they throw logs away or are full."""
    settings = {"HOLDFAST_REDIS_URL": private_redis.url, "HOLDFAST_EVENT_LOG_URL": redis_cluster.url}
    _, found = await _findings(tmp_path, **settings)
    assert found["event log"]["verdict"] == "ok"
    for port in redis_cluster.ports:
        assert found[f"event log 127.0.0.1:{port} eviction"]["verdict"] == "ok"
        assert "maxmemory is not set" in found[f"event log 127.0.0.1:{port} memory"]["said"]


async def test_a_redis_that_took_no_writes_was_said_to_be_well(tmp_path: Path, private_redis: PrivateRedis) -> None:
    client = cast("Any", private_redis.client())
    await client.config_set("maxmemory", "1")
    _, found = await _findings(tmp_path, HOLDFAST_REDIS_URL=private_redis.url)
    assert (found["redis writes"]["verdict"], "maxmemory" in found["redis writes"]["said"]) == ("wrong", True)
    await client.config_set("maxmemory", "0")
    _, found = await _findings(tmp_path, HOLDFAST_REDIS_URL=private_redis.url)
    assert found["redis writes"]["verdict"] == "ok"


async def test_a_database_that_took_no_writes_was_said_to_be_well(tmp_path: Path, postgres_url: str) -> None:
    async with read_only(postgres_url):
        status, found = await _findings(tmp_path, HOLDFAST_DATABASE_URL=postgres_url)
    writes = found["database writes"]
    assert (status, found["database"]["verdict"], writes["verdict"]) == (1, "ok", "wrong")
    assert "its server is a standby" in writes["said"] and writes["fix"] == "docs/operations/database-lost.md"
    _, found = await _findings(tmp_path, HOLDFAST_DATABASE_URL=postgres_url)
    assert found["database writes"]["verdict"] == "ok"


async def test_a_redis_user_without_channels_was_found_by_nothing(
    tmp_path: Path, postgres_url: str, private_redis: PrivateRedis
) -> None:
    await cast("Any", private_redis.client()).execute_command("ACL", "SETUSER", "hf", "on", ">pw", "~*", "+@all")
    settings = {"HOLDFAST_REDIS_URL": private_redis.url.replace("redis://", "redis://hf:pw@")}
    _, found = await _findings(tmp_path, **settings)
    assert (found["redis writes"]["verdict"], "channel" in found["redis writes"]["said"]) == ("wrong", True)
    started = await said(tmp_path, ["worker"], clean_environment(HOLDFAST_DATABASE_URL=postgres_url, **settings))
    assert (started.status != 0, "Redis refuses this process" in started.errors) == (True, True), started


async def test_a_redis_user_who_may_not_ask_for_its_state_was_said_to_be_refused(
    tmp_path: Path, private_redis: PrivateRedis
) -> None:
    rights = ("~*", "&*", "+@all", "-@dangerous")
    await cast("Any", private_redis.client()).execute_command("ACL", "SETUSER", "hf", "on", ">pw", *rights)
    url = private_redis.url.replace("redis://", "redis://hf:pw@")
    _, found = await _findings(tmp_path, HOLDFAST_REDIS_URL=url)
    verdicts = {name: found[name]["verdict"] for name in ("redis", "redis settings", "redis memory", "redis writes")}
    assert verdicts == {"redis": "ok", "redis settings": "warn", "redis memory": "warn", "redis writes": "ok"}


async def test_a_second_redis_that_is_nearly_full_is_named(tmp_path: Path, private_redis: PrivateRedis) -> None:
    client = cast("Any", private_redis.client())
    where = f"event log 127.0.0.1:{private_redis.port}"
    logs = private_redis.url.removesuffix("0") + "1"
    settings = {"HOLDFAST_REDIS_URL": private_redis.url, "HOLDFAST_EVENT_LOG_URL": logs}
    await client.config_set("maxmemory", "1gb")
    _, found = await _findings(tmp_path, **settings)
    assert found[f"{where} memory"]["verdict"] == "ok"
    assert "of 1,073.7 MB are used" in found[f"{where} memory"]["said"]

    await client.config_set("maxmemory", "1mb")
    await client.config_set("maxmemory-policy", "allkeys-lru")
    status, found = await _findings(tmp_path, **settings)
    assert (status, found[f"{where} eviction"]["verdict"]) == (1, "wrong")
    assert found[f"{where} memory"]["verdict"] == "warn"


async def test_what_is_away_or_refused_is_named(tmp_path: Path) -> None:
    away = f"127.0.0.1:{free_port()}"
    settings = {"HOLDFAST_DATABASE_URL": f"postgresql://u:geheim@{away}/db", "HOLDFAST_REDIS_URL": f"redis://{away}/0"}
    status, found = await _findings(tmp_path, HOLDFAST_ENCRYPTION_KEY="nonsense", **settings)
    assert status == 1
    assert {found[name]["verdict"] for name in ("database", "redis", "encryption key")} == {"wrong"}
    assert "geheim" not in str(found)
    half = await _findings(tmp_path, HOLDFAST_REDIS_URL=f"redis://{away}/0")
    assert half[1]["database"]["said"] == "HOLDFAST_DATABASE_URL is not set"
    typo = await said(tmp_path, ["doctor"], clean_environment(HOLDFAST_REDIS="x"))
    assert (typo.status, "did you mean HOLDFAST_REDIS_URL?" in typo.errors) == (2, True)


async def test_a_setting_that_was_wrong_was_to_be_set(tmp_path: Path) -> None:
    status, found = await _findings(tmp_path, HOLDFAST_DATABASE_URL="mysql://host/db")
    assert status == 1
    assert found["database"]["said"].startswith("HOLDFAST_DATABASE_URL names 'mysql'")
    assert found["database"]["fix"] == "docs/operations/postgres.md"


async def test_models_are_asked_when_told_to(tmp_path: Path) -> None:
    async with ModelServer() as models:
        models.say("ready")
        status, found = await _findings(
            tmp_path, "--call", OPENAI_API_KEY="a-key", OPENAI_BASE_URL=f"{models.origin}/v1"
        )
    assert (status, found["models of openai"]["verdict"]) == (0, "ok"), found
    address = f"http://127.0.0.1:{free_port()}/v1"
    status, found = await _findings(tmp_path, "--call", OPENAI_API_KEY="a-key", OPENAI_BASE_URL=address)
    assert (status, found["models of openai"]["verdict"]) == (1, "wrong")
    status, found = await _findings(tmp_path)
    assert (status, "OPENAI_API_KEY" in found["models"]["fix"]) == (0, True)


async def test_what_processes_warn_of_was_well_by_doctor(
    tmp_path: Path, postgres_url: str, plain_owner_url: str
) -> None:
    """It said that all is well of a superuser's role, a key that can be guessed, and doors that are open."""
    subjects = ("row-level security", "api keys", "built-in models", "callbacks to private addresses")
    _, found = await _findings(
        tmp_path,
        HOLDFAST_DATABASE_URL=postgres_url,
        HOLDFAST_API_KEYS=f"default=short,other={'long' * 8}",
        HOLDFAST_BUILTIN_MODELS="true",
        HOLDFAST_CALLBACK_ALLOW_PRIVATE="true",
    )
    assert [found[subject]["verdict"] for subject in subjects] == ["warn"] * 4
    assert all(found[subject]["fix"] for subject in subjects)
    assert "short" not in found["api keys"]["said"].replace("shorter", "")
    assert "entry 1" in found["api keys"]["said"]

    closed = {"HOLDFAST_API_KEYS": f"default={'long' * 8}"}
    _, found = await _findings(tmp_path, HOLDFAST_DATABASE_URL=plain_owner_url, **closed)
    assert [found[subject]["verdict"] for subject in subjects] == ["ok"] * 4
    off = {"HOLDFAST_ROW_LEVEL_SECURITY": "false", "HOLDFAST_API_KEYS": ","}
    _, found = await _findings(tmp_path, HOLDFAST_DATABASE_URL=plain_owner_url, **off)
    assert (found["row-level security"]["verdict"], found["api keys"]["verdict"]) == ("warn", "wrong")


async def test_keys_that_are_not_the_same_everywhere_are_named(
    tmp_path: Path, postgres_url: str, private_redis: PrivateRedis
) -> None:
    ours, theirs = SecretKeys.parse(KEY, "HERE"), SecretKeys.parse(OTHER_KEY, "HERE")
    await ProcessPresence(private_redis.client()).show(_api("api-1", ours.fingerprints), for_s=600)
    await ProcessPresence(private_redis.client()).show(_worker("worker-1", theirs.fingerprints), for_s=600)
    database = patient_database(postgres_url)
    agent = some_agent(tool_environment={"CRM_KEY": "swordfish"})
    await AgentEditor(database, ours).create(agent, system_message_id=IdMaker().message())
    endpoint = some_endpoint()
    sealed = replace(endpoint, secret=ours.seal(endpoint.id, SECRET, "swordfish"))
    await WebhookEndpointStore(database).create(sealed)
    await database.aclose()
    services = {"HOLDFAST_DATABASE_URL": postgres_url, "HOLDFAST_REDIS_URL": private_redis.url}

    status, found = await _findings(tmp_path, **services, HOLDFAST_ENCRYPTION_KEY=KEY)
    processes = found["encryption keys of processes"]
    assert (status, processes["verdict"], found["stored secrets"]["verdict"]) == (1, "wrong", "ok")
    assert "those of 1 webhook endpoints can be read" in found["webhook secrets"]["said"]
    assert "worker-1 does not have the key k1:" in processes["said"]
    assert "which api-1 encrypts" in processes["said"]

    await ProcessPresence(private_redis.client()).show(_worker("worker-1", ours.fingerprints), for_s=600)
    status, found = await _findings(tmp_path, **services, HOLDFAST_ENCRYPTION_KEY=OTHER_KEY)
    assert (status, found["stored secrets"]["verdict"]) == (1, "wrong")
    assert "those of 1 of 1 agents cannot be read: the key 'k1' is not the one" in found["stored secrets"]["said"]
    assert "those of 1 of 1 webhook endpoints cannot be read" in found["webhook secrets"]["said"]
    assert found["encryption keys of processes"]["verdict"] == "warn", "the processes agree; this command does not"
    assert "CRM_KEY" not in str(found)


async def test_a_disk_that_is_full_is_named(tmp_path: Path) -> None:
    """A worker whose TMPDIR is full starts, and fails each call of a tool."""
    _, found = await _findings(tmp_path)
    scratch = found["scratch disk (TMPDIR)"]
    assert scratch["verdict"] in ("ok", "warn")
    more_than_any_disk = str(1 << 40)
    status, found = await _findings(tmp_path, HOLDFAST_TOOL_SCRATCH_MB=more_than_any_disk)
    assert (status, found["scratch disk (TMPDIR)"]["verdict"]) == (1, "wrong")
    assert "TMPDIR" in found["scratch disk (TMPDIR)"]["fix"]


KEY, OTHER_KEY = f"k1:{'A' * 43}=", f"k1:{'B' * 43}="


def _api(name: str, keys: list[str]) -> ApiState:
    return ApiState(name=name, version="1", started_at=NOW, seen_at=NOW, readers=0, secret_keys=keys)


def _worker(name: str, keys: list[str]) -> WorkerState:
    return WorkerState(name=name, version="1", started_at=NOW, seen_at=NOW, runs=0, max_runs=9, secret_keys=keys)
