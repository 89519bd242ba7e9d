"""Traces: one for each run, from the request that submits it to its callback, sent to a local receiver."""

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import structlog
from arq.connections import ArqRedis

from shared.sql.engine import Database
from tests.kit.model_server import Failure, ModelServer
from tests.kit.model_server.turn import Call, Turn
from tests.kit.product import Product, running_product
from tests.kit.product.callback_receiver import CallbackReceiver
from tests.kit.product.waiting_calls import waiting_calls
from tests.kit.tools import ROLL_DICE
from tests.kit.trace_receiver import TraceReceiver
from tests.kit.wait_until import wait_until

SECRET = "the moon is made of cheese"
CALLER = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{CALLER}-00f067aa0ba902b7-01"


@pytest.fixture
async def receiver() -> AsyncIterator[TraceReceiver]:
    async with TraceReceiver() as receiving:
        yield receiving


class Traced:
    """Products that send their traces. What they have is sent at the latest when their block ends."""

    def __init__(self, database: Database, redis: ArqRedis, models: ModelServer, receiver: TraceReceiver) -> None:
        self._parts = database, redis, models
        self._receiver = receiver

    def product(self, *, with_worker: bool = True, **settings: Any) -> AbstractAsyncContextManager[Product]:
        chosen = {"otlp_endpoint": self._receiver.url, **settings}
        return running_product(*self._parts, settings=chosen, with_worker=with_worker)


@pytest.fixture
def traced(database: Database, redis: ArqRedis, models: ModelServer, receiver: TraceReceiver) -> Traced:
    return Traced(database, redis, models, receiver)


async def ended(
    product: Product, agent_id: str, headers: dict[str, str] | None = None, **fields: Any
) -> dict[str, Any]:
    """A run that was submitted and has ended."""
    body = {"input": SECRET, **fields}
    answer = await product.http.post(f"/v1/agents/{agent_id}/messages/async", json=body, headers=headers)
    return await product.ended(answer.json()["id"])


async def test_a_run_is_one_trace_from_its_submission_to_its_callback(
    traced: Traced, models: ModelServer, receiver: TraceReceiver
) -> None:
    models.play(Turn(calls=[Call("roll_dice", {"num_sides": 6}, id="call_0")]), Turn(text=SECRET))
    with structlog.testing.capture_logs([structlog.contextvars.merge_contextvars]) as logged:
        async with CallbackReceiver() as callbacks, traced.product() as product:
            agent = await product.agent(tools=[await product.tool(ROLL_DICE)])
            run = await ended(product, agent.id, {"traceparent": TRACEPARENT}, callback_url=callbacks.url)
            called = await callbacks.called()
            await receiver.came("callback")

    assert {span.trace_id for span in receiver.spans} == {CALLER} == {run["metadata"]["trace_id"]}
    submit, invoke, callback = (receiver.one(name) for name in ("submit", f"invoke_agent {agent.name}", "callback"))
    assert (submit.service, submit.kind, submit.parent_id) == ("holdfast-api", "server", "00f067aa0ba902b7")
    assert receiver.children(submit) == ["wait", "claim", invoke.name, "callback"]
    assert receiver.children(invoke) == ["step", "step", "settle"]
    first, second = receiver.named("step")
    assert receiver.children(first) == ["chat gpt-4o-mini", "checkpoint", "execute_tool roll_dice", "checkpoint"]
    assert receiver.children(second) == ["chat gpt-4o-mini"]
    assert invoke.service == "holdfast-worker"
    assert not any(span.has_failed for span in receiver.spans)
    assert all(span.began_at <= span.ended_at for span in receiver.spans)
    assert all(span.attributes["holdfast.run.id"] == run["id"] for span in receiver.spans)
    assert called.headers["traceparent"] == f"00-{CALLER}-{callback.span_id}-01"
    assert not any("traceparent" in request.headers for request in models.requests), "a provider is told nothing"
    assert not any(b"cheese" in request.content for request in receiver.requests)
    [settled] = [line for line in logged if line["event"] == "run_settled"]
    assert settled["trace_id"] == CALLER


