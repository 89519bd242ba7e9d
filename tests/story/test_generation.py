"""A client asks a model one question, beside the agent's conversations: without its memory, tools and history."""

import json
from typing import Any

import httpx
import pytest
from letta_client import APIStatusError, NotFoundError

from shared.concurrency import background
from tests.kit.model_server import Call, Failure, Turn
from tests.kit.product import Product
from tests.kit.product.frame_reader import read_whole
from tests.kit.provider_rules.request import ONE_OF_EACH_WIRE, broken_rules
from tests.kit.tools import ROLL_DICE
from tests.kit.wait_until import wait_until

pytestmark = pytest.mark.shared_product

VERDICT: dict[str, Any] = {
    "properties": {
        "ok": {"type": "boolean", "description": "true to allow the action, false to block it"},
        "reason": {"type": "string", "description": "Explanation for the decision. Required when ok is false."},
    },
    "required": ["ok"],
}
"""As Letta Code sends it with its hooks: it does not say that it is of an object."""


async def generate(product: Product, agent_id: str, **body: Any) -> Any:
    """The answer to a question, by the SDK, which has no method for it."""
    return await product.client.post(f"/v1/agents/{agent_id}/generate", body=body, cast_to=object)


async def asked(product: Product, agent_id: str, **body: Any) -> httpx.Response:
    return await product.http.post(f"/v1/agents/{agent_id}/generate", json={"prompt": "Hello", **body})


async def runs_of(product: Product, agent_id: str) -> list[dict[str, Any]]:
    return (await product.http.get("/v1/runs/", params={"agent_id": agent_id})).json()


async def test_a_question_is_answered_without_the_agent_and_leaves_nothing_with_it(product: Product) -> None:
    blocks: Any = [{"label": "human", "value": "The user is Ada."}]
    agent = await product.agent(tools=[await product.tool(ROLL_DICE)], memory_blocks=blocks, system="Be Eve.")
    await product.client.agents.messages.create(agent.id, input="My name is Ada.")
    before, history = await product.client.agents.retrieve(agent.id), await product.history(agent.id)
    product.models.say("Four, of course.")

    answer = await generate(product, agent.id, prompt="What is 2+2?")

    sent = product.models.requests[-1]
    assert sent.body["messages"] == [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "What is 2+2?"},
    ]
    assert "tools" not in sent.body
    assert (answer["content"], answer["model"]) == ("Four, of course.", "gpt-4o-mini")
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > usage["prompt_tokens"] > 0
    assert usage["step_count"] == 1
    assert await product.client.agents.retrieve(agent.id) == before
    assert await product.history(agent.id) == history
    of_all_histories = (await product.http.get(f"/v1/agents/{agent.id}/messages")).json()
    assert [message["id"] for message in of_all_histories] == [message["id"] for message in history]


async def test_a_question_is_a_run_with_a_stream_a_step_and_its_usage(product: Product) -> None:
    agent = await product.agent()

    answer = await generate(product, agent.id, prompt="What is 2+2?")

    [run] = await runs_of(product, agent.id)
    assert answer["usage"]["run_ids"] == [run["id"]]
    assert (run["status"], run["stop_reason"], run["conversation_id"]) == ("completed", "end_turn", None)
    assert (run["metadata"]["run_type"], run["background"]) == ("generate", False)
    whole = await read_whole(product.http, run["id"])
    whole.assert_complete()
    shown = [frame["message_type"] for frame in whole.frames]
    assert shown[1:4] == ["assistant_message", "stop_reason", "usage_statistics"]
    assert whole.of_type("assistant_message")[0]["content"] == answer["content"]
    [step] = (await product.http.get(f"/v1/runs/{run['id']}/steps")).json()
    assert (step["model_handle"], step["status"]) == ("openai/gpt-4o-mini", "success")
    assert step["total_tokens"] == answer["usage"]["total_tokens"]
    [question] = (await product.http.get(f"/v1/runs/{run['id']}/messages")).json()
    assert (question["message_type"], question["content"]) == ("user_message", "What is 2+2?")
    inject = {"messages": [{"role": "user", "content": "And this."}]}
    refused = await product.http.post(f"/v1/runs/{run['id']}/inject", json=inject)
    assert (refused.status_code, "asks a model one question" in refused.text) == (409, True)


