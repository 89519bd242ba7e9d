"""How a model is asked: reasoning where it has it, and no option that it would refuse."""

from collections.abc import Sequence
from typing import Any

import pytest

from shared.domain.errors import ModelError, ModelErrorType
from tests.kit.model_server.model_calls import (
    ADD,
    ANTHROPIC,
    CHAT,
    GOOGLE,
    HANDLES,
    RESPONSES,
    ask,
    call,
    models_on_server,
)
from worker.models.provider import ToolSpec


async def _sent(handle: str, *, tools: Sequence[ToolSpec] = (ADD,), **options: Any) -> dict[str, Any]:
    """The body of a request with these options."""
    async with models_on_server() as (server, models):
        await ask(models, call(handle, tools=tools, **options))
        return server.requests[0].body


async def test_reasoning_is_asked_for_where_the_model_has_it() -> None:
    body = await _sent(RESPONSES)
    assert body["reasoning"] == {"summary": "auto"}
    assert body["include"] == ["reasoning.encrypted_content"]
    assert body["store"] is False
    assert (await _sent(ANTHROPIC))["thinking"] == {"type": "enabled", "budget_tokens": 8192}
    assert (await _sent(GOOGLE))["generationConfig"]["thinkingConfig"] == {"include_thoughts": True}
    assert "reasoning_effort" not in await _sent(CHAT)


async def test_reasoning_can_be_switched_off() -> None:
    assert (await _sent(RESPONSES, reasoning=False))["reasoning"] == {"effort": "minimal"}
    assert "thinking" not in await _sent(ANTHROPIC, reasoning=False)
    assert (await _sent(GOOGLE, reasoning=False))["generationConfig"]["thinkingConfig"] == {"thinking_budget": 0}