async def test_what_spans_say_has_the_names_of_the_conventions(
    traced: Traced, models: ModelServer, receiver: TraceReceiver
) -> None:
    models.play(Turn(calls=[Call("roll_dice", {"num_sides": 6}, id="call_0")]), Turn(text=SECRET))
    async with traced.product() as product:
        agent = await product.agent(tools=[await product.tool(ROLL_DICE)])
        run = await ended(product, agent.id)

    whose = {
        "gen_ai.agent.id": agent.id,
        "gen_ai.conversation.id": agent.id,
        "holdfast.project": "default",
        "holdfast.run.id": run["id"],
        "holdfast.run.type": "send_message_async",
    }
    chat = receiver.named("chat gpt-4o-mini")[0]
    assert chat.kind == "client"
    took, step_id = (chat.attributes.pop(name) for name in ("gen_ai.response.time_to_first_chunk", "holdfast.step.id"))
    assert 0 <= took * 1e9 <= chat.ended_at - chat.began_at
    assert step_id.startswith("step-")
    usage = {name: count for name, count in chat.attributes.items() if name.startswith("gen_ai.usage.")}
    assert usage["gen_ai.usage.input_tokens"] == 11
    assert usage["gen_ai.usage.cache_read.input_tokens"] == 3
    assert chat.attributes == whose | usage | {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o-mini",
        "gen_ai.request.stream": True,
        "gen_ai.response.finish_reasons": ["tool_calls"],
        "holdfast.model.retries": 0,
        "holdfast.outcome": "success",
    }
    assert receiver.one("execute_tool roll_dice").attributes == whose | {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "roll_dice",
        "gen_ai.tool.call.id": "call_0",
        "holdfast.outcome": "success",
    }
    invoke = receiver.one(f"invoke_agent {agent.name}").attributes
    assert invoke["gen_ai.agent.name"] == agent.name
    assert invoke["gen_ai.usage.input_tokens"] == 22
    assert (invoke["holdfast.attempt"], invoke["holdfast.run.steps"]) == (1, 2)
    assert (invoke["holdfast.outcome"], invoke["holdfast.run.stop_reason"]) == ("completed", "end_turn")


async def test_a_continuation_is_in_the_trace_of_the_run_that_asked(traced: Traced, receiver: TraceReceiver) -> None:
    async with traced.product() as product:
        asked = await waiting_calls(product, "moon")
        answer = await product.http.post(
            f"/v1/approvals/{asked.ids[0]}", json={"decision": "approve"}, headers={"traceparent": TRACEPARENT}
        )
        continuation = await product.ended(answer.json()["run"]["id"])
        told = await waiting_calls(product, "mars")
        await told.decide_in_a_message(call_0=True)

    assert continuation["metadata"]["trace_id"] == (await _trace_of(receiver, asked.run_id))
    first, second = [span for span in receiver.spans if span.name == "submit"]
    for submit, run_id in ((first, asked.run_id), (second, told.run_id)):
        inside = [span for span in receiver.spans if span.trace_id == submit.trace_id]
        decide = next(span for span in inside if span.name == "decide")
        parked, continued = [span for span in inside if span.name.startswith("invoke_agent ")]
        assert {parked.parent_id, continued.parent_id, decide.parent_id} == {submit.span_id}
        assert parked.attributes["holdfast.outcome"] == "parked"
        assert continued.attributes["holdfast.outcome"] == "completed"
        assert continued.attributes["holdfast.run.continues"] == parked.attributes["holdfast.run.id"] == run_id
        assert "execute_tool launch" in {span.name for span in inside}
        assert not any(span.has_failed for span in inside)
    assert receiver.named("decide")[0].links == (CALLER,)


async def _trace_of(receiver: TraceReceiver, run_id: str) -> str:
    [trace_id] = {span.trace_id for span in receiver.spans if span.attributes["holdfast.run.id"] == run_id}
    return trace_id