async def test_a_client_chooses_the_instructions_and_the_model(product: Product) -> None:
    agent = await product.agent()

    answer = await generate(
        product, agent.id, prompt="Who?", system_prompt="Be terse.", override_model="anthropic/claude-haiku-4-5"
    )

    sent = product.models.requests[-1]
    assert (sent.wire, sent.model, answer["model"]) == ("anthropic", "claude-haiku-4-5", "claude-haiku-4-5")
    assert "Be terse." in str(sent.body["system"])
    assert broken_rules(sent) == []
    empty = await generate(product, agent.id, prompt="Who?", system_prompt="", override_model=None)
    assert (empty["content"], product.models.requests[-1].model) == ("OK.", "gpt-4o-mini")


@pytest.mark.parametrize("model", ONE_OF_EACH_WIRE)
async def test_a_schema_is_obeyed_on_every_wire(product: Product, model: str) -> None:
    agent = await product.agent(model=model)
    product.models.play(Turn(calls=[Call("structured_output", {"ok": False, "reason": "no"})]))

    answer = await generate(product, agent.id, prompt="May it?", response_schema=VERDICT)

    assert json.loads(answer["content"]) == {"ok": False, "reason": "no"}
    sent = product.models.requests[-1]
    assert broken_rules(sent) == []
    assert "structured_output" in str(sent.body["tools"])
    assert "Explanation for the decision" in str(sent.body["tools"])
    [run] = await runs_of(product, agent.id)
    whole = await read_whole(product.http, run["id"])
    assert [frame["content"] for frame in whole.of_type("assistant_message")] == [answer["content"]]
    assert whole.of_type("tool_call_message") == []


@pytest.mark.parametrize("text", ['{"ok": true}', 'Sure:\n```json\n{"ok": true}\n```\nDone.', '```\n{"ok": true}\n```'])
async def test_a_model_that_writes_the_object_as_text_is_understood(product: Product, text: str) -> None:
    agent = await product.agent(model="zai/glm-5")
    product.models.say(text)

    answer = await generate(product, agent.id, prompt="May it?", response_schema=VERDICT)

    assert json.loads(answer["content"]) == {"ok": True}


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        (Turn(calls=[Call("structured_output", {"ok": "yes"})]), "ok: 'yes' is not of type 'boolean'"),
        (Turn(calls=[Call("structured_output", {"reason": "so"})]), "'ok' is a required property"),
        (Turn(text="I would rather not."), "not valid JSON"),
        (Turn(text="[true]"), "must be a JSON object"),
        (Turn(text='{"ok": tr', finish="length"), "it was cut off: length"),
    ],
)
async def test_an_answer_that_does_not_fit_the_schema_is_an_error_that_says_why(
    product: Product, turn: Turn, said: str
) -> None:
    agent = await product.agent()
    product.models.play(turn)

    answer = await asked(product, agent.id, response_schema=VERDICT)

    assert (answer.status_code, answer.json()["code"]) == (500, "llm_error")
    assert answer.headers["x-should-retry"] == "false"
    assert "The model's answer does not fit response_schema" in answer.text
    assert said in json.dumps(answer.json(), ensure_ascii=False)
    [run] = await runs_of(product, agent.id)
    assert (run["status"], run["metadata"]["step_count"]) == ("failed", 1)
    assert run["metadata"]["prompt_tokens"] > 0, "the call was made, and counts"


@pytest.mark.parametrize("written", ["", "{}", " "])
async def test_a_call_without_arguments_is_an_object_where_nothing_is_required(product: Product, written: str) -> None:
    agent = await product.agent()
    product.models.play(Turn(calls=[Call("structured_output", written)]))

    answer = await generate(product, agent.id, prompt="Anything?", response_schema={"required": []})

    assert json.loads(answer["content"]) == {}


