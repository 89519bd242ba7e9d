"""A worker is killed around every durable write of a run whose body is an operator's own function."""

import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from shared.crash_points import CrashPoint
from shared.sql.run_tables import runs
from tests.faults.test_crash_points import DIES, LONG_S, LOSES, UNSWEPT, all_ended, deciding, each_write_once
from tests.kit.code_agents.stage import PROGRAM, FileStage
from tests.kit.product import Product
from tests.kit.product.careful_client import ask_until_answered
from tests.kit.product.frame_reader import read_whole
from tests.kit.product.processes import Processes
from tests.kit.project.documents import ROOT
from tests.kit.services.redis_losses import end_leases
from tests.kit.wait_until import wait_until

WRITES = [
    *((CrashPoint.JOURNAL, number) for number in (1, 2, 3)),
    *((CrashPoint.CHECKPOINT, number) for number in (1, 2)),
    (CrashPoint.PARK, 1),
    (CrashPoint.SETTLE, 1),
]
"""Each with its pass: the plan, and its two steps side by side; a tool's beginning, and its end."""


ODD_PROGRAM = "tests.kit.code_agents.odd_program"


def _settings(stage: FileStage, module: str = PROGRAM, **environment: str) -> dict[str, object]:
    file = stage.folder / "environment"
    given = {"HOLDFAST_AGENTS_STAGE": stage.folder, "PYTHONPATH": ROOT, **environment}
    file.write_text("".join(f"{name}={value}\n" for name, value in given.items()), encoding="utf-8")
    return {**UNSWEPT, "agents": module, "agents_env_file": file}


async def _agent(product: Product, name: str = "story", **fields: object) -> str:
    """An agent whose model is the function, once the API knows that a worker has it."""

    async def make() -> str | None:
        answer = await product.http.post("/v1/agents/", json={"model": f"code/{name}", "name": name, **fields})
        return answer.json()["id"] if answer.is_success else None

    return await wait_until(make, description="the API to know the agent", timeout=LONG_S)


async def _assert_nothing_was_lost(product: Product, agent_id: str, stage: FileStage) -> None:
    _, continuation = await all_ended(product.http, agent_id, runs=2)
    assert continuation["status"] == "completed"
    effects = [one for one in stage.reached if one.startswith("effect ")]
    assert len(effects) == len(set(effects)), "a tool was started twice"
    history = await product.history(agent_id)
    results = [one["tool_return"] for one in history if one["message_type"] == "tool_return_message"]
    assert len(results) == 3
    for effect, result in zip(("first", "second"), (results[0], results[2]), strict=True):
        was_started = any(one.startswith(f"effect {effect} ") for one in effects)
        assert was_started or "outcome unknown" in result
        assert result.startswith(effect) or "outcome unknown" in result
    said = [one["content"] for one in history if one["message_type"] == "assistant_message" and one["content"]]
    assert said == ["One. ", "Two. Three. ", "Done. "]
    for run, text in zip(await all_ended(product.http, agent_id, runs=2), ("One. Two. Three. ", "Done. "), strict=True):
        reader = await read_whole(product.http, run["id"])
        reader.assert_complete()
        assert _shown_text(reader.frames) == text, "readers have a text that is in no history, or lack one"


def _shown_text(frames: list[dict[str, Any]]) -> str:
    """The text that a reader has at the end."""
    shown: dict[str, str] = {}
    for frame in frames:
        for gone in frame.get("event_data", {}).get("void_message_ids", ()):
            shown.pop(gone, None)
        if frame["message_type"] == "assistant_message":
            shown[frame["id"]] = shown.get(frame["id"], "") + frame["content"]
    return "".join(shown.values())


