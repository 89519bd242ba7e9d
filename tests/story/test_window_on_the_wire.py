"""What clients say of a full window, and what they are shown: settings, streams, answers, and models offline."""

import json
from typing import Any

import pytest

from tests.kit.model_server import Turn
from tests.kit.model_server.turn import Failure
from tests.kit.model_server.window import said_to
from tests.kit.product import Product
from tests.kit.product.frame_reader import read_whole
from tests.kit.product.small_windows import (
    WINDOW,
    chat,
    filled,
    small_agent,
    summaries,
    talk,
)

pytestmark = pytest.mark.shared_product

Settings = Any


async def test_the_stream_shows_what_happens_to_those_who_ask(product: Product) -> None:
    model = chat()
    agent_id = await small_agent(product)
    await filled(product, agent_id, model)
    body = {"input": "and so on " * 400, "streaming": True, "background": True, "include_compaction_messages": True}

    answer = await product.http.post(f"/v1/agents/{agent_id}/messages", json=body)

    frames = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    kinds = [frame["message_type"] for frame in frames]
    assert kinds[:4] == ["ping", "event_message", "summary_message", "assistant_message"]
    assert frames[1]["event_type"] == "compaction"
    assert frames[1]["event_data"]["trigger"] == "post_step_context_check"
    assert frames[1]["event_data"]["context_window"] == WINDOW
    assert frames[1]["event_data"]["context_token_estimate"] > 0.9 * WINDOW
    assert frames[2]["summary"] == "Summary: they have talked."
    stats = frames[2]["compaction_stats"]
    assert stats["context_tokens_before"] == frames[1]["event_data"]["context_token_estimate"]
    assert stats["context_tokens_after"] < 0.9 * WINDOW
    assert stats["messages_count_after"] < stats["messages_count_before"]
    run_id = frames[0]["run_id"]
    again = await read_whole(product.http, run_id)
    again.assert_complete()
    assert [frame["summary"] for frame in again.of_type("summary_message")] == ["Summary: they have talked."]
    [listed] = await summaries(product, agent_id)
    assert listed["id"] == frames[2]["id"]
    assert listed["compaction_stats"] == stats


async def test_clients_that_do_not_ask_see_a_users_message(product: Product) -> None:
    model = chat()
    agent_id = await small_agent(product)
    await filled(product, agent_id, model)
    body = {"input": "and so on " * 400, "streaming": True}

    answer = await product.http.post(f"/v1/agents/{agent_id}/messages", json=body)

    frames = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    kinds = [frame["message_type"] for frame in frames]
    assert kinds[:4] == ["ping", "ping", "user_message", "assistant_message"]
    told = json.loads(frames[2]["content"])
    assert told["type"] == "system_alert"
    assert "Summary: they have talked." in told["message"]
    assert [frame["seq_id"] for frame in frames] == list(range(1, len(frames) + 1))


async def test_a_plain_answer_has_the_summary_for_those_who_ask(product: Product) -> None:
    model = chat()
    agent_id = await small_agent(product)
    await filled(product, agent_id, model)

    plain = (await product.http.post(f"/v1/agents/{agent_id}/messages", json={"input": "and so on " * 400})).json()
    asked = {"input": "and so on " * 400, "include_compaction_messages": True}
    found: list[str] = []
    while "summary_message" not in found:
        answer = (await product.http.post(f"/v1/agents/{agent_id}/messages", json=asked)).json()
        found = [message["message_type"] for message in answer["messages"]]

    assert len(await summaries(product, agent_id)) >= 2
    assert [message["message_type"] for message in plain["messages"]] == ["assistant_message"]
    assert found == ["summary_message", "assistant_message"]


async def test_the_agents_settings_say_how(product: Product) -> None:
    model = chat()
    model.summary = Turn(text="A haiku about it")
    model.answer = lambda _: Turn(text="So " + "it is " * 120)
    settings: Settings = {
        "mode": "all",
        "model": "openai/gpt-4.1",
        "prompt": "You write summaries as haiku.",
        "prompt_acknowledgement": True,
        "clip_chars": 7,
    }
    agent_id = await small_agent(product, compaction_settings=settings)
    await filled(product, agent_id, model)

    await talk(product, agent_id, "and so on " * 400)

    [asked] = model.summarised
    assert asked.model == "gpt-4.1"
    assert asked.body["messages"][0]["content"] == "You write summaries as haiku."
    assert [message["role"] for message in asked.body["messages"]] == ["system", "user", "assistant", "user"]
    [told] = await summaries(product, agent_id)
    assert told["summary"] == "A haiku"
    users = [message for message in model.asked[-1].body["messages"] if message["role"] == "user"]
    assert "message 0" not in said_to(model.asked[-1])
    assert len(model.asked[-1].body["messages"]) <= 3, users


@pytest.mark.parametrize("handle", ["letta/auto", "nobody/knows", "anthropic/", "gpt-4o"])
async def test_a_model_that_the_server_does_not_have_falls_back_to_the_agents(product: Product, handle: str) -> None:
    """Letta Code puts `letta/auto` into every agent that it makes, and could not compact any of them."""
    agent = await product.agent(compaction_settings={"model": handle})
    await talk(product, agent.id, "hello")
    product.models.say("Summary: of the agent's own model.")

    done = await product.client.agents.messages.compact(agent.id)
    assert done.summary == "Summary: of the agent's own model."
    await talk(product, agent.id, "hello")
    product.models.say("Summary: again.")
    settings: Settings = {"mode": "all", "model": handle}
    done = await product.client.agents.messages.compact(agent.id, compaction_settings=settings)
    assert done.summary == "Summary: again."
    assert {request.model for request in product.models.requests} == {"gpt-4o-mini"}


