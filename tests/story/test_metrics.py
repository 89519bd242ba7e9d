"""What a scrape says after runs: each count and each duration is that of what happened."""

import asyncio
from typing import Any

from api.access.authentication import act_for
from api.access.callers import DEFAULT_PROJECT
from shared.domain.ids import StepId
from shared.telemetry.metrics import CUT_OFF
from tests.kit.exposition import Figures, scraped
from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.product.waiting_calls import waiting_calls
from tests.kit.wait_until import wait_until

LOOK = 'def look() -> str:\n    """Looks."""\n    return "seen"\n'
BREAKS = 'def breaks() -> str:\n    """Breaks."""\n    raise ValueError("no")\n'


async def steps_of(product: Product, run_id: str) -> list[dict[str, Any]]:
    return (await product.http.get(f"/v1/runs/{run_id}/steps", params={"order": "asc"})).json()


async def scraped_idle(product: Product) -> Figures:
    """A scrape when the worker has nothing in hand any more."""

    async def look() -> Figures | None:
        figures = await scraped(product.http)
        return figures if figures.of("runs_in_hand") == 0 else None

    return await wait_until(look, description="the worker to have no run in hand")


async def test_a_question_to_a_model_is_counted(product: Product) -> None:
    agent = await product.agent()
    product.models.say("Four.")

    answer = await product.http.post(f"/v1/agents/{agent.id}/generate", json={"prompt": "What is 2+2?"})

    figures = await scraped_idle(product)
    assert figures.of("runs_submitted_total", kind="generation") == 1
    assert figures.of("runs_ended_total", status="completed", stop_reason="end_turn") == 1
    assert figures.of("steps_total", status="success") == 1
    assert figures.of("model_calls_total", provider="openai", outcome="success") == 1
    used = answer.json()["usage"]
    assert figures.of("model_tokens_total", provider="openai", direction="in") == used["prompt_tokens"]
    assert figures.of("model_tokens_total", provider="openai", direction="out") == used["completion_tokens"]
    [step] = await steps_of(product, used["run_ids"][0])
    assert step["status"] == "success"


async def test_a_run_with_tools_is_counted(product: Product) -> None:
    tools = [await product.tool(LOOK), await product.tool(BREAKS)]
    agent = await product.agent(tools=tools)
    product.models.play(
        Turn(calls=[Call("look", {})]),
        Turn(calls=[Call("breaks", {})]),
        Turn(text="It is done."),
    )

    asked = {"input": "Look.", "stream_tokens": True}
    answer = await product.http.post(f"/v1/agents/{agent.id}/messages/stream", json=asked)
    assert "It" in answer.text

    figures = await scraped_idle(product)
    assert figures.of("runs_submitted_total", kind="message") == 1
    assert figures.of("runs_ended_total", status="completed", stop_reason="end_turn") == 1
    assert figures.of("steps_total", status="success") == 3
    assert figures.of("tool_calls_total", outcome="success") == 1
    assert figures.of("tool_calls_total", outcome="error") == 1
    assert figures.of("tool_call_seconds_count", outcome="success") == 1
    assert figures.of("model_calls_total", provider="openai", outcome="success") == 3
    assert figures.of("model_call_seconds_count", provider="openai") == 3
    assert figures.of("model_tokens_total", provider="openai", direction="in") > 0
    assert figures.of("model_tokens_total", provider="openai", direction="out") > 0
    assert figures.of("queue_wait_seconds_count") == 1
    assert figures.of("claim_to_first_token_seconds_count") == 1
    assert figures.of("token_delay_seconds_count") >= 3
    assert figures.of("log_bytes_total") > 100
    # The answer and the results of each of the two steps with calls.
    assert figures.of("checkpoint_seconds_count") == 4
    assert figures.of("settle_seconds_count") == 1
    assert figures.of("leases_lost_total") == figures.of("step_restarts_total") == figures.of("log_gaps_total") == 0
    assert figures.of("http_requests_total", method="POST", route="/v1/agents", status="200") == 1