async def test_a_schema_that_names_no_required_properties_means_all_of_them(product: Product) -> None:
    agent = await product.agent()
    schema = {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    product.models.play(Turn(calls=[Call("structured_output", {"a": 1})]))

    answer = await asked(product, agent.id, response_schema=schema)

    assert (answer.status_code, "'b' is a required property" in answer.text) == (500, True)


@pytest.mark.parametrize("kind", ["rate_limit", "auth", "bad_request", "context", "server", "overloaded"])
async def test_a_provider_that_refuses_is_answered_as_to_a_message(product: Product, kind: Any) -> None:
    agent = await product.agent()
    product.models.play(Turn(failure=Failure(kind)), Turn(failure=Failure(kind)))

    sent = await product.http.post(f"/v1/agents/{agent.id}/messages", json={"input": "Hello"})
    answer = await asked(product, agent.id)

    assert answer.status_code == sent.status_code
    assert answer.headers["x-should-retry"] == "false"
    assert answer.json()["code"] == sent.json()["code"]
    assert "memory blocks" not in answer.text, "the agent's own have no part in it"
    assert [run["status"] for run in await runs_of(product, agent.id)] == ["failed", "failed"]
    assert (await product.client.agents.retrieve(agent.id)).last_stop_reason == "llm_api_error", "of the message"


async def test_what_cannot_be_asked_is_refused_and_makes_no_run(product: Product) -> None:
    agent = await product.agent()
    too_long = "x" * (product.context.settings.max_message_chars + 1)
    refused: list[tuple[dict[str, Any], int, str]] = [
        ({"prompt": ""}, 422, "prompt"),
        ({"prompt": "  \n\t "}, 422, "whitespace"),
        ({"prompt": None}, 422, "prompt"),
        ({"override_model": "invalid/model-that-does-not-exist"}, 404, "not found or not accessible"),
        ({"override_model": "gpt-4o"}, 404, "not found or not accessible"),
        ({"override_model": "letta/letta-free"}, 404, "served by Letta's own cloud"),
        ({"response_schema": {"type": "array", "items": {}}}, 422, "must describe an object"),
        ({"response_schema": {"properties": {"a": {"type": "colour"}}}}, 400, "response_schema is not valid"),
        ({"response_schema": {"properties": ["a"]}}, 400, "response_schema is not valid"),
        ({"response_schema": {"enum": list(range(3001))}}, 422, "response_schema"),
        ({"prompt": too_long}, 400, "HOLDFAST_MAX_MESSAGE_CHARS"),
        ({"system_prompt": too_long}, 400, "HOLDFAST_MAX_MESSAGE_CHARS"),
    ]
    for body, status, said in refused:
        answer = await asked(product, agent.id, **body)
        assert (answer.status_code, said in answer.text) == (status, True), f"{str(body)[:100]}: {answer.text[:500]}"
    unknown = agent.id.replace(agent.id[-4:], "0000")
    with pytest.raises(NotFoundError, match="not found"):
        await generate(product, unknown, prompt="Hello")
    assert await runs_of(product, agent.id) == []
    assert product.models.requests == []


@pytest.mark.parametrize("cancel", ["/v1/agents/{agent_id}/messages/cancel", "/v1/runs/{run_id}/cancel"])
async def test_a_question_that_is_cancelled_says_so_and_leaves_the_model(product: Product, cancel: str) -> None:
    agent, answers = await product.agent(), list[httpx.Response]()
    product.models.say("one two three", silent_after=2)

    async def ask() -> None:
        answers.append(await asked(product, agent.id))

    async with background(ask(), name="a question"):
        await wait_until(lambda: bool(product.models.requests), description="the model to be asked")
        [run] = await runs_of(product, agent.id)
        cancelled = await product.http.post(cancel.format(agent_id=agent.id, run_id=run["id"]), json={})
        assert cancelled.status_code == 200, cancelled.text
        [answer] = await wait_until(lambda: answers, description="the answer")

    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    assert f"run {run['id']} was cancelled" in answer.text
    assert product.models.requests[-1].client_left
    ended = await product.run(run["id"])
    assert (ended["status"], ended["metadata"]["prompt_tokens"] > 0) == ("cancelled", True)
    (await read_whole(product.http, run["id"])).assert_complete()
    assert [message["message_type"] for message in await product.history(agent.id)] == ["system_message"]


async def test_a_question_waits_neither_for_a_run_nor_for_a_person(product: Product) -> None:
    agent = await product.agent(tools=[await product.tool(ROLL_DICE, default_requires_approval=True)])
    product.models.play(Turn(text="one two", silent_after=1), Turn(text="Beside it."))
    running = await product.client.agents.messages.create_async(agent.id, input="count")
    await wait_until(lambda: len(product.models.requests) == 1, description="the run to ask its model")

    beside = await generate(product, agent.id, prompt="Hello?")
    assert (await product.run(running.id))["status"] == "running"
    await product.http.post(f"/v1/runs/{running.id}/cancel", json={})
    product.models.call("roll_dice", num_sides=6)
    parked = await product.client.agents.messages.create(agent.id, input="Roll.")
    product.models.say("Nobody is asked.")
    answer = await generate(product, agent.id, prompt="Hello?")

    assert (beside["content"], answer["content"]) == ("Beside it.", "Nobody is asked.")
    assert parked.stop_reason.stop_reason == "requires_approval"
    assert len((await product.http.get("/v1/approvals", params={"agent_id": agent.id})).json()) == 1
    assert (await product.client.agents.retrieve(agent.id)).last_stop_reason == "requires_approval"


async def test_the_offline_models_answer_too(product: Product) -> None:
    agent = await product.agent(model="builtin/echo")
    schema = {"properties": {**VERDICT["properties"], "of": {"enum": ["a", "b"]}, "list": {"type": "array"}}}

    plain = await generate(product, agent.id, prompt="Hello")
    fitting = await generate(product, agent.id, prompt="Hello", response_schema=schema)
    script = {"turns": [{"calls": [{"name": "structured_output", "arguments": {"ok": False}}]}]}
    scripted = await generate(
        product, agent.id, prompt=json.dumps(script), override_model="builtin/scripted", response_schema=VERDICT
    )

    assert (plain["content"], plain["model"]) == ("You said: Hello", "echo")
    said = "You said: Hello"
    assert json.loads(fitting["content"]) == {"ok": True, "reason": said, "of": "a", "list": [said]}
    assert (json.loads(scripted["content"]), scripted["model"]) == ({"ok": False}, "scripted")
    error = {"turns": [{"error": "rate_limit"}]}
    with pytest.raises(APIStatusError) as refused:
        await generate(product, agent.id, prompt=json.dumps(error), override_model="builtin/scripted")
    assert refused.value.status_code == 503


async def test_an_answer_that_was_cut_off_is_given_as_far_as_it_goes(product: Product) -> None:
    agent = await product.agent()
    product.models.play(Turn(text="one two", finish="length"))

    answer = await generate(product, agent.id, prompt="Count.")

    assert answer["content"] == "one two"
    [run] = await runs_of(product, agent.id)
    assert run["stop_reason"] == "max_tokens_exceeded"


async def test_a_settings_format_of_the_agent_gives_way_to_the_questions_schema(product: Product) -> None:
    agent = await product.agent(response_format={"type": "json_object"}, model_settings={"provider_type": "openai"})
    product.models.play(Turn(text='{"a": 1}'), Turn(calls=[Call("structured_output", {"ok": True})]))

    await generate(product, agent.id, prompt="As JSON.")
    await generate(product, agent.id, prompt="May it?", response_schema=VERDICT)

    plain, fitting = product.models.requests
    assert plain.body["response_format"] == {"type": "json_object"}
    assert "response_format" not in fitting.body