async def test_a_failure_is_marked_and_a_cancel_is_none(
    traced: Traced, models: ModelServer, receiver: TraceReceiver
) -> None:
    models.play(Turn(failure=Failure("auth", message=SECRET)), Turn(text="one two three", silent_after=1))
    async with traced.product() as product:
        agent = await product.agent()
        failed = await ended(product, agent.id)
        answer = await product.http.post(f"/v1/agents/{agent.id}/messages/async", json={"input": SECRET})
        run_id = answer.json()["id"]
        await wait_until(lambda: len(models.requests) == 2, description="the model to be asked")
        await product.http.post(f"/v1/runs/{run_id}/cancel")
        await product.ended(run_id)

    for run, outcome in ((failed["id"], "failed"), (run_id, "cancelled")):
        spans = {span.name: span for span in receiver.spans if span.attributes["holdfast.run.id"] == run}
        invoke, chat = spans[f"invoke_agent {agent.name}"], spans["chat gpt-4o-mini"]
        assert invoke.attributes["holdfast.outcome"] == outcome == invoke.attributes["holdfast.run.status"]
        assert {invoke.has_failed, chat.has_failed} == {outcome == "failed"}
        assert not any(span.said for span in spans.values())
        if outcome == "failed":
            assert chat.attributes["error.type"] == "llm_authentication"
            assert invoke.attributes["error.type"] == failed["metadata"]["error"]["error_type"]
        else:
            assert chat.attributes["holdfast.outcome"] == "cancelled"
    assert not any(b"cheese" in request.content for request in receiver.requests)


async def test_a_run_that_nobody_began_ends_in_its_trace(traced: Traced, receiver: TraceReceiver) -> None:
    async with traced.product(with_worker=False) as product:
        agent = await product.agent()
        answer = await product.http.post(f"/v1/agents/{agent.id}/messages/async", json={"input": SECRET})
        await product.http.post(f"/v1/runs/{answer.json()['id']}/cancel")
    settle = receiver.one("settle")
    assert (settle.parent_id, settle.attributes["holdfast.outcome"]) == (receiver.one("submit").span_id, "cancelled")


async def test_what_was_said_is_sent_when_the_operator_asks_for_it(
    traced: Traced, models: ModelServer, receiver: TraceReceiver
) -> None:
    models.play(Turn(calls=[Call("roll_dice", {"num_sides": 6}, id="call_0")]), Turn(text="A six."))
    async with traced.product(trace_content=True) as product:
        agent = await product.agent(tools=[await product.tool(ROLL_DICE)], system="You roll dice.")
        await ended(product, agent.id)

    last = receiver.named("chat gpt-4o-mini")[-1].attributes
    [instructions] = json.loads(last["gen_ai.system_instructions"])
    assert "You roll dice." in instructions["content"]
    user, call, result = json.loads(last["gen_ai.input.messages"])
    assert (user["role"], user["parts"][0]["content"]) == ("user", SECRET)
    assert [(part["type"], part.get("name")) for part in call["parts"]] == [("tool_call", "roll_dice")]
    assert result["parts"] == [{"type": "tool_call_response", "id": "call_0", "response": "6"}]
    assert json.loads(last["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "A six."}], "finish_reason": "stop"}
    ]
    tool = receiver.one("execute_tool roll_dice").attributes
    assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"num_sides": 6}
    assert tool["gen_ai.tool.call.result"] == "6"


async def test_a_request_that_is_not_traced_elsewhere_is_not_traced_here(
    traced: Traced, receiver: TraceReceiver
) -> None:
    async with traced.product() as product:
        agent = await product.agent()
        run = await ended(product, agent.id, {"traceparent": TRACEPARENT.removesuffix("01") + "00"})
    assert run["metadata"]["trace_id"] == CALLER
    assert receiver.spans == []


async def test_each_process_had_another_name_in_traces_than_in_the_list_of_processes(
    traced: Traced, receiver: TraceReceiver
) -> None:
    async with traced.product() as product:
        agent = await product.agent()
        await ended(product, agent.id)
        listed = (await product.http.get("/v1/admin/operations")).json()
        await receiver.came(f"invoke_agent {agent.name}")
        await receiver.came("submit")
    names = {span.service: span.resource["service.instance.id"] for span in receiver.spans}
    assert names["holdfast-api"] == listed["api_processes"][0]["name"]
    assert names["holdfast-worker"] == listed["workers"][0]["name"]
