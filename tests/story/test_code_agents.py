"""Agents of operators' own code as clients see them: what there is, what each has done, and what is refused."""

import asyncio
import json
import os
import signal
import sys
from ast import literal_eval
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from arq.connections import ArqRedis

from shared.sql.engine import Database
from tests.kit.ag_ui import Page
from tests.kit.code_agents.stage import FileStage
from tests.kit.mcp.official import PIXEL, official_server
from tests.kit.mcp.taken_over import taken_over
from tests.kit.model_server import ModelServer
from tests.kit.product import Product, running_product
from tests.kit.product.frame_reader import read_whole
from tests.kit.project.documents import ROOT
from tests.kit.wait_until import wait_until

UNKNOWN = "code/unknown"


class Said(NamedTuple):
    """How a command has ended."""

    status: int
    output: str
    errors: str


async def holdfast(*arguments: str, **environment: str) -> Said:
    """A command, as a person would give it."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("holdfast"),
        *arguments,
        env={**own, "PYTHONPATH": str(ROOT), **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode is not None
    return Said(process.returncode, output.decode(), errors.decode())


@asynccontextmanager
async def _product(database: Database, redis: ArqRedis, folder: Path, **settings: Any) -> AsyncGenerator[Product]:
    environment = {**os.environ, "HOLDFAST_AGENTS_STAGE": str(folder), "PYTHONPATH": str(ROOT)}
    given = {"agents": "tests.kit.code_agents.decided", "agents_grace_s": 0.5, **settings}
    async with (
        ModelServer() as models,
        running_product(database, redis, models, settings=given, environment=environment) as product,
    ):
        yield product


@pytest.fixture
async def product(database: Database, redis: ArqRedis, tmp_path: Path) -> AsyncGenerator[Product]:
    async with _product(database, redis, tmp_path) as product:
        await wait_until(lambda: product.services.dialects.code_agents.known, description="known agents", every=0.05)
        yield product


async def _json(product: Product, path: str, **query: Any) -> Any:
    answer = await product.http.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def _parked(product: Product) -> tuple[str, str]:
    """An agent, and its run that waits for a person."""
    agent = await product.agent(model="code/desk")
    run = await product.client.agents.messages.create_async(agent.id, input="go")

    async def asked() -> bool:
        return (await _json(product, f"/v1/runs/{run.id}"))["stop_reason"] == "requires_approval"

    await wait_until(asked, description="the run to ask", every=0.05)
    return agent.id, run.id


async def test_the_agents_are_listed_with_their_live_workers(product: Product) -> None:
    async def listed() -> Any:
        found = await _json(product, "/v1/code-agents")
        return found if found and found[0]["workers"] else None

    found = {one["name"]: one for one in await wait_until(listed, description="a worker to be shown", every=0.05)}
    desk = found["desk"]
    assert (desk["framework"], desk["workers"]) == ("function", 1)
    [version] = desk["versions"]
    assert (version["version"], version["workers"]) == (None, 1)
    assert version["last_seen_at"].endswith("Z")
    assert found["words"]["description"] == "Does what the words say"


async def test_a_run_shows_its_journal_and_its_agent(product: Product) -> None:
    agent_id, run_id = await _parked(product)
    assert (await _json(product, f"/v1/runs/{run_id}"))["code_agent"] == {"name": "desk", "version": None}
    assert (await product.client.runs.retrieve(run_id)).id == run_id, "letta-client takes the field"
    [entry] = await _json(product, f"/v1/runs/{run_id}/journal")
    assert {name: entry[name] for name in ("slot", "kind", "name", "state", "attempt", "ended_at", "error")} == {
        "slot": "approval:ask#0",
        "kind": "approval",
        "name": "ask",
        "state": "started",
        "attempt": entry["attempt"],
        "ended_at": None,
        "error": None,
    }
    assert "result" not in entry

    other = await product.agent(model="builtin/echo")
    run = await product.client.agents.messages.create_async(other.id, input="go")
    assert (await _json(product, f"/v1/runs/{run.id}"))["code_agent"] is None
    assert await _json(product, f"/v1/runs/{run.id}/journal") == []
    answer = await product.http.get(f"/v1/runs/{run.id}/replay")
    assert answer.status_code == 409, answer.text
    assert agent_id != other.id


async def test_pages_are_shown_the_data_of_an_agents_code(product: Product) -> None:
    agent = await product.agent(model="code/shows-data")
    page = Page(product.http, agent.id, "desk", is_current=True)
    client = await page.say("go")
    shown = [{"type": "CUSTOM", "name": "progress", "value": {"done": done}} for done in (1, 2)]
    assert [{name: one[name] for name in ("type", "name", "value")} for one in client.custom] == shown
    [run] = (await product.client.runs.list(agent_id=agent.id)).items
    frames = (await read_whole(product.http, run.id)).frames
    told = [frame for frame in frames if frame.get("event_type") == "data"]
    assert [one["event_data"]["value"] for one in told] == [{"done": 1}, {"done": 2}]

    message = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "go"}]}
    sent = {"id": "chat", "messages": [message], "trigger": "submit-message"}
    answer = await product.http.post(f"/ai-sdk/{agent.id}/chat", json=sent)
    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith('data: {"type":"data-')]
    assert chunks == [{"type": "data-progress", "data": {"done": done}, "transient": True} for done in (1, 2)]


async def test_results_are_shown_if_asked_for_and_errors_always(product: Product) -> None:
    agent_id, run_id = await _parked(product)
    [asked] = await _json(product, "/v1/approvals", agent_id=agent_id)
    await product.http.post(f"/v1/approvals/{asked['id']}", json={"decision": "deny", "reason": "no"})
    after = (await _json(product, f"/v1/runs/{run_id}"))["metadata"]["continued_by_run_id"]

    async def ended() -> bool:
        return (await _json(product, f"/v1/runs/{after}"))["status"] == "failed"

    await wait_until(ended, description="the run to end", every=0.05)
    [entry] = await _json(product, f"/v1/runs/{after}/journal", results=True)
    assert (entry["kind"], entry["state"], entry["result"]["approve"]) == ("approval", "done", False)
    assert await _json(product, f"/v1/runs/{run_id}/journal", results=True) == [entry], "the turn has one journal"
    replay = await _json(product, f"/v1/runs/{after}/replay")
    assert replay["hello"]["text"] == "go"
    assert len(replay["entries"][0]["hash"]) > 10


@pytest.mark.parametrize(
    ("edited", "result", "answer"),
    [
        ({"amount": 7, "to": "bob"}, "paid 7 to bob", "paid 7 to bob"),
        ({"amount": 7}, "Error: TypeError: _pay() missing 1 required positional argument: 'to'", None),
    ],
)
async def test_what_code_asked_for_could_not_be_edited_by_any_client(
    product: Product, edited: dict[str, Any], result: str, answer: str | None
) -> None:
    agent = await product.agent(model="code/gated")
    run = await product.client.agents.messages.create_async(agent.id, input="go")

    async def asked() -> Any:
        return await _json(product, "/v1/approvals", agent_id=agent.id)

    [waiting] = await wait_until(asked, description="the run to ask", every=0.05)
    sent = await product.http.post(f"/v1/approvals/{waiting['id']}", json={"decision": "approve", "arguments": edited})
    assert sent.status_code == 200, sent.text
    after = (await _json(product, f"/v1/runs/{run.id}"))["metadata"]["continued_by_run_id"]
    ended = await product.ended(after)
    assert ended["status"] == ("failed" if answer is None else "completed"), ended
    history = await product.history(agent.id)
    assert [one["tool_return"] for one in history if one["message_type"] == "tool_return_message"] == [result]
    if answer is not None:
        assert history[-1]["content"] == answer


async def test_a_page_edits_what_code_has_asked_for(product: Product) -> None:
    agent = await product.agent(model="code/gated")
    page = Page(product.http, agent.id, "desk", is_current=True)
    client = await page.say("go")
    [interrupt] = client.pending
    await page.resume(**{interrupt["id"]: {"approved": True, "editedArgs": {"amount": 7, "to": "bob"}}})
    assert (client.text, client.of_role("tool")) == ("paid 7 to bob", ["paid 7 to bob"])


def _environment(folder: Path, *lines: str) -> str:
    """A file with the environment of the agents."""
    file = folder / "agents.env"
    file.write_text("\n".join([f"HOLDFAST_AGENTS_STAGE={folder}", *lines]), encoding="utf-8")
    return str(file)


async def test_a_replay_says_where_changed_code_asks_for_something_else(product: Product, tmp_path: Path) -> None:
    agent = await product.agent(model="code/changing")
    sent = await product.http.post(f"/v1/agents/{agent.id}/messages", json={"input": "go"})
    [run_id] = {message["run_id"] for message in sent.json()["messages"]}
    stage = FileStage(tmp_path)
    steps = [one for one in stage.reached if one.startswith("step")]
    against = ("--against", "tests.kit.code_agents.decided", "--url", product.base_url, "--agents-env-file")
    replay = ("agents", "replay", run_id, *against)

    same = await holdfast(*replay, _environment(tmp_path), "--json")
    assert (same.status, same.errors) == (0, "")
    report = json.loads(same.output)
    assert (report["end"], report["replayed"], report["recorded"], report["left"]) == ("returned", 2, 2, [])

    changed = await holdfast(*replay, _environment(tmp_path, "HOLDFAST_AGENTS_VERSION=2"))
    assert changed.status == 1
    assert "diverged: recorded as 'two' (step, 2 of 2), the code now asks for 'two_b'" in changed.output
    assert "not asked for: step:two#0" in changed.output
    assert [one for one in stage.reached if one.startswith("step")] == steps, "no step was taken again"


async def test_a_replay_stops_where_the_record_ends(product: Product, tmp_path: Path) -> None:
    _, run_id = await _parked(product)
    replay = ("agents", "replay", run_id, "--url", product.base_url)
    settings = {
        "HOLDFAST_AGENTS": "tests.kit.code_agents.decided",
        "HOLDFAST_AGENTS_ENV_FILE": _environment(tmp_path),
    }
    said = await holdfast(*replay, **settings)
    assert said.status == 0, said.errors
    assert "end_of_record: the code reaches the end of the record, and would go on with 'ask'" in said.output
    assert [one["id"] for one in await _json(product, "/v1/approvals")], "the question still waits"

    other = await product.agent(model="builtin/echo")
    run = await product.client.agents.messages.create_async(other.id, input="go")
    refused = await holdfast("agents", "replay", run.id, "--against", "any", "--url", product.base_url)
    assert refused.status == 2
    unnamed = await holdfast("agents", "replay", run_id, "--url", product.base_url)
    assert (unnamed.status, "--against MODULE" in unnamed.errors) == (2, True)


async def test_the_command_lists_what_the_workers_have(product: Product) -> None:
    async def shown() -> bool:
        return bool((await _json(product, "/v1/code-agents"))[0]["workers"])

    await wait_until(shown, description="a worker to be shown", every=0.05)
    said = await holdfast("agents", "list", "--code", "--url", product.base_url)
    assert said.status == 0, said.errors
    assert [line.split()[:4] for line in said.output.splitlines() if line.startswith("desk")] == [
        ["desk", "-", "1", "function"]
    ]


async def test_a_body_that_says_nothing_is_seen_in_the_metrics(product: Product, tmp_path: Path) -> None:
    async def silence() -> float:
        text = (await product.http.get("/metrics")).text
        [line] = [line for line in text.splitlines() if line.startswith("holdfast_body_silent_seconds ")]
        return float(line.split()[1])

    async def is_over() -> bool:
        return await silence() == 0

    assert await silence() == 0
    stage = FileStage(tmp_path)
    stage.stop_at("changing")
    agent = await product.agent(model="code/changing")
    await product.client.agents.messages.create_async(agent.id, input="go")
    await stage.is_reached("changing")
    await wait_until(silence, description="the body to be silent", every=0.05)
    stage.go_on()
    await wait_until(is_over, description="the body to be gone", every=0.05)


async def test_runs_share_a_process_and_its_memory_as_the_settings_say(
    database: Database, redis: ArqRedis, tmp_path: Path
) -> None:
    stage, module = FileStage(tmp_path), "tests.kit.code_agents.sharing"
    settings: dict[str, Any] = {"agents": module, "agents_per_process": 2, "agents_max_mb": 64}
    async with _product(database, redis, tmp_path, **settings) as product:
        await wait_until(lambda: product.services.dialects.code_agents.known, description="known agents", every=0.05)
        for name in ("ada", "bob"):
            stage.stop_at(name)
            agent = await product.agent(model="code/mate")
            await product.client.agents.messages.create_async(agent.id, input=f"{name} stands")
        pids = [(await stage.begins(f"{name} in ")).split()[2] for name in ("ada", "bob")]
        assert pids[0] == pids[1]
        stage.go_on()
        agent = await product.agent(model="code/mate")
        run = await product.client.agents.messages.create_async(agent.id, input="cyd grows")

        async def failed() -> Any:
            found = await _json(product, f"/v1/runs/{run.id}")
            return found if found["status"] == "failed" else None

        error = (await wait_until(failed, description="the run to fail", every=0.05))["metadata"]["error"]
        assert error["error_type"] == "body_out_of_memory"
        assert "HOLDFAST_AGENTS_MAX_MB (64 MiB)" in error["message"]


UNFIT = """
import socket, threading
from holdfast.agents import agent