@pytest.mark.parametrize("side", each_write_once(DIES))
@pytest.mark.parametrize(("write", "passes"), WRITES)
async def test_a_worker_that_dies_there(
    product: Product, processes: Processes, tmp_path: Path, write: CrashPoint, passes: int, side: str
) -> None:
    stage = FileStage(tmp_path)
    dying = await processes.worker(crash_at=f"{write}:{side}:{passes}", **_settings(stage))
    agent_id = await _agent(product)
    await ask_until_answered(product.http, f"/v1/agents/{agent_id}/messages/async", {"input": "go"})
    async with deciding(product.http):
        assert await dying.ended(within_s=LONG_S) == -9
        await end_leases(product.context.redis)
        await processes.worker(**_settings(stage))
        await _assert_nothing_was_lost(product, agent_id, stage)


@pytest.mark.parametrize(
    ("crash_at", "is_stored"), [("journal:after:2", True), ("settle:before", True), ("journal:before:2", False)]
)
async def test_a_worker_dies_between_the_state_of_a_run_and_its_end(
    product: Product, processes: Processes, tmp_path: Path, crash_at: str, *, is_stored: bool
) -> None:
    stage = FileStage(tmp_path)
    dying = await processes.worker(crash_at=crash_at, **_settings(stage, ODD_PROGRAM))
    agent_id = await _agent(product, "keeps-first")
    run = await ask_until_answered(product.http, f"/v1/agents/{agent_id}/messages/async", {"input": "go"})
    assert await dying.ended(within_s=LONG_S) == -9
    assert (await _body_state(product, run["id"]) == b'{"count": 1}') is is_stored
    await end_leases(product.context.redis)
    await processes.worker(**_settings(stage, ODD_PROGRAM))
    assert (await product.ended(run["id"]))["status"] == "completed"
    attempts = [one.partition(" attempt ")[2] for one in stage.reached if one.startswith("version 1")]
    assert len(attempts) == 2, stage.reached
    assert stage.reached.count("began") == 1, "the step was executed again"
    said = [one["content"] for one in await product.history(agent_id) if one["message_type"] == "assistant_message"]
    assert said == ["counted 1"]
    reader = await read_whole(product.http, run["id"])
    reader.assert_complete()
    assert _shown_text(reader.frames) == "counted 1"
    run = await ask_until_answered(product.http, f"/v1/agents/{agent_id}/messages/async", {"input": "go"})
    assert (await product.ended(run["id"]))["status"] == "completed"
    assert await _body_state(product, run["id"]) == b'{"count": 2}', "the next run has what this one has left"


async def test_a_thread_kept_the_state_of_an_attempt_that_had_not_ended_its_run(
    product: Product, processes: Processes, tmp_path: Path
) -> None:
    stage = FileStage(tmp_path)
    dying = await processes.worker(crash_at="settle:before", **_settings(stage, ODD_PROGRAM))
    agent_id = await _agent(product, "keeps-first")
    run = await ask_until_answered(product.http, f"/v1/agents/{agent_id}/messages/async", {"input": "go"})
    assert await dying.ended(within_s=LONG_S) == -9
    await end_leases(product.context.redis)
    await processes.worker(**_settings(stage, ODD_PROGRAM, HOLDFAST_AGENTS_VERSION="2"))
    assert (await product.ended(run["id"]))["status"] == "completed"
    said = [one["content"] for one in await product.history(agent_id) if one["message_type"] == "assistant_message"]
    assert said == ["counted None"], "the newer code has left no state"
    assert await _body_state(product, run["id"]) == b"{}"


async def _body_state(product: Product, run_id: str) -> bytes | None:
    async with product.context.database.read() as connection:
        found = await connection.execute(sa.select(runs.c.body_state).where(runs.c.id == run_id))
        return found.scalar_one()


@pytest.mark.parametrize("lost", each_write_once(LOSES))
@pytest.mark.parametrize("write", [CrashPoint.JOURNAL, CrashPoint.CHECKPOINT, CrashPoint.PARK, CrashPoint.SETTLE])
async def test_a_worker_that_loses_the_answer(
    product: Product, processes: Processes, tmp_path: Path, write: CrashPoint, lost: str
) -> None:
    stage = FileStage(tmp_path)
    worker = await processes.worker(crash_at=f"{write}:{lost}", **_settings(stage))
    agent_id = await _agent(product)
    await ask_until_answered(product.http, f"/v1/agents/{agent_id}/messages/async", {"input": "go"})
    async with deciding(product.http):
        await _assert_nothing_was_lost(product, agent_id, stage)
    assert f"point={write}" in worker.log.read_text()
    assert len([one for one in stage.reached if one.startswith("effect ")]) == 2, "nobody died"


