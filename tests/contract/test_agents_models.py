"""Agents of an operator's own code ask the worker's models: what it costs, who pays, and what anything's end leaves."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from arq.connections import ArqRedis
from structlog.testing import capture_logs

from shared.domain.errors import ShutdownRequested
from shared.domain.events import StopReason
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.limits import Budgets, Limit
from shared.domain.runs import CancelRequest, Run, RunOptions, Usage
from shared.domain.settling import RunEnd
from tests.kit.code_agents.services import services_of_code
from tests.kit.code_agents.stage import FileStage
from tests.kit.model_server import Call, Failure, ModelServer, Turn
from tests.kit.runs.definitions import NOW, PROJECT
from tests.kit.runs.executing import OneWorker, Workers
from tests.kit.runs.stored_runs import THREAD, Stores, said, stored_runs, texts_of
from tests.kit.wait_until import HANGS_S, wait_until
from worker.agents.code_body import CodeBody
from worker.agents.hosts import CodeAgents
from worker.agents.models.endpoint import ModelEndpoint
from worker.models.provider import ModelCall
from worker.models.registry import Models
from worker.run.run_handle import Body, Outcome, RunHandle

PROGRAM = "tests.kit.code_agents.models_program"
CANCEL = CancelRequest(requested_at=NOW, actor="ada", reason="enough")
KEY = "sk-the-workers-own"


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


@dataclass(frozen=True)
class World:
    """Agents, workers that have them, and the provider that these ask."""

    stores: Stores
    stage: FileStage
    redis: ArqRedis
    agents: CodeAgents
    server: ModelServer
    endpoint: ModelEndpoint

    async def submitted(self, agent: str, text: str = "go", **options: Any) -> Run:
        chosen = RunOptions(code_agent=agent, stream_tokens=True, **options)
        return await self.stores.submitted(said(text), options=chosen)

    async def begun(self, run: Run, budgets: Budgets | None = None) -> OneWorker:
        body = CodeBody(self.agents, services_of_code(self.stores), 0.5, self.endpoint)
        return await Workers(self.stores, self.redis, {"code": body}, budgets or Budgets()).begin(run.id)

    async def done(self, run: Run, budgets: Budgets | None = None) -> Run:
        worker = await self.begun(run, budgets)
        assert await worker.ended() is None
        return await self.stores.runs.look_up(run.id)

    async def answer(self) -> str:
        return texts_of(await self.stores.messages.context(PROJECT, THREAD))[-1]

    async def posted(self, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        _, [said] = await self.all_posted({"path": path, "body": body})
        return said

    async def all_posted(self, *requests: Mapping[str, Any]) -> tuple[str, list[tuple[int, Any]]]:
        """The key of the run that sends them, and what came."""
        run = await self.done(await self.submitted("posts", json.dumps(requests)))
        assert run.status is RunStatus.COMPLETED, run.error
        answer = json.loads(await self.answer())
        return answer["key"], [(status, body) for status, body in answer["said"]]

    async def killed(self) -> None:
        pid = (await self.stage.begins("pid ")).split()[1]
        os.kill(int(pid), signal.SIGKILL)


@pytest.fixture
async def world(stores: Stores, redis: ArqRedis, tmp_path: Path) -> AsyncGenerator[World]:
    async with ModelServer() as server:
        environment = server.base_urls() | {"OPENAI_API_KEY": KEY}
        models = Models(environment, first_event_timeout=HANGS_S, idle_timeout=HANGS_S, retries=1)
        stage = FileStage(tmp_path)
        async with (
            ModelEndpoint.serving(models, str(tmp_path / "models")) as endpoint,
            stage.agents(PROGRAM, models="worker", environment=environment) as agents,
        ):
            yield World(stores, stage, redis, agents, server, endpoint)
        await models.aclose()


def chat(text: str = "Hello?", **fields: Any) -> dict[str, Any]:
    return {"model": "openai/gpt-4o-mini", "messages": [{"role": "user", "content": text}], **fields}


async def test_a_completion_is_whole(world: World) -> None:
    world.server.play(Turn(text="Good morning.", calls=[Call("add", {"a": 1}, id="call_9")]))
    status, said = await world.posted("/chat/completions", chat())
    assert status == 200
    assert said["object"] == "chat.completion"
    [choice] = said["choices"]
    assert choice["message"]["content"] == "Good morning."
    assert choice["message"]["tool_calls"] == [
        {"id": "call_9", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    ]
    assert choice["finish_reason"] == "tool_calls"
    assert said["usage"]["prompt_tokens"] == 11
    assert world.server.requests[0].headers["authorization"] == f"Bearer {KEY}"


async def test_a_request_reaches_the_provider_whole(world: World) -> None:
    image = "data:image/png;base64,iVBORw0KGgo="
    function: dict[str, Any] = {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {}},
    }
    asked = chat(
        temperature=0.5,
        max_tokens=99,
        tools=[{"type": "function", "function": function}],
        tool_choice={"type": "function", "function": {"name": "add"}},
    )
    shown = [{"type": "text", "text": "See."}, {"type": "image_url", "image_url": {"url": image}}]
    called = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    asked["messages"] = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": shown},
        {"role": "assistant", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]
    assert (await world.posted("/chat/completions", asked))[0] == 200
    sent = world.server.requests[0].body
    system, user, assistant, result = sent["messages"]
    assert system["content"] == "Be kind."
    assert [part["type"] for part in user["content"]] == ["text", "image_url"]
    assert assistant["tool_calls"][0]["id"] == "c1"
    assert (result["tool_call_id"], result["content"]) == ("c1", "3")
    assert sent["temperature"] == 0.5
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    assert sent["tools"][0]["function"]["name"] == "add"


CHAT, RESPONSES = "/chat/completions", "/responses"
REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    (CHAT, chat() | {"model": "groq/nothing/here/.."}, 404, "openai/gpt-4o-mini"),
    (CHAT, chat() | {"model": "code/posts"}, 404, "openai/gpt-4o-mini"),
    (CHAT, chat(stop=["."]), 400, "stop"),
    (CHAT, chat() | {"messages": []}, 400, "messages"),
    (RESPONSES, {"model": "openai/gpt-4o-mini", "input": "Hi", "previous_response_id": "r"}, 400, "previous_response"),
    ("/completions", {"model": "openai/gpt-4o-mini"}, 404, "/v1/chat/completions"),
]


async def test_what_cannot_be_asked_is_refused_by_name(world: World) -> None:
    _, said = await world.all_posted(*({"path": path, "body": body} for path, body, _, _ in REFUSED))
    assert [status for status, _ in said] == [status for _, _, status, _ in REFUSED]
    for (_, body), (_, _, _, words) in zip(said, REFUSED, strict=True):
        assert words in body["error"]["message"]
    assert world.server.requests == []


async def test_a_request_that_was_too_large_ended_without_a_word(world: World) -> None:
    world.server.play(Turn(text="First."))
    run = await world.done(await world.submitted("asks-much"))
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert run.error.error_type == "body_error"
    detail = run.error.detail or ""
    assert "Error code: 413" in detail
    assert "The request to the model has 640000" in detail
    assert "it may have 64000000" in detail
    assert (len(world.server.requests), run.step_count) == (1, 1), "what was answered before it is kept, and paid once"


async def test_models_are_listed(world: World) -> None:
    status, said = await world.posted("/models")
    assert status == 200
    assert "openai/gpt-4o-mini" in [one["id"] for one in said["data"]]


async def test_a_provider_that_fails_is_asked_again_and_its_error_shown(world: World) -> None:
    for _ in range(2):
        world.server.play(Turn(failure=Failure("rate_limit", headers={"retry-after": "0"})))
    status, said = await world.posted("/chat/completions", chat())
    assert status == 429
    assert said["error"]["code"] == "rate_limit_exceeded"
    assert len(world.server.requests) == 2


async def test_an_error_in_the_middle_is_in_the_stream(world: World) -> None:
    for _ in range(2):
        world.server.play(Turn(text="One two three.", break_="error_event", break_after=2))
    _, said = await world.all_posted(
        {"path": CHAT, "body": chat(stream=True)},
        {"path": RESPONSES, "body": {"model": "openai/gpt-4o-mini", "input": "Hi", "stream": True}},
    )
    for status, body in said:
        assert status == 200
        assert "One" in body
        last = [line for line in body.splitlines() if line.startswith("data: ")][-1]
        assert json.loads(last.removeprefix("data: "))["error"]["type"] == "server_error"


async def test_an_answer_whose_connection_was_lost_failed_the_program(world: World) -> None:
    """It goes on as the same stream, where the model can, and both requests are counted."""
    for _ in range(2):
        world.server.play(Turn(text="One two three.", break_="end", break_after=2))
        world.server.play(Turn(text=" and four."))
    model = "ollama/llama3.2"
    run = await world.submitted(
        "posts",
        json.dumps(
            [
                {"path": CHAT, "body": {**chat(stream=True), "model": model}},
                {"path": RESPONSES, "body": {"model": model, "input": "Hi"}},
            ]
        ),
    )
    run = await world.done(run)
    assert run.status is RunStatus.COMPLETED, run.error
    (_, chunks), (_, response) = json.loads(await world.answer())["said"]
    pieces = [json.loads(line.removeprefix("data: ")) for line in chunks.splitlines() if line.startswith("data: {")]
    said = [piece["choices"][0]["delta"].get("content") or "" for piece in pieces if piece["choices"]]
    assert "".join(said) == "One two and four."
    assert len({piece["id"] for piece in pieces}) == 1
    assert response["output"][0]["content"][0]["text"] == "One two and four."
    assert (len(world.server.requests), run.step_count) == (4, 2)
    assert run.usage.prompt_tokens > 2 * 11 and run.usage.estimated


async def test_the_loop_of_an_agent_goes_over_responses(world: World) -> None:
    world.server.play(Turn(text="I add.", calls=[Call("add", {"a": 1, "b": 2}, id="call_7")]))
    world.server.play(Turn(text="It is 3."))
    run = await world.done(await world.submitted("tools"))
    assert run.status is RunStatus.COMPLETED, run.error
    assert await world.answer() == "It is 3."
    assert "used 11" in world.stage.reached
    _, _, assistant, result = world.server.requests[1].body["messages"]
    assert (assistant["content"], assistant["tool_calls"][0]["id"]) == ("I add.", "call_7")
    assert result["content"] == "3"
    assert (run.usage.prompt_tokens, run.step_count) == (22, 2)


async def test_reasoning_goes_back_to_its_provider_with_its_signature(world: World) -> None:
    model = {"HOLDFAST_AGENTS_MODEL": "anthropic/claude-haiku-4-5-20251001"}
    world.server.play(Turn(reasoning="Hm.", text="I add.", calls=[Call("add", {"a": 1, "b": 2}, id="toolu_7")]))
    world.server.play(Turn(text="It is 3."))
    async with world.stage.agents(PROGRAM, models="worker", environment=model) as agents:
        world = replace(world, agents=agents)
        run = await world.done(await world.submitted("tools"))
    assert run.status is RunStatus.COMPLETED, run.error
    [answer] = [one for one in world.server.requests[1].body["messages"] if one["role"] == "assistant"]
    assert answer["content"][0] == {"type": "thinking", "thinking": "Hm.", "signature": Turn().signature}


async def test_a_killed_process_gets_the_answer_that_was_in_flight(world: World) -> None:
    """One request to the provider in all: the next process has the whole answer, from its beginning."""
    resume = asyncio.Event()
    world.server.play(Turn(text="One two three.", silent_after=2, resume=resume))
    run = await world.submitted("talks")
    worker = await world.begun(run)
    await world.stage.is_reached("piece two")
    await world.killed()
    await wait_until(lambda: world.stage.reached.count("piece two") == 2, description="the next process")
    resume.set()
    assert await worker.ended() is None
    assert await world.answer() == "One two three."
    assert len(world.server.requests) == 1
    assert (await world.stores.runs.look_up(run.id)).usage.prompt_tokens == 11


async def test_an_answer_that_ends_before_the_next_process_begins_is_recorded(world: World) -> None:
    resume = asyncio.Event()
    world.server.play(Turn(text="One two three.", silent_after=2, resume=resume))
    run = await world.submitted("talks")
    worker = await world.begun(run)
    await world.stage.is_reached("piece two")
    world.stage.stop_at("fork")
    await world.killed()
    resume.set()
    await wait_until(lambda: world.server.requests[0].finished, description="the provider to be done")
    world.stage.go_on()
    assert await worker.ended() is None
    assert await world.answer() == "One two three."
    assert len(world.server.requests) == 1


async def test_a_killed_process_asks_no_recorded_answer_again(world: World) -> None:
    world.server.say("First.")
    world.server.say("Second.")
    world.stage.stop_at("between")
    worker = await world.begun(await world.submitted("twice"))
    await world.killed()
    await wait_until(lambda: sum("pid " in one for one in world.stage.reached) == 2, description="the next process")
    world.stage.go_on()
    assert await worker.ended() is None
    assert await world.answer() == "First. Second."
    assert len(world.server.requests) == 2


async def test_another_worker_has_the_recorded_answers(world: World) -> None:
    world.server.say("First.")
    world.server.say("Second.")
    world.stage.stop_at("between")
    run = await world.submitted("twice")
    worker = await world.begun(run)
    await world.stage.begins("pid ")
    await worker.die()
    world.stage.go_on()
    run = await world.done(run)
    assert await world.answer() == "First. Second."
    assert len(world.server.requests) == 2
    assert (run.usage.prompt_tokens, run.step_count) == (22, 2)


async def test_a_cancel_closes_the_connection_to_the_provider(world: World) -> None:
    world.server.play(Turn(text="One two three.", silent_after=2))
    run = await world.submitted("talks")
    worker = await world.begun(run)
    await world.stage.is_reached("piece two")
    await world.stores.runs.request_cancel(await world.stores.runs.look_up(run.id), CANCEL)
    assert await worker.ended() is None
    run = await world.stores.runs.look_up(run.id)
    assert run.status is RunStatus.CANCELLED
    await wait_until(lambda: world.server.requests[0].client_left, description="the worker to hang up")
    assert run.usage.estimated
    assert run.usage.completion_tokens > 0


async def test_a_client_that_leaves_closes_the_connection_to_the_provider(world: World) -> None:
    world.server.play(Turn(text="One two three.", silent_after=1))
    world.stage.stop_at("after")
    worker = await world.begun(await world.submitted("gives-up"))
    await world.stage.is_reached("left")
    await wait_until(lambda: world.server.requests[0].client_left, description="the worker to hang up")
    world.stage.go_on()
    assert await worker.ended() is None
    assert await world.answer() == "gave up"


class CountingBody(Body):
    """Counts one call while the budget of another is looked at."""

    async def execute(self, handle: RunHandle) -> Outcome:
        async def count() -> None:
            handle.account.count("openai/gpt-4o-mini", Usage(prompt_tokens=11))

        await asyncio.gather(handle.account.reserve(ModelCall("openai/gpt-4o-mini", "", [])), count())
        return Outcome(end=RunEnd(trigger=RunTrigger.COMPLETE, stop_reason=StopReason.ANSWERED))


async def test_a_call_that_was_counted_while_another_waited_for_its_budget_stays_counted(
    stores: Stores, redis: ArqRedis
) -> None:
    run = await stores.submitted(said("go"), options=RunOptions(code_agent="counts"))
    workers = Workers(stores, redis, {"code": CountingBody()}, Budgets(run=Limit(tokens=10_000)))
    assert await (await workers.begin(run.id)).ended() is None
    assert (await stores.runs.look_up(run.id)).usage.prompt_tokens == 11


async def test_a_budget_refuses_before_the_call(world: World) -> None:
    run = await world.done(await world.submitted("talks", "word " * 400), Budgets(run=Limit(tokens=100)))
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert run.error.error_type == "budget_exceeded"
    assert world.server.requests == []


async def test_a_run_that_has_used_up_its_steps_asks_no_more(world: World) -> None:
    run = await world.done(await world.submitted("twice", max_steps=1))
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert "steps" in (run.error.detail or "")
    assert len(world.server.requests) == 1


async def test_calls_that_a_run_made_together_went_beyond_its_steps(world: World) -> None:
    run = await world.done(await world.submitted("at-once", "3", max_steps=2))
    assert run.status is RunStatus.COMPLETED, run.error
    assert await world.answer() == "RateLimitError str str"
    assert (run.step_count, len(world.server.requests)) == (2, 2)


async def test_a_call_of_an_adapter_counts_once(world: World) -> None:
    run = await world.done(await world.submitted("steps"))
    assert run.status is RunStatus.COMPLETED, run.error
    assert (run.usage.prompt_tokens, run.step_count) == (11, 1)


async def test_the_keys_of_providers_are_never_in_a_process_of_agents(world: World) -> None:
    """Nor in its host, though the worker has learnt only from the module that no agent needs them."""
    keys = {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": "test-anthropic"}
    async with world.stage.agents(PROGRAM, models="own", environment=keys) as agents:
        world = replace(world, agents=agents)
        await world.done(await world.submitted("secrets"))
    given = await world.answer()
    assert "hf-run-" in given
    assert KEY not in given
    assert "test-anthropic" not in given


async def test_runs_do_not_share_their_tokens_and_answers(world: World) -> None:
    asked = {"path": CHAT, "body": chat()}
    first, _ = await world.all_posted(asked)
    second, said = await world.all_posted(asked, asked | {"key": first}, asked | {"key": "hf-run-nobody"})
    assert first != second
    assert [status for status, _ in said] == [200, 401, 401]
    assert len(world.server.requests) == 2


async def test_a_worker_that_drains_lets_no_new_call_begin(world: World) -> None:
    world.server.say("First.")
    world.server.say("Second.")
    world.stage.stop_at("between")
    run = await world.submitted("twice")
    worker = await world.begun(run)
    await world.stage.begins("pid ")
    worker.active.end_after_steps()
    world.stage.go_on()
    assert isinstance(await worker.ended(), ShutdownRequested)
    assert len(world.server.requests) == 1
    await world.done(run)
    assert await world.answer() == "First. Second."
    assert len(world.server.requests) == 2


class _EndpointWithABug(ModelEndpoint):
    """Meets a bug in its first request."""

    has_met_it = False

    async def _answer(self, connection: Any, request: Any) -> None:
        if not self.has_met_it:
            self.has_met_it = True
            raise KeyError("a bug")
        await super()._answer(connection, request)


async def test_a_request_that_met_a_bug_ended_the_worker(tmp_path: Path) -> None:
    async def answered(path: str) -> bytes:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET /v1/models HTTP/1.1\r\nhost: worker\r\nconnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    models = Models({}, first_event_timeout=HANGS_S, idle_timeout=HANGS_S, retries=0)
    path = str(tmp_path / "models")
    async with _EndpointWithABug.serving(models, path):
        with capture_logs() as logged:
            assert await answered(path) == b""
        assert [one["event"] for one in logged] == ["model_connection_failed"]
        assert (await answered(path)).startswith(b"HTTP/1.1 401 ")
    await models.aclose()