@agent("kept", version="7")
async def kept(run):
    "Is there."

threading.Thread(target=threading.Event().wait, daemon=True, name="warm").start()
held = socket.socketpair()
"""


async def test_a_check_says_everything_that_is_wrong_with_a_module(tmp_path: Path) -> None:
    """A worker that did not start said the first thing alone."""
    (tmp_path / "unfit.py").write_text(UNFIT, encoding="utf-8")
    said = await holdfast("agents", "check", "unfit", "--json", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert said.status == 1
    report = json.loads(said.output)
    assert [(one["name"], one["version"], one["description"]) for one in report["agents"]] == [
        ("kept", "7", "Is there.")
    ]
    assert [reason.partition(" at its import")[0] for reason in report["reasons"]] == [
        "unfit starts a thread",
        "unfit opens a connection",
    ]
    assert report["warnings"] == []
    shown = await holdfast("agents", "check", "unfit", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert "unfit: unfit starts a thread at its import (warm)" in shown.output


async def test_a_check_shows_what_a_module_raises(tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text("raise LookupError('no such thing')", encoding="utf-8")
    said = await holdfast("agents", "check", "raises", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert (said.status, "cannot be imported: LookupError: no such thing" in said.output) == (1, True)
    assert "Traceback" in said.errors


async def test_a_mistyped_module_was_no_agents_and_a_traceback_of_holdfast_itself() -> None:
    said = await holdfast("agents", "check", "no_such_module", PYTHONPATH=str(ROOT))
    assert (said.status, "Traceback" in said.errors, "no agents" in said.output) == (1, False, False)
    assert said.output.endswith("or name that folder in PYTHONPATH\n")


async def test_an_unknown_agent_was_accepted_as_the_model_of_a_message_and_its_run_waited_for_ever(
    product: Product,
) -> None:
    agent = await product.agent(model="builtin/echo")
    path = f"/v1/agents/{agent.id}/messages"
    for where in (path, f"{path}/async", f"{path}/stream"):
        refused = await product.http.post(where, json={"input": "go", "override_model": UNKNOWN})
        assert refused.status_code == 400, where
        assert "code/desk" in refused.text
        assert refused.json()["field"] == "override_model"
    assert not await _json(product, "/v1/runs/active")


@pytest.mark.parametrize("place", ["generate", "responses", "conversations"])
async def test_every_place_of_a_model_refuses_an_unknown_agent(product: Product, place: str) -> None:
    agent = await product.agent(model="builtin/echo")
    path, body = {
        "generate": (f"/v1/agents/{agent.id}/generate", {"prompt": "go", "override_model": UNKNOWN}),
        "responses": ("/openai/v1/responses", {"model": UNKNOWN, "input": "go"}),
        "conversations": (f"/v1/conversations?agent_id={agent.id}", {"model": UNKNOWN}),
    }[place]
    refused = await product.http.post(path, json=body)
    assert refused.status_code == 400, refused.text
    assert "code/desk" in refused.text


async def test_code_asks_another_agent_by_a_tool(database: Database, redis: ArqRedis, tmp_path: Path) -> None:
    """Its run waits for the answer without a worker, and a dry replay has the answer as well."""
    module = "tests.kit.code_agents.attached_program"
    async with _product(database, redis, tmp_path, agents=module) as product:
        await wait_until(lambda: product.services.dialects.code_agents.known, description="known agents", every=0.05)
        other, asks = await product.agent(model="builtin/echo"), "send_message_to_agent_and_wait_for_reply"
        made = {"model": "code/calls", "name": "asker", "tools": [asks]}
        agent_id = (await product.http.post("/v1/agents/", json=made)).json()["id"]
        call = {"tool": asks, "arguments": {"message": "Hello", "other_agent_id": other.id}}
        sent = {"input": json.dumps([call])}
        run_id = (await product.http.post(f"/v1/agents/{agent_id}/messages/async", json=sent)).json()["id"]
        assert (await product.ended(run_id))["status"] == "completed"
        [said] = [one for one in await product.history(agent_id) if one["message_type"] == "assistant_message"]
        assert other.id in said["content"]
        assert "You said" in said["content"], said
        assert stage_count(tmp_path, "pid ") >= 2, "no process stayed for the answer"
        settings = {"HOLDFAST_AGENTS_ENV_FILE": _environment(tmp_path)}
        against = ("--against", module, "--url", product.base_url, "--json")
        replay = await holdfast("agents", "replay", run_id, *against, **settings)
        report = json.loads(replay.output)
        assert (report["end"], report["replayed"], report["recorded"]) == ("returned", 1, 1), report


async def test_code_gets_the_images_of_a_tool(database: Database, redis: ArqRedis, tmp_path: Path) -> None:
    """It got a text that said that there were some. A process that was killed behind the call has them again, and the
    history has them once."""
    module, stage = "tests.kit.code_agents.attached_program", FileStage(tmp_path)
    async with (
        _product(database, redis, tmp_path, agents=module, reachable_networks="127.0.0.0/8") as product,
        official_server("json") as server,
    ):
        await wait_until(lambda: product.services.dialects.code_agents.known, description="known agents", every=0.05)
        [tool_id] = await taken_over(product, server.target, ["show"])
        agent = await product.agent(model="code/calls", tools=[tool_id])
        stage.stop_at("called")
        call: dict[str, Any] = {"tool": "show", "arguments": {}}
        calls = [{**call, "parts": with_parts} for with_parts in (True, False)]
        run = await product.client.agents.messages.create_async(agent.id, input=json.dumps(calls))
        await stage.is_reached("called")
        os.kill(int((await stage.begins("pid ")).split()[1]), signal.SIGKILL)
        await wait_until(lambda: stage.reached.count("called") == 2, description="the replay")
        stage.go_on()
        assert (await product.ended(run.id))["status"] == "completed"
        assert server.methods.count("tools/call") == 2, "nothing is called again"
        history = await product.history(agent.id)
        journal = await _json(product, f"/v1/runs/{run.id}/journal", results=True)
    said = next(one["content"] for one in history if one["message_type"] == "assistant_message" and one["content"])
    parts, text = said.split("|")
    image = {"type": "image", "url": None, "data": PIXEL, "media_type": "image/png"}
    first, *others = literal_eval(parts)
    assert (first["type"], first["text"].startswith("From the roof:"), others) == ("text", True, [image])
    assert literal_eval(text).endswith("[Image omitted]"), "the text alone, as before"
    returned = [one["tool_returns"] for one in history if one["message_type"] == "tool_return_message"]
    assert json.dumps(returned).count(PIXEL) == 2, "once for each call"
    assert json.dumps(journal).count(PIXEL) == 2


def stage_count(folder: Path, beginning: str) -> int:
    """How often an agent has come to such a place."""
    return sum(one.startswith(beginning) for one in FileStage(folder).reached)