async def test_a_summary_model_that_fails_falls_back_to_the_agents(product: Product) -> None:
    agent = await product.agent()
    await talk(product, agent.id, "hello")
    product.models.play(Turn(failure=Failure("not_found")), Turn(text="Summary: of the agent's own model."))

    settings: Settings = {"mode": "all", "model": "openai/gpt-4.1"}
    done = await product.client.agents.messages.compact(agent.id, compaction_settings=settings)

    assert done.summary == "Summary: of the agent's own model."
    assert [request.model for request in product.models.requests[-2:]] == ["gpt-4.1", "gpt-4o-mini"]


async def test_a_message_for_a_model_that_cannot_exist_is_refused(product: Product) -> None:
    agent = await product.agent()

    answer = await product.http.post(
        f"/v1/agents/{agent.id}/messages/async", json={"input": "Hello", "override_model": "nobody/knows"}
    )

    assert answer.status_code == 422
    assert "unknown model handle 'nobody/knows'" in answer.json()["detail"]
    assert (await product.http.get("/v1/runs/", params={"agent_id": agent.id})).json() == []


async def test_an_agent_says_how_it_is_compacted_also_when_nobody_said(product: Product) -> None:
    """It was null, where clients expect an object; and a change of one setting forgot the others."""
    usual = {
        "model": "openai/gpt-4o-mini",
        "model_settings": None,
        "mode": "sliding_window",
        "prompt": None,
        "prompt_acknowledgement": False,
        "clip_chars": 50_000,
        "sliding_window_percentage": 0.3,
    }
    path = f"/v1/agents/{(await product.agent()).id}"
    assert (await product.http.get(path)).json()["compaction_settings"] == usual

    await product.http.patch(path, json={"compaction_settings": {"prompt": "A haiku.", "clip_chars": None}})
    changed = await product.http.patch(path, json={"compaction_settings": {"mode": "all"}, "model": "openai/gpt-4.1"})

    said = {"model": "openai/gpt-4.1", "prompt": "A haiku.", "clip_chars": None, "mode": "all"}
    assert changed.json()["compaction_settings"] == {**usual, **said}
    file = (await product.http.get(f"{path}/export")).json()
    assert file["agents"][0]["compaction_settings"] == {"prompt": "A haiku.", "clip_chars": None, "mode": "all"}


async def test_instructions_that_fill_the_window_alone_are_named_as_the_wire_names_them(product: Product) -> None:
    """It was an error of the model like any other, and clients could not tell that no compaction would help."""
    model = chat()
    model.window = WINDOW
    product.models.answer_with(model)
    agent_id = await small_agent(product, system="Be kind. " * 4_000)
    body = {"input": "Hello", "streaming": True, "background": True}

    streamed = await product.http.post(f"/v1/agents/{agent_id}/messages", json=body)
    plain = await product.http.post(f"/v1/agents/{agent_id}/messages", json={"input": "Hello"})

    frames = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    name = "context_window_overflow_in_system_prompt"
    assert [frame["stop_reason"] for frame in frames if frame["message_type"] == "stop_reason"] == [name]
    assert frames[-1]["error_type"] == name
    assert "shorten the agent's instructions" in frames[-1]["detail"]
    assert (plain.status_code, plain.json()["detail"][:23]) == (400, "CONTEXT_WINDOW_EXCEEDED")
    run = await product.run(frames[-1]["run_id"])
    assert (run["status"], run["stop_reason"]) == ("failed", name)
    listed = await product.client.runs.list(agent_id=agent_id, stop_reason=name)
    assert len(listed.items) == 2


async def test_settings_that_make_no_sense_are_refused_with_the_agent(product: Product) -> None:
    body = {"name": "x", "model": "builtin/echo", "compaction_settings": {"mode": "sometimes"}}

    answer = await product.http.post("/v1/agents/", json=body)

    assert answer.status_code == 422
    assert "compaction_settings" in answer.json()["detail"]


async def test_a_newcomer_sees_it_without_a_key(product: Product) -> None:
    agent = await product.agent(model="builtin/echo", context_window_limit=1_000)

    for number in range(20):
        await talk(product, agent.id, f"number {number}: " + "la" * 70)
        overview = (await product.http.get(f"/v1/agents/{agent.id}/context")).json()
        assert overview["context_window_size_current"] < 1_000

    [*_, last] = await summaries(product, agent.id)
    assert "user: number 0" in last["summary"]


async def test_a_script_with_tools_goes_on_too(product: Product) -> None:
    agent_id = await small_agent(product, model="builtin/scripted", context_window_limit=2_000)
    script = {"turns": [{"calls": [{"name": "report", "arguments": {"number": 1, "words": 150}}]}, {"text": "Seen."}]}

    for _ in range(10):
        answer = await product.client.agents.messages.create(agent_id, input=json.dumps(script))
        assert answer.messages[-1].message_type == "assistant_message"

    assert await summaries(product, agent_id)
    overview = (await product.http.get(f"/v1/agents/{agent_id}/context")).json()
    assert overview["context_window_size_current"] < 2_000
