"""Agents of every framework in a deployment: its versions, its workers that come and go, and what none of them gets or
leaves behind."""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from shared.domain.code_agents import OwnVersions
from shared.domain.lifecycle import RunStatus
from shared.domain.runs import Run
from shared.redis import keys
from shared.redis.process_presence import VersionPresence
from tests.kit.clients.installations import python_of
from tests.kit.code_agents.world import World
from tests.kit.frameworks.deployment import (
    KEY,
    Deployment,
    children,
    command_line,
    descriptors,
    memory_has,
    parent,
    processes,
    variables,
)
from tests.kit.frameworks.table import FRAMEWORKS
from tests.kit.frameworks.world import FrameworkWorld, Installed
from tests.kit.model_server import Call, Turn
from tests.kit.project.documents import ROOT, blocks
from tests.kit.runs.definitions import NOW
from tests.kit.runs.executing import Workers
from tests.kit.wait_until import wait_until
from worker.agents.hosts import OF_AGENTS, CodeAgents

INCOMPATIBLE = {"HOLDFAST_AGENTS_VERSION": "2"}


def _versioned(world: World, agents: CodeAgents) -> Workers:
    """Workers that have these agents alone, in their declared versions."""
    return replace(world.workers(agents), code=OwnVersions(agents.versions))


async def _show(world: World, **versions: int) -> None:
    """The versions that live workers have, each with the moment of its first worker, and no others."""
    await cast("Any", world.redis).delete(keys.CODE_AGENTS)
    shown = [("support", version.removeprefix("v"), NOW.replace(minute=minute)) for version, minute in versions.items()]
    await VersionPresence(world.redis).show(shown, for_s=600)


async def _executed(world: World, run: Run, agents: CodeAgents) -> Run:
    assert await (await _versioned(world, agents).begin(run.id)).ended() is None
    return await world.stores.runs.look_up(run.id)


async def _decided_in_third(world: FrameworkWorld, third: CodeAgents) -> Run:
    """A run that began in version 3, has done something there, and may send its letter now."""
    world.models.play(
        Turn(calls=[Call("look", {"what": "otters"})]), Turn(calls=[Call("send", {"to": "ada"})]), Turn(text="Sent.")
    )
    await _show(world, v3=1)
    run = await _executed(world, await world.submitted("support", "Write to Ada"), third)
    assert (run.status, run.code_version) == (RunStatus.AWAITING_APPROVAL, "3"), run.error
    return await world.approved(run)


async def test_a_run_goes_on_in_its_version_while_a_worker_has_it(world: FrameworkWorld) -> None:
    """The newer code could not go on from where the run is."""
    async with (
        world.hosted.changed(HOLDFAST_AGENTS_DEPLOYED="3") as third,
        world.hosted.changed(HOLDFAST_AGENTS_DEPLOYED="4", **INCOMPATIBLE) as fourth,
    ):
        run = await _decided_in_third(world, third)
        await _show(world, v3=1, v4=2)
        passed = await _executed(world, run, fourth)
        assert (passed.status, passed.dispatch) == (RunStatus.CREATED, run.dispatch + 1), "a worker has version 3"
        run = await _executed(world, passed, third)
    assert (run.status, run.code_version) == (RunStatus.COMPLETED, "3"), run.error
    assert world.did == ["look otters", "send ada"]
    assert len(world.models.requests) == 3, "a recorded answer was asked for again"


@pytest.mark.parametrize("is_compatible", [True, False], ids=["compatible", "other tools"])
async def test_the_newest_version_takes_a_run_whose_version_is_gone(world: FrameworkWorld, is_compatible: bool) -> None:
    async with (
        world.hosted.changed(HOLDFAST_AGENTS_DEPLOYED="3") as third,
        world.hosted.changed(HOLDFAST_AGENTS_DEPLOYED="4", **({} if is_compatible else INCOMPATIBLE)) as fourth,
    ):
        run = await _decided_in_third(world, third)
        await _show(world, v4=2)
        run = await _executed(world, run, fourth)
    assert run.code_version == "4"
    if is_compatible:
        assert run.status is RunStatus.COMPLETED, run.error
        assert world.did == ["look otters", "send ada"]
        return
    assert run.error is not None
    assert run.error.error_type == "body_changed"
    assert world.did == ["look otters"], "nothing is started by code that cannot go on"


