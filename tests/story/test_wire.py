"""Small things that a client of Letta's wire counts on, through the whole product."""

import json
from typing import Any
from uuid import uuid4

import pytest

from tests.kit.model_server import Call, Failure, Turn
from tests.kit.product import Product
from tests.kit.tools import LAUNCH, ROLL_DICE

pytestmark = pytest.mark.shared_product


async def _steps(product: Product, run_id: str) -> list[tuple[str, str | None]]:
    steps = (await product.http.get(f"/v1/runs/{run_id}/steps", params={"order": "asc"})).json()
    return [(step["status"], step["stop_reason"]) for step in steps]


async def _ended(product: Product, agent_id: str, **fields: Any) -> str:
    """A run that has ended; its id."""
    answer = await product.http.post(f"/v1/agents/{agent_id}/messages/async", json={"input": "Go", **fields})
    return (await product.ended(answer.json()["id"]))["id"]


async def test_every_step_says_why_it_stopped(product: Product) -> None:
    """`stop_reason` was empty for every step but the last one."""
    dice = Turn(calls=[Call("roll_dice", {"num_sides": 6})])
    agent = await product.agent(tools=[await product.tool(ROLL_DICE)])

    product.models.play(dice, Turn(text="Six."))
    assert await _steps(product, await _ended(product, agent.id)) == [("success", "end_turn")] * 2
    product.models.play(dice, dice)
    run_id = await _ended(product, agent.id, max_steps=2)
    assert await _steps(product, run_id) == [("success", "end_turn"), ("success", "max_steps")]
    product.models.play(dice, Turn(failure=Failure("server")))
    run_id = await _ended(product, agent.id)
    assert await _steps(product, run_id) == [("success", "end_turn"), ("failed", "llm_api_error")]


async def test_a_step_whose_calls_wait_says_so(product: Product) -> None:
    agent = await product.agent(tools=[await product.tool(LAUNCH, default_requires_approval=True)])
    product.models.play(Turn(calls=[Call("launch", {"target": "moon"})]))
    assert await _steps(product, await _ended(product, agent.id)) == [("success", "requires_approval")]


async def test_a_cancel_for_an_agent_that_does_not_exist_is_a_404(product: Product) -> None:
    agent_id = f"agent-{uuid4()}"
    for body in (None, {"run_ids": [f"run-{uuid4()}"]}):
        answer = await product.http.post(f"/v1/agents/{agent_id}/messages/cancel", json=body)
        assert (answer.status_code, answer.json()["detail"]) == (404, f"Agent with ID {agent_id} not found")


@pytest.mark.parametrize("status_events", [True, False])
async def test_a_stream_without_pings_has_none(product: Product, status_events: bool) -> None:
    """Number 1 was one, and so was what stands for status events where nobody asked for those."""
    product.models.say("Hello there.")
    agent = await product.agent()
    body = {"input": "Hi", "streaming": True, "include_pings": False, "include_status_events": status_events}
    sent = await product.http.post(f"/v1/agents/{agent.id}/messages", json=body)
    kinds = [frame["message_type"] for frame in _frames(sent.text)]
    assert "ping" not in kinds
    assert ("run_status" in kinds) is status_events
    said = [frame for frame in _frames(sent.text) if frame["message_type"] != "run_status"]
    assert [frame["message_type"] for frame in said] == ["assistant_message", "stop_reason", "usage_statistics"]
    run_id = said[0]["run_id"]

    for after in (0, 1, 2):
        asked = {"include_pings": False, "starting_after": after}
        shown = (await product.http.post(f"/v1/runs/{run_id}/stream", json=asked)).text
        assert _frames(shown) == [frame for frame in said if frame["seq_id"] > after]
        assert shown.endswith("data: [DONE]\n\n")


async def test_a_call_that_came_whole_was_cut_into_two_frames(product: Product) -> None:
    """Gemini sends a call's name together with its arguments."""
    tools = [await product.tool(ROLL_DICE), await product.tool(LAUNCH, default_requires_approval=True)]
    agent = await product.agent(tools=tools, model="google_ai/gemini-2.5-flash")
    product.models.play(Turn(calls=[Call("launch", {"target": "moon"}), Call("roll_dice", {"num_sides": 6})]))
    body = {"input": "Go", "streaming": True, "stream_tokens": True}
    sent = await product.http.post(f"/v1/agents/{agent.id}/messages", json=body)
    calls = [frame["tool_call"] for frame in _frames(sent.text) if "tool_call" in frame]
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == [
        ("launch", {"target": "moon"}),
        ("roll_dice", {"num_sides": 6}),
    ]


