"""A run that began in a version of an agent's code goes on in it while a worker with that version lives, and else in
the newest."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from arq.connections import ArqRedis

from holdfast.agents import registry
from shared.domain.code_agents import OwnVersions, ShownAgent
from shared.domain.ids import ProjectId, RunId
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import Decision
from shared.domain.runs import Dispatch, RunOptions
from shared.redis import keys
from shared.redis.process_presence import VersionPresence
from shared.redis.queue import JobLeases, RunQueue
from shared.sql.definitions.code_agents import VERSIONS_KEPT, CodeAgentStore
from tests.kit.code_agents.services import UNSERVED, services_of_code
from tests.kit.code_agents.stage import FileStage
from tests.kit.runs.definitions import NOW
from tests.kit.runs.executing import Workers
from tests.kit.runs.stored_runs import Stores, said, stored_runs
from worker.agents.code_body import CodeBody

LATER = NOW + timedelta(minutes=1)


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


@pytest.fixture
def presence(redis: ArqRedis) -> VersionPresence:
    return VersionPresence(redis)


def _worker(redis: ArqRedis, version: str, agent: str = "desk") -> JobLeases:
    return JobLeases(redis, worker=f"worker-{version}", lease_s=600, code_agents={agent: version})


async def _claimed(worker: JobLeases) -> list[str]:
    return [job_id.partition(":")[0] for job_id in (await worker.claim(10)).job_ids]


async def test_a_run_waits_for_the_version_in_which_it_began(redis: ArqRedis, presence: VersionPresence) -> None:
    await presence.show([("desk", "3", NOW)], for_s=600)
    await presence.show([("desk", "4", LATER)], for_s=600)
    await RunQueue(redis).dispatch(Dispatch(RunId("began"), 1, ProjectId("a"), 0, "desk", "3"))
    claimed = await _worker(redis, "4").claim(10)
    assert claimed.job_ids == []
    assert claimed.next_in_s is not None, "it looks again when the workers with version 3 may be gone"
    assert await _claimed(_worker(redis, "3")) == ["began"]


async def test_the_newest_version_takes_the_runs_of_one_that_no_worker_has(
    redis: ArqRedis, presence: VersionPresence
) -> None:
    await presence.show([("desk", "10", LATER), ("other", "3", LATER)], for_s=600)
    await presence.show([("desk", "9", NOW)], for_s=600)
    await RunQueue(redis).dispatch(Dispatch(RunId("began"), 1, ProjectId("a"), 0, "desk", "3"))
    assert await _claimed(_worker(redis, "9")) == [], "a newer one lives"
    assert await _claimed(_worker(redis, "10", agent="other")) == [], "it is of another agent"
    assert await _claimed(_worker(redis, "10")) == ["began"]


@pytest.mark.parametrize("began_in", [None, ""])
async def test_any_version_takes_a_run_that_has_not_begun_in_one(
    redis: ArqRedis, presence: VersionPresence, began_in: str | None
) -> None:
    await presence.show([("desk", "3", NOW), ("desk", "4", LATER)], for_s=600)
    await RunQueue(redis).dispatch(Dispatch(RunId("new"), 1, ProjectId("a"), 0, "desk", began_in))
    assert await _claimed(_worker(redis, "3")) == ["new"]


async def test_versions_of_workers_that_are_gone_are_forgotten(redis: ArqRedis, presence: VersionPresence) -> None:
    server = cast("Any", redis)
    await server.hset(keys.CODE_AGENTS, "desk\t3", "1 1")
    assert await presence.taker_of("desk", "3") is None
    await presence.show([("desk", "", NOW)], for_s=600)
    assert await server.hkeys(keys.CODE_AGENTS) == [b"desk\t"]
    assert await presence.taker_of("desk", "3") == "", "one that declares no version is the newest"


async def test_the_first_time_of_a_version_stays(stores: Stores) -> None:
    store, third = CodeAgentStore(stores.database), ShownAgent(name="desk", version="3", description="A desk")
    assert await store.show([third], NOW) == {"desk": NOW}
    fourth = ShownAgent(name="desk", version="4", description="Another desk", framework="strands")
    assert await store.show([fourth], LATER) == {"desk": LATER}
    assert await store.show([third], LATER) == {"desk": NOW}
    [known] = await store.known()
    assert (known.description, known.framework, known.seen_at) == ("A desk", "function", LATER)
    assert [(one.version, one.first_seen_at) for one in await store.versions()] == [("4", LATER), ("3", NOW)]
    assert await store.show([], NOW) == {}
    much_later = LATER + VERSIONS_KEPT + timedelta(seconds=1)
    await store.show([fourth], much_later)
    assert [one.version for one in await store.versions()] == ["4"]


@pytest.mark.parametrize("version", ["", "a b", "3\n", "-1"])
def test_what_is_no_version_is_refused(version: str) -> None:
    async def body(_run: object) -> None: ...

    with pytest.raises(ValueError, match="is no version"):
        registry.register("versioned", body, version=version)


async def test_a_worker_with_another_version_passes_a_run_on_that_was_handed_over(
    stores: Stores, redis: ArqRedis, presence: VersionPresence, tmp_path: Path
) -> None:
    """It would have been replayed by code that asks for other steps, while workers with its own code lived."""
    stage = FileStage(tmp_path)
    await presence.show([("desk", "3", NOW), ("desk", "4", LATER)], for_s=600)
    async with stage.agents("tests.kit.code_agents.decided") as agents:
        body = CodeBody(agents, services_of_code(stores), grace_s=0.5, endpoint=UNSERVED)
        third, fourth = (
            Workers(stores, redis, {"code": body}, code=OwnVersions({"desk": version})) for version in ("3", "4")
        )
        run = await stores.submitted(said("go"), options=RunOptions(code_agent="desk"))
        assert await (await third.begin(run.id)).ended() is None
        parked = await stores.runs.look_up(run.id)
        assert (parked.status, parked.code_version) == (RunStatus.AWAITING_APPROVAL, "3")
        [asked] = await stores.asked(parked)
        run = await stores.decide(Decision(tool_call_id=asked.tool_call_id, approve=True))
        assert run.code_version == "3", "the journal is of that version"

        assert await (await fourth.begin(run.id)).ended() is None
        passed = await stores.runs.look_up(run.id)
        assert (passed.status, passed.dispatch, passed.fence) == (RunStatus.CREATED, run.dispatch + 1, 0)
        assert await _claimed(_worker(redis, "4")) == []
        assert await _claimed(_worker(redis, "3")) == [run.id]

        await redis.delete(keys.CODE_AGENTS)
        await presence.show([("desk", "4", LATER)], for_s=600)
        assert await (await fourth.begin(run.id)).ended() is None
        done = await stores.runs.look_up(run.id)
        assert (done.status, done.code_version) == (RunStatus.COMPLETED, "4")