async def test_a_run_waits_while_no_worker_has_its_agent(installed: Installed, deployment: Deployment) -> None:
    """A worker without it takes other runs meanwhile."""
    program = installed.framework.program
    first = await deployment.worker(program, installed.python)
    agent_id = await deployment.made("support")
    await first.terminate()
    await deployment.processes.worker()
    run_id = await deployment.submitted(agent_id, "Hi")
    other = await deployment.product.agent()
    deployment.models.say("Good day.")
    assert await deployment.answer(other.id, "Hello") == "Good day."
    assert (await deployment.product.run(run_id))["status"] == "created"
    assert "support" not in await deployment.listed()
    deployment.models.say("Here I am.")
    await deployment.worker(program, installed.python)
    assert (await deployment.product.ended(run_id))["status"] == "completed"
    assert len(deployment.models.requests) == 2


async def test_frameworks_that_cannot_be_installed_together_have_a_worker_each(
    deployment: Deployment, tmp_path: Path
) -> None:
    """Each asks for another client of OpenAI's models. One deployment has both."""
    versions: list[str] = []
    for page, name, framework in (("agents-openai", "desk", "openai_agents"), ("agents-strands", "support", "strands")):
        python = await asyncio.to_thread(python_of, FRAMEWORKS[framework].requirements("newest"))
        versions.append(_version_of_openai(python))
        (tmp_path / f"{name}.py").write_text(blocks(ROOT / f"docs/{page}.md", "python")[0], encoding="utf-8")
        await deployment.worker(name, python, agents_env_file=_path_to(tmp_path))
    assert len(set(versions)) == 2, "they can be installed together"
    desk, support = await deployment.made("desk"), await deployment.made("support")
    listed = await deployment.listed()
    assert {name: (one["framework"], one["workers"]) for name, one in listed.items()} == {
        "desk": ("openai_agents", 1),
        "support": ("strands", 1),
    }
    deployment.models.answer_with(lambda request: Turn(text=f"Asked by {request.headers['user-agent']}."))
    said = [await deployment.answer(agent_id) for agent_id in (desk, support)]
    assert len(set(said)) == 2, said


def _version_of_openai(python: Path) -> str:
    """The major version of OpenAI's client beside this Python."""
    [found] = (python.parents[1] / "lib").glob("*/site-packages/openai-*.dist-info")
    return found.name.partition(".")[0]


def _path_to(folder: Path) -> Path:
    file = folder / "variables"
    file.write_text(f"PYTHONPATH={folder}\n", encoding="utf-8")
    return file


async def test_no_secret_of_the_deployment_is_in_its_process(installed: Installed, deployment: Deployment) -> None:
    """Neither in its variables and descriptors, nor in what the worker has sent: it is nowhere in its memory. Its model
    is the worker's, so the provider's key is none of its own."""
    secrets = {"api_keys": "default=a-key-of-the-deployment", "callback_secret": "a-secret-that-signs-callbacks"}
    services = {name: deployment.processes.environment[f"HOLDFAST_{name}"] for name in ("DATABASE_URL", "REDIS_URL")}
    kept = {name: word.encode() for name, word in {**secrets, **services, "key": KEY}.items()}
    worker = await deployment.worker(installed.framework.keyless_program, installed.python, **secrets)
    deployment.models.play(Turn(calls=[Call("look", {"what": "otters"})]), Turn(text="I found them."))
    deployment.stage.stop_at("look otters")
    agent_id = await deployment.made("keyless")
    run_id = await deployment.submitted(agent_id, "Find the otters of the moat")
    await deployment.stage.is_reached("look otters")
    pid = int((await deployment.stage.begins("pid ")).split()[1])
    host = parent(pid)
    known = {"message": b"the otters of the moat"}

    assert memory_has(worker.pid, kept) == kept.keys(), "what is looked for is there to be found"
    assert memory_has(pid, {**kept, **known}) == known.keys()
    assert memory_has(host, {**kept, **known}) == set()
    for process in (host, pid):
        assert not [
            name for name in variables(process) if name.startswith("HOLDFAST") and not name.startswith(OF_AGENTS)
        ]
        shared = {*descriptors(process)} & {*descriptors(worker.pid)}
        assert {one.partition(":")[0] for one in shared} <= {"/dev/null", "pipe", "anon_inode"}, shared
    assert {one for one in descriptors(pid) if one.startswith("/")} <= {"/dev/null", "/dev/urandom"}

    deployment.stage.go_on()
    assert (await deployment.product.ended(run_id))["status"] == "completed"
    assert len(deployment.models.requests) == 2
    assert {one.headers["authorization"] for one in deployment.models.requests} == {f"Bearer {KEY}"}