@pytest.mark.parametrize(
    "handle",
    ["anthropic/claude-3-5-sonnet-20240620", "anthropic/claude-3-opus-latest", "google_ai/gemini-2.0-flash",
     "openai/gpt-5-chat-latest", "openai/gpt-4.1"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:The model:DeprecationWarning")
async def test_models_without_reasoning_are_not_asked_for_it(handle: str) -> None:
    body = await _sent(handle)
    assert "thinking" not in body
    assert "reasoning" not in body
    assert "thinkingConfig" not in body.get("generationConfig", {})


async def test_an_adaptive_model_is_asked_adaptively() -> None:
    body = await _sent("anthropic/claude-opus-4-7", temperature=0.3)
    assert body["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert "temperature" not in body


@pytest.mark.parametrize(
    ("options", "budget"),
    [
        ({"max_output_tokens": 4096}, 3072),
        ({"max_output_tokens": 2048}, 1024),
        ({"max_output_tokens": 2047}, None),
        ({"max_reasoning_tokens": 2000}, 2000),
        ({"max_reasoning_tokens": 10}, 1024),
        ({"max_reasoning_tokens": 50_000}, 15_360),
    ],
)
async def test_thinking_leaves_room_for_the_answer(options: dict[str, Any], budget: int | None) -> None:
    body = await _sent(ANTHROPIC, **options)
    assert body.get("thinking", {}).get("budget_tokens") == budget


@pytest.mark.parametrize("handle", HANDLES)
async def test_temperature_is_left_out_where_reasoning_refuses_it(handle: str) -> None:
    body = await _sent(handle, temperature=0.3)
    sent = body.get("generationConfig", body).get("temperature")
    assert sent == (0.3 if handle in (CHAT, GOOGLE) else None)


async def test_temperature_is_sent_to_a_model_that_does_not_think() -> None:
    assert (await _sent(ANTHROPIC, temperature=0.3, reasoning=False))["temperature"] == 0.3
    assert "temperature" not in await _sent("openrouter/openai/o3", temperature=0.3)


@pytest.mark.parametrize("handle", [*HANDLES, "vllm/qwen3", "openrouter/openai/o3", "anthropic/claude-opus-4-7"])
async def test_top_p_goes_where_the_temperature_goes(handle: str) -> None:
    body = await _sent(handle, top_p=0.8, temperature=0.3)
    sent = body.get("generationConfig", body)
    assert sent.get("top_p", sent.get("topP")) == (0.8 if "temperature" in sent else None)


async def test_a_model_without_reasoning_on_responses_is_sent_both() -> None:
    body = await _sent("openai/gpt-5-chat-latest", top_p=0.8, temperature=0.3)
    assert (body["temperature"], body["top_p"]) == (0.3, 0.8)


async def test_claude_refuses_temperature_and_top_p_together() -> None:
    assert (await _sent(ANTHROPIC, top_p=0.8, reasoning=False))["top_p"] == 0.8
    both = await _sent(ANTHROPIC, top_p=0.8, temperature=0.3, reasoning=False)
    assert both["temperature"] == 0.3
    assert "top_p" not in both


@pytest.mark.parametrize("parallel", [True, False])
async def test_parallel_calls_are_allowed_or_not(parallel: bool) -> None:
    assert (await _sent(CHAT, parallel_tool_calls=parallel))["parallel_tool_calls"] is parallel
    assert (await _sent(RESPONSES, parallel_tool_calls=parallel))["parallel_tool_calls"] is parallel
    choice = (await _sent(ANTHROPIC, parallel_tool_calls=parallel))["tool_choice"]
    assert choice["disable_parallel_tool_use"] is not parallel


async def test_the_limit_of_an_answer_has_each_wires_name() -> None:
    assert (await _sent(CHAT, max_output_tokens=5000))["max_completion_tokens"] == 5000
    assert (await _sent(RESPONSES, max_output_tokens=5000))["max_output_tokens"] == 5000
    assert (await _sent(ANTHROPIC, max_output_tokens=5000))["max_tokens"] == 5000
    assert (await _sent(GOOGLE, max_output_tokens=5000))["generationConfig"]["maxOutputTokens"] == 5000
    assert (await _sent(ANTHROPIC))["max_tokens"] == 16_384


SHAPE = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SHAPE, "strict": True}}


async def test_a_response_format_was_dropped_on_the_way_to_models_on_responses() -> None:
    assert (await _sent(CHAT, response_format=SCHEMA))["response_format"] == SCHEMA
    text = (await _sent(RESPONSES, response_format=SCHEMA))["text"]
    assert text == {"format": {"type": "json_schema", "name": "sum", "schema": SHAPE, "strict": True}}
    nameless = {"type": "json_schema", "json_schema": {"schema": SHAPE}}
    text = (await _sent("openai/o3", response_format=nameless))["text"]
    assert text == {"format": {"type": "json_schema", "name": "answer", "schema": SHAPE}}


async def test_any_json_and_plain_text_as_formats() -> None:
    whatever = {"type": "json_object"}
    assert (await _sent(RESPONSES, response_format=whatever))["text"] == {"format": whatever}
    assert (await _sent(CHAT, response_format=whatever))["response_format"] == whatever
    for handle in (CHAT, RESPONSES):
        body = await _sent(handle, response_format={"type": "text"})
        assert "response_format" not in body
        assert "text" not in body


async def test_verbosity_reaches_the_models_that_have_it() -> None:
    assert (await _sent(RESPONSES, verbosity="low"))["text"] == {"verbosity": "low"}
    both = (await _sent(RESPONSES, verbosity="high", response_format={"type": "json_object"}))["text"]
    assert both == {"format": {"type": "json_object"}, "verbosity": "high"}
    assert (await _sent("azure/gpt-5-mini", verbosity="low"))["verbosity"] == "low"
    assert "text" not in await _sent("openai/o3", verbosity="low")
    assert "verbosity" not in await _sent(CHAT, verbosity="low")


@pytest.mark.parametrize(
    ("handle", "limit"), [("anthropic/claude-3-5-haiku-20241022", 8192), ("anthropic/claude-3-haiku-20240307", 4096)]
)
@pytest.mark.filterwarnings("ignore:The model:DeprecationWarning")
async def test_a_small_models_answer_was_given_a_limit_that_it_refuses(handle: str, limit: int) -> None:
    assert (await _sent(handle))["max_tokens"] == limit


@pytest.mark.parametrize("model", ["gpt-6.2-sol", "gpt-6.2-astra", "gpt-6-luna", "gpt-7"])
async def test_openais_newest_models_were_asked_like_models_that_do_not_reason(model: str) -> None:
    """Over Chat Completions, which refuses their tools, or with a temperature, which they refuse."""
    body = await _sent(f"openai/{model}", temperature=0.3, verbosity="low", reasoning_effort="max")
    assert (body["reasoning"]["effort"], body["reasoning"]["summary"]) == ("max", "auto")
    assert body["include"] == ["reasoning.encrypted_content"]
    assert body["text"] == {"verbosity": "low"}
    assert "temperature" not in body


@pytest.mark.parametrize(
    ("model", "least"), [("gpt-6.2-sol", "low"), ("gpt-6.1-sol", "low"), ("gpt-6-luna", "none"), ("gpt-7", "low")]
)
async def test_openais_newest_models_are_asked_to_reason_as_little_as_they_can(model: str, least: str) -> None:
    body = await _sent(f"openai/{model}", temperature=0.3, reasoning=False)
    assert (body["reasoning"]["effort"], "temperature" in body) == (least, False)


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max"])
async def test_each_effort_of_openai_is_passed_on(effort: str) -> None:
    assert (await _sent("openai/gpt-6.2-sol", reasoning_effort=effort))["reasoning"]["effort"] == effort


@pytest.mark.parametrize(
    ("model", "budget"), [("gemini-2.5-flash", 500), ("gemini-3.8-flash", 500), ("gemini-4-argon", None)]
)
async def test_gemini_4_was_given_a_number_of_tokens_for_thinking_which_it_refuses(
    model: str, budget: int | None
) -> None:
    thinking = (await _sent(f"google_ai/{model}", max_reasoning_tokens=500))["generationConfig"]["thinkingConfig"]
    assert (thinking["include_thoughts"], thinking.get("thinking_budget")) == (True, budget)


@pytest.mark.parametrize("model", ["gemini-3.8-flash", "gemini-4-argon"])
async def test_newer_geminis_are_told_a_level_that_they_have(model: str) -> None:
    """These have no `MINIMAL`."""
    config = (await _sent(f"google_ai/{model}", reasoning=False))["generationConfig"]
    assert config["thinkingConfig"] == {"thinking_level": "LOW"}


async def test_glm_was_asked_not_to_reason_which_it_no_longer_takes() -> None:
    assert (await _sent("zai/glm-5.2", reasoning=False))["thinking"] == {"type": "disabled"}
    assert (await _sent("zai/glm-5.3", reasoning=False))["thinking"] == {"type": "enabled"}


async def test_deepseek_reasoned_although_the_agent_does_not() -> None:
    assert (await _sent("deepseek/deepseek-flash", reasoning=False))["thinking"] == {"type": "disabled"}
    assert (await _sent("deepseek/deepseek-flash"))["thinking"] == {"type": "enabled"}


async def test_a_call_that_no_other_follows_pays_for_no_cache() -> None:
    """A summary's, for example: what goes into a cache costs more than what does not."""
    for handle in HANDLES:
        body = str(await _sent(handle))
        assert "cache_control" not in body
        assert "prompt_cache_key" not in body


async def test_effort_is_passed_on() -> None:
    assert (await _sent(RESPONSES, reasoning_effort="high"))["reasoning"] == {"effort": "high", "summary": "auto"}
    assert (await _sent("vllm/gpt-oss", reasoning_effort="low"))["reasoning_effort"] == "low"
    assert "reasoning_effort" not in await _sent(CHAT, reasoning_effort="low")


@pytest.mark.parametrize("handle", HANDLES)
async def test_instructions_and_tools_are_told(handle: str) -> None:
    body = await _sent(handle)
    assert "Be kind." in str(body)
    assert "Add two numbers." in str(body)


async def test_the_call_header_never_leaves_the_process() -> None:
    async with models_on_server() as (server, models):
        for handle in HANDLES:
            await ask(models, call(handle))
        assert not any(name.startswith("x-holdfast") for request in server.requests for name in request.headers)


async def test_a_handle_that_leads_nowhere() -> None:
    async with models_on_server() as (_server, models):
        with pytest.raises(ModelError, match="unknown model handle") as caught:
            await ask(models, call("nobody/m"))
    assert caught.value.error_type == ModelErrorType.BAD_REQUEST


LOOSE = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED = {**LOOSE, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize("strict", [None, True, False])
@pytest.mark.parametrize("schema", [LOOSE, CLOSED])
async def test_a_tool_says_itself_whether_the_model_is_held_to_its_schema(
    strict: bool | None, schema: dict[str, Any]
) -> None:
    tool = ToolSpec("clients", "The client's.", schema, strict)
    unsaid = True if schema is CLOSED else None
    on_chat = (await _sent(CHAT, tools=[tool]))["tools"][0]["function"]
    assert on_chat.get("strict") is (unsaid if strict is None else strict)
    on_responses = (await _sent(RESPONSES, tools=[tool]))["tools"][0]
    assert on_responses["strict"] is bool(unsaid if strict is None else strict)
    inlining = (await _sent("groq/qwen/qwen3-32b", tools=[tool]))["tools"][0]["function"]
    assert inlining["strict"] is (strict is not False)
    for handle in (ANTHROPIC, GOOGLE):
        assert "strict" not in str(await _sent(handle, tools=[tool]))