async def test_requests_are_counted_by_their_route_and_never_by_their_path(product: Product) -> None:
    agent = await product.agent()
    for path in (f"/v1/agents/{agent.id}", "/v1/agents/nonsense", "/no/such/path"):
        await product.http.get(path)
    await product.http.request("PROPFIND", "/v1/agents")

    figures = await scraped(product.http)

    assert figures.of("http_requests_total", method="GET", route="/v1/agents/{agent_id}", status="200") == 1
    assert figures.of("http_requests_total", method="GET", route="/v1/agents/{agent_id}", status="422") == 1
    assert figures.of("http_requests_total", method="GET", route="none", status="404") == 1
    assert {"other"} < figures.labels("http_requests_total")
    assert not {agent.id, "PROPFIND", "/no/such/path"} & figures.labels("http_requests_total")
    assert figures.of("http_request_seconds_count", route="/v1/agents/{agent_id}") == 2


async def test_a_failed_call_of_a_model_is_counted_by_provider_and_reason(product: Product) -> None:
    agent = await product.agent()
    product.models.fail("auth")
    run = await product.client.agents.messages.create_async(agent_id=agent.id, input="Hello")
    await product.ended(run.id)

    figures = await scraped_idle(product)

    assert figures.of("model_calls_total", provider="openai", outcome="llm_authentication") == 1
    assert figures.of("runs_ended_total", status="failed", stop_reason="llm_api_error") == 1
    assert figures.of("steps_total", status="failed") == 1


async def test_a_cancel_is_counted_with_what_it_has_cut_off(product: Product) -> None:
    agent = await product.agent()
    product.models.play(Turn(text="It never ends.", silent_after=1))
    run = await product.client.agents.messages.create_async(agent_id=agent.id, input="Hello")
    await wait_until(lambda: product.models.requests, description="the model to be asked")

    await product.http.post(f"/v1/runs/{run.id}/cancel")

    figures = await scraped_idle(product)
    assert figures.of("cancels_total", state="running") == 1
    assert figures.of("cancel_latency_seconds_count", state="model") == 1
    assert figures.of("runs_ended_total", status="cancelled", stop_reason="cancelled") == 1
    assert figures.of("model_calls_total", provider="openai", outcome="cancelled") == 1
    assert figures.of("steps_total", status="cancelled") == 1


async def test_a_cancel_that_let_the_step_end_was_counted_as_a_slow_one(product: Product) -> None:
    """Its client wants the model and the tools to take the time that they take."""
    tools, answers = [await product.tool(LOOK)], asyncio.Event()
    agent = await product.agent(tools=tools)
    product.models.play(Turn(calls=[Call("look", {})], silent_before_headers=60, resume=answers))
    run = await product.client.agents.messages.create_async(agent_id=agent.id, input="Hello")
    await wait_until(lambda: product.models.requests, description="the model to be asked")

    await product.http.post(f"/v1/runs/{run.id}/cancel", json={"mode": "after_step", "wait": 0})
    answers.set()

    figures = await scraped_idle(product)
    assert figures.of("runs_ended_total", status="cancelled", stop_reason="cancelled") == 1
    assert [figures.of("cancel_latency_seconds_count", state=state) for state in CUT_OFF] == [0, 0, 0]


async def test_a_run_that_waits_for_a_person_is_shown_and_its_tool_is_timed_when_it_goes_on(product: Product) -> None:
    asked = await waiting_calls(product, "moon")
    figures = await scraped_idle(product)
    assert figures.of("runs", status="awaiting_approval") == 1
    assert figures.of("runs", status="running") == 0
    assert figures.of("runs_ended_total", status="awaiting_approval", stop_reason="requires_approval") == 1
    assert figures.of("steps_total", status="parked") == 1

    product.models.say("Launched.")
    _, answer = await asked.decide()
    await product.ended(answer["run"]["id"])

    figures = await scraped_idle(product)
    assert figures.of("runs_submitted_total", kind="decision") == 1
    assert figures.of("tool_calls_total", outcome="success") == 1
    [step] = await steps_of(product, asked.run_id)
    act_for(DEFAULT_PROJECT)
    stored = await product.services.stores.steps.get(DEFAULT_PROJECT, StepId(step["id"]))
    [tool] = stored.timing.tools
    assert (tool.tool_name, tool.is_error) == ("launch", False)
    assert stored.timing.asked_at <= stored.timing.first_token_at <= stored.timing.answered_at
    assert stored.timing.answered_at <= tool.started_at <= tool.ended_at