async def _end_in_every_way(deployment: Deployment, agent_id: str) -> None:
    """A run that ends, one whose process ends first, one that is cancelled in a tool, and one that a person denies."""
    http, models, stage = deployment.product.http, deployment.models, deployment.stage
    models.play(Turn(calls=[Call("look", {"what": "otters"})]), Turn(text="Found."))
    assert await deployment.answer(agent_id) == "Found."
    models.play(Turn(calls=[Call("look", {"what": "exit"})]), Turn(text="Who knows."))
    assert await deployment.answer(agent_id) == "Who knows."
    models.call("block", what="eels")
    stage.stop_at("block eels")
    seen = stage.reached.count("block eels")
    run_id = await deployment.submitted(agent_id)
    await wait_until(lambda: stage.reached.count("block eels") > seen, description="the tool to begin")
    cancelled = await http.post(f"/v1/agents/{agent_id}/messages/cancel", json={"run_ids": [run_id]})
    assert cancelled.json() == {run_id: "cancelled"}
    stage.go_on()
    models.play(Turn(calls=[Call("send", {"to": "ada"})]), Turn(text="I will not."))
    run_id = await deployment.submitted(agent_id)

    async def asked() -> str | None:
        found = (await http.get("/v1/approvals", params={"agent_id": agent_id, "status": "pending"})).json()
        return found[0]["id"] if found else None

    approval_id = await wait_until(asked, description="a person to be asked", every=0.05)
    await http.post(f"/v1/approvals/{approval_id}", json={"decision": "deny", "reason": "no"})
    after = (await deployment.product.run(run_id))["metadata"]["continued_by_run_id"]
    assert (await deployment.product.ended(after))["status"] == "completed"


def _left(worker: int, host: int, temporary: Path) -> tuple[object, ...]:
    """What the two processes have, beside the worker's connections to its services."""
    of_worker = Counter(_kinds(worker))
    del of_worker["tcp"]
    return of_worker, Counter(_kinds(host)), children(host), _files(temporary)


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def _kinds(pid: int) -> list[str]:
    unix = Path("/proc/net/unix").read_text(encoding="utf-8")
    return [_kind(one, unix) for one in descriptors(pid)]


def _kind(link: str, unix: str) -> str:
    name, _, number = link.partition(":")
    if name == "socket":
        return "unix" if f" {number.strip('[]')}" in unix else "tcp"
    return name if name == "pipe" else link


async def test_nothing_is_left_of_runs_that_are_over(installed: Installed, deployment: Deployment) -> None:
    """No process, descriptor, socket or file, however they ended; and nothing at all when the worker has ended."""
    temporary, program = Path(deployment.processes.environment["TMPDIR"]), installed.framework.program
    worker = await deployment.worker(program, installed.python, agents_grace_s=0.2)
    [host] = [one for one in children(worker.pid) if program in command_line(one)]
    agent_id = await deployment.made("support")
    await _end_in_every_way(deployment, agent_id)
    before = _left(worker.pid, host, temporary)
    for _ in range(2):
        await _end_in_every_way(deployment, agent_id)
    await wait_until(
        lambda: _left(worker.pid, host, temporary) == before,
        description=f"what was left of the first runs, {before}, to be all",
        timeout=60,
    )
    assert before[2] == [], "no process is left of a run"
    assert await worker.terminate() == 0
    bodies = {int(one.split()[1]) for one in deployment.stage.reached if one.startswith("pid ")}
    assert len(bodies) >= 3 * 5
    assert {host, *bodies} & processes() == set()
    assert _files(temporary) == []