async def test_a_run_waits_for_a_worker_that_has_its_agent(
    product: Product, processes: Processes, tmp_path: Path
) -> None:
    stage = FileStage(tmp_path)
    first = await processes.worker(**_settings(stage))
    agent_id = await _agent(product)
    await first.kill()
    await end_leases(product.context.redis)
    await processes.worker(**UNSWEPT)
    run = await ask_until_answered(product.http, f"/v1/agents/{agent_id}/messages/async", {"input": "go"})
    plain = await product.agent()
    other = await ask_until_answered(product.http, f"/v1/agents/{plain.id}/messages/async", {"input": "Hello"})
    assert (await product.ended(other["id"]))["status"] == "completed", "the worker takes other runs"
    assert (await product.http.get(f"/v1/runs/{run['id']}")).json()["status"] == "created"
    await processes.worker(**_settings(stage))
    async with deciding(product.http):
        await _assert_nothing_was_lost(product, agent_id, stage)


@pytest.mark.parametrize("side", each_write_once(DIES))
@pytest.mark.parametrize("write", [CrashPoint.CHECKPOINT, CrashPoint.EDIT_MEMORY, CrashPoint.SETTLE])
async def test_an_agent_remembers_once_what_its_code_has_told_it(
    product: Product, processes: Processes, tmp_path: Path, write: CrashPoint, side: str
) -> None:
    stage = FileStage(tmp_path)
    settings = _settings(stage, "tests.kit.code_agents.attached_program")
    dying = await processes.worker(crash_at=f"{write}:{side}", **settings)
    memory = [{"label": "human", "value": "Likes tea."}]
    agent_id = await _agent(product, "calls", memory_blocks=memory, tools=["core_memory_append"])
    call = {"tool": "core_memory_append", "arguments": {"label": "human", "content": "Likes otters."}}
    run = await ask_until_answered(product.http, f"/v1/agents/{agent_id}/messages/async", {"input": json.dumps([call])})
    assert await dying.ended(within_s=LONG_S) == -9
    await end_leases(product.context.redis)
    await processes.worker(**settings)
    assert (await product.ended(run["id"]))["status"] == "completed"
    block = (await product.http.get(f"/v1/agents/{agent_id}/core-memory/blocks/human")).json()
    assert block["value"] == "Likes tea.\nLikes otters."
    [result] = [one for one in await product.history(agent_id) if one["message_type"] == "tool_return_message"]
    assert result["status"] == "success", result


@pytest.mark.parametrize("happened", [True, False])
async def test_the_effects_of_a_run_have_what_its_codes_probe_has_found(
    product: Product, processes: Processes, tmp_path: Path, *, happened: bool
) -> None:
    stage = FileStage(tmp_path)
    first = await processes.worker(**_settings(stage))
    agent_id = await _agent(product, "tools")
    stage.stop_at("send 0 1")
    run = await ask_until_answered(product.http, f"/v1/agents/{agent_id}/messages/async", {"input": "probe"})
    await stage.is_reached("send 0 1")
    await first.kill()
    if happened:
        (tmp_path / "was sent").touch()
    stage.go_on()
    await end_leases(product.context.redis)
    await processes.worker(**_settings(stage))
    assert (await product.ended(run["id"]))["status"] == "completed"

    [effect] = (await product.http.get(f"/v1/runs/{run['id']}/effects")).json()
    assert f"asked {effect['idempotency_key']}" in stage.reached
    assert (effect["name"], effect["started_at"] <= effect["ended_at"]) == ("send", True)
    told = (effect["state"], effect["settled_by"], effect["outcome"], effect["result"], effect["attempt"])
    probed = ("settled", "probe", "happened", "it was sent", 1)
    assert told == (probed if happened else ("done", None, None, None, 2))