CURSORS: list[tuple[list[str], object, int | None]] = [
    ([], 1, 1),
    ([], " 1 ", 1),
    ([], "1.0", 1),
    ([], 99, 99),
    (["1"], None, 1),
    (["001"], None, 1),
    ([""], 1, 1),
    (["2"], 0, 2),
    (["2"], 1, 2),
    (["1"], 2, 1),
    (["1", "1"], None, 1),
    ([], "1.5", None),
    ([], "", None),
    ([], "one", None),
    ([], -1, None),
    (["1,1"], None, None),
    (["1", "2"], None, None),
    (["2", "1"], None, None),
    (["", "1"], None, None),
    (["+1"], None, None),
    (["x"], 1, None),
    (["1"], "x", None),
]
"""Values of `Last-Event-ID`, `starting_after`, and the frame behind which the stream begins; None: a refusal."""


@pytest.mark.parametrize(("last_ids", "after", "begins"), CURSORS)
async def test_frames_were_left_out_where_cursors_contradict_each_other(
    product: Product, last_ids: list[str], after: object, begins: int | None
) -> None:
    """The body went before the header of a client that came back, and of two headers the first was taken."""
    agent = await product.agent(model="builtin/echo")
    run_id = (await product.client.agents.messages.create_async(agent.id, input="Hello")).id
    await product.ended(run_id)
    path, headers = f"/v1/runs/{run_id}/stream", [("Last-Event-ID", one) for one in last_ids]
    query = None if after is None else {"starting_after": str(after)}
    body = {"run_id": run_id, "starting_after": after}
    answers = (
        await product.http.get(path, headers=headers, params=query),
        await product.http.post(path, headers=headers, json=body),
        await product.http.post(f"/v1/conversations/{agent.id}/stream", headers=headers, json=body),
    )
    whole = _numbers((await product.http.post(path)).text)
    for answer in answers:
        if begins is None:
            assert answer.status_code in (400, 422), answer.text
            assert answer.json()["field"].endswith(("Last-Event-ID", "starting_after"))
        else:
            assert _numbers(answer.text) == ([one for one in whole if one > begins] or [begins])


async def test_two_cursors_in_an_address_that_differ_are_refused(product: Product) -> None:
    agent = await product.agent(model="builtin/echo")
    run_id = (await product.client.agents.messages.create_async(agent.id, input="Hello")).id
    await product.ended(run_id)
    path = f"/v1/runs/{run_id}/stream?starting_after=1&starting_after="
    refused = await product.http.get(f"{path}2")
    assert (refused.status_code, refused.json()["field"]) == (400, "query.starting_after")
    assert _numbers((await product.http.get(f"{path}1")).text)[0] == 2


async def test_true_was_a_cursor(product: Product) -> None:
    """It is 1 to Python, so the first frame was left out."""
    agent = await product.agent(model="builtin/echo")
    run_id = (await product.client.agents.messages.create_async(agent.id, input="Hello")).id
    refused = await product.http.post(f"/v1/runs/{run_id}/stream", json={"starting_after": True})
    assert (refused.status_code, refused.json()["field"]) == (422, "starting_after")


def _numbers(stream: str) -> list[int]:
    return [int(line[4:]) for line in stream.splitlines() if line.startswith("id: ")]


@pytest.mark.parametrize(("option", "value"), [("background", True), ("stream_tokens", True), ("include_pings", False)])
async def test_an_option_of_streams_without_a_stream_is_refused(product: Product, option: str, value: bool) -> None:
    agent = await product.agent()
    for streaming in ({}, {"streaming": False}, {"streaming": None}):
        body = {"input": "Hi", option: value, **streaming}
        answer = await product.http.post(f"/v1/agents/{agent.id}/messages", json=body)
        assert answer.status_code == 422
        said = f"{option} can only be {str(value).lower()} when streaming=true."
        assert answer.json()["detail"] == (
            f"Streaming options set without streaming enabled. {said} "
            "Either set streaming=true or use default values for streaming options."
        )
    assert (await product.http.get("/v1/runs")).json() == []


def _frames(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
