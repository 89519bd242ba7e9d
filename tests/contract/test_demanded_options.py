"""An option that a run itself chose goes to the model, or is refused by its name before anything is sent."""

from typing import Any

import pytest
from msgspec.structs import replace

from shared.domain.errors import ModelError, ModelErrorType
from tests.kit.model_server.model_calls import (
    ADD,
    ANTHROPIC,
    CHAT,
    GOOGLE,
    RESPONSES,
    ask,
    call,
    models_on_server,
    text_said,
)
from worker.models.provider import ModelCall

SHAPE: dict[str, Any] = {
    "type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"], "additionalProperties": False,
}  # fmt: skip
SCHEMA: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SHAPE, "strict": True}}
ANY_JSON: dict[str, Any] = {"type": "json_object"}
OPUS = "anthropic/claude-opus-4-5"
OLDER_CLAUDE = "anthropic/claude-3-5-sonnet-20240620"
GEMINI_3 = "google_ai/gemini-3-pro-preview"

pytestmark = pytest.mark.filterwarnings("ignore:The model:DeprecationWarning")


def demanding(handle: str, name: str, value: Any, **options: Any) -> ModelCall:
    """A call of a run that chose this option itself."""
    tools = options.pop("tools", [ADD])
    return replace(call(handle, tools=tools, **{name: value}, **options), demanded=[name])


async def _sent(asked: ModelCall) -> dict[str, Any]:
    async with models_on_server() as (server, models):
        await ask(models, asked)
        return server.requests[0].body


def _at(body: dict[str, Any], path: str) -> Any:
    found: Any = body
    for name in path.split("."):
        found = found[name]
    return found


@pytest.mark.parametrize(
    ("handle", "name", "value", "path", "sent"),
    [
        (CHAT, "temperature", 0.5, "temperature", 0.5),
        (GOOGLE, "temperature", 0.5, "generationConfig.temperature", 0.5),
        ("openai/gpt-5-chat-latest", "temperature", 0.5, "temperature", 0.5),
        (OLDER_CLAUDE, "temperature", 0.5, "temperature", 0.5),
        (CHAT, "top_p", 0.5, "top_p", 0.5),
        (GOOGLE, "top_p", 0.5, "generationConfig.topP", 0.5),
        (OLDER_CLAUDE, "top_p", 0.5, "top_p", 0.5),
        (RESPONSES, "reasoning_effort", "low", "reasoning.effort", "low"),
        ("vllm/gpt-oss", "reasoning_effort", "low", "reasoning_effort", "low"),
        (OPUS, "reasoning_effort", "low", "output_config.effort", "low"),
        (GOOGLE, "reasoning_effort", "low", "generationConfig.thinkingConfig.thinking_budget", 2048),
        (GEMINI_3, "reasoning_effort", "low", "generationConfig.thinkingConfig.thinking_level", "LOW"),
        (RESPONSES, "verbosity", "low", "text.verbosity", "low"),
        (CHAT, "response_format", SCHEMA, "response_format", SCHEMA),
        (RESPONSES, "response_format", ANY_JSON, "text.format", ANY_JSON),
        (ANTHROPIC, "response_format", SCHEMA, "output_config.format", {"type": "json_schema", "schema": SHAPE}),
        (GEMINI_3, "response_format", SCHEMA, "generationConfig.responseJsonSchema.required", ["sum"]),
        (GEMINI_3, "response_format", ANY_JSON, "generationConfig.responseMimeType", "application/json"),
        (CHAT, "parallel_tool_calls", False, "parallel_tool_calls", False),
        (RESPONSES, "parallel_tool_calls", False, "parallel_tool_calls", False),
        (ANTHROPIC, "parallel_tool_calls", False, "tool_choice.disable_parallel_tool_use", True),
    ],
)
async def test_it_goes_to_the_model_that_takes_it(handle: str, name: str, value: Any, path: str, sent: Any) -> None:
    assert _at(await _sent(demanding(handle, name, value)), path) == sent


async def test_gemini_takes_a_format_without_tools() -> None:
    body = await _sent(demanding(GOOGLE, "response_format", SCHEMA, tools=[]))
    assert body["generationConfig"]["responseMimeType"] == "application/json"
    assert body["generationConfig"]["responseJsonSchema"]["properties"] == SHAPE["properties"]


@pytest.mark.parametrize(
    ("handle", "name", "value"),
    [
        (RESPONSES, "temperature", 0.5),
        ("openrouter/openai/o3", "temperature", 0.5),
        (ANTHROPIC, "temperature", 0.5),
        ("anthropic/claude-opus-4-7", "temperature", 0.5),
        (OLDER_CLAUDE, "temperature", 1.5),
        (RESPONSES, "top_p", 0.5),
        (ANTHROPIC, "top_p", 0.5),
        (CHAT, "reasoning_effort", "low"),
        (ANTHROPIC, "reasoning_effort", "low"),
        (GOOGLE, "reasoning_effort", "much"),
        ("google_ai/gemini-2.5-pro", "reasoning_effort", "none"),
        ("anthropic/claude-opus-5-5", "reasoning_effort", "none"),
        ("zai/glm-5.3", "reasoning_effort", "none"),
        (CHAT, "verbosity", "low"),
        (ANTHROPIC, "verbosity", "low"),
        (GOOGLE, "verbosity", "low"),
        (ANTHROPIC, "response_format", ANY_JSON),
        (OLDER_CLAUDE, "response_format", SCHEMA),
        (GOOGLE, "response_format", SCHEMA),
        (GEMINI_3, "response_format", {"type": "grammar"}),
        (GOOGLE, "parallel_tool_calls", False),
        ("openai/o3", "parallel_tool_calls", False),
        ("deepseek/deepseek-chat", "parallel_tool_calls", False),
    ],
)
async def test_it_is_refused_by_name_where_the_model_lacks_it(handle: str, name: str, value: Any) -> None:
    """The same option of a stored agent is left out, as before."""
    asked = demanding(handle, name, value, reasoning=value != "none")
    async with models_on_server() as (server, models):
        with pytest.raises(ModelError, match=f"^{name}: the model '{handle}' ") as caught:
            await ask(models, asked)
        assert (caught.value.error_type, caught.value.retryable) == (ModelErrorType.BAD_REQUEST, False)
        assert server.requests == []
        await ask(models, replace(asked, demanded=()))


@pytest.mark.parametrize(("name", "value"), [("reasoning_effort", "low"), ("verbosity", "low")])
async def test_the_built_in_models_refuse_what_they_cannot_do(name: str, value: str) -> None:
    async with models_on_server(builtin_models=True) as (_, models):
        with pytest.raises(ModelError, match=f"^{name}: the model 'builtin/echo' does not take it"):
            await ask(models, demanding("builtin/echo", name, value))


@pytest.mark.parametrize("handle", ["deepseek/deepseek-chat", "zai/glm-4.6", "anthropic/claude-opus-5-5"])
async def test_a_call_that_cannot_be_forced_is_refused(handle: str) -> None:
    forced = replace(call(handle, tools=[ADD]), must_call=True)
    async with models_on_server() as (server, models):
        with pytest.raises(ModelError, match=r"^tool_choice: .* cannot be made to call a tool"):
            await ask(models, replace(forced, demanded=["tool_choice"]))
        assert server.requests == []
        await ask(models, forced)


@pytest.mark.parametrize(
    ("handle", "name", "value"),
    [
        (GOOGLE, "response_format", {"type": "text"}),
        (ANTHROPIC, "response_format", {"type": "text"}),
        (CHAT, "reasoning_effort", "none"),
        ("zai/glm-4.6", "reasoning_effort", "none"),
        (ANTHROPIC, "reasoning_effort", "none"),
        (GOOGLE, "parallel_tool_calls", True),
        (RESPONSES, "temperature", None),
        (GOOGLE, "max_output_tokens", 100),
    ],
)
async def test_what_a_model_does_anyway_is_refused_nowhere(handle: str, name: str, value: Any) -> None:
    assert await _sent(demanding(handle, name, value, reasoning=value != "none"))


async def test_reasoning_that_is_demanded_off_goes_to_servers_of_openais_protocols_in_this_word() -> None:
    """An agent's stored `none` asks for the least that the model has, or says nothing."""
    on_chat = demanding("vllm/gpt-oss", "reasoning_effort", "none", reasoning=False)
    assert (await _sent(on_chat))["reasoning_effort"] == "none"
    assert "reasoning_effort" not in await _sent(replace(on_chat, demanded=()))
    switched = await _sent(demanding("zai/glm-4.6", "reasoning_effort", "none", reasoning=False))
    assert (switched["thinking"], "reasoning_effort" in switched) == ({"type": "disabled"}, False)
    demanded = demanding(RESPONSES, "reasoning_effort", "none", reasoning=False)
    assert (await _sent(demanded))["reasoning"]["effort"] == "none"
    assert (await _sent(replace(demanded, demanded=())))["reasoning"]["effort"] == "minimal"


async def test_of_two_ways_to_draw_tokens_claude_gets_the_one_that_the_run_chose() -> None:
    body = await _sent(demanding(ANTHROPIC, "top_p", 0.5, temperature=0.2, reasoning=False))
    assert (body["top_p"], "temperature" in body) == (0.5, False)
    both = call(ANTHROPIC, top_p=0.5, temperature=0.2, reasoning=False)
    async with models_on_server() as (_, models):
        with pytest.raises(ModelError, match=r"^top_p: .* takes either a temperature or top_p"):
            await ask(models, replace(both, demanded=["temperature", "top_p"]))


@pytest.mark.parametrize(("effort", "reasoning"), [("none", True), ("low", False)])
async def test_an_effort_that_contradicts_the_switch_of_reasoning_is_refused(effort: str, reasoning: bool) -> None:
    async with models_on_server() as (_, models):
        with pytest.raises(ModelError, match=r"^reasoning_effort: .* is asked with reasoning switched (on|off)"):
            await ask(models, demanding(OPUS, "reasoning_effort", effort, reasoning=reasoning))


async def test_an_effort_is_no_reason_to_leave_out_the_format() -> None:
    both = call(OPUS, reasoning_effort="low", response_format=SCHEMA)
    body = await _sent(replace(both, demanded=["reasoning_effort", "response_format"]))
    assert body["output_config"] == {"effort": "low", "format": {"type": "json_schema", "schema": SHAPE}}


@pytest.mark.parametrize("handle", [OPUS, GEMINI_3])
async def test_stored_efforts_and_geminis_stored_formats_are_left_out(handle: str) -> None:
    body = await _sent(call(handle, tools=[ADD], response_format=SCHEMA, reasoning_effort="low"))
    assert not any(word in str(body) for word in ("effort", "responseMimeType", "thinking_level"))


LIST: dict[str, Any] = {"type": "array", "items": SHAPE}
CLOSED: dict[str, Any] = SHAPE | {
    "properties": {"rows": LIST, "note": {"anyOf": [{"type": "string"}, {"type": "null"}]}}
}
UNFIT: list[dict[str, Any]] = [
    {name: value for name, value in SHAPE.items() if name != "additionalProperties"},
    SHAPE | {"additionalProperties": True},
    SHAPE | {"required": []},
    SHAPE | {"type": ["object", "null"], "additionalProperties": True},
    SHAPE | {"properties": {"sum": {"type": "integer", "minimum": 0}}},
    SHAPE | {"properties": {"sum": {"$ref": "#/$defs/sum"}}, "$defs": {"sum": {"type": "integer"}}},
    {"type": "array", "items": {"type": "object"}},
    SHAPE | {"properties": [{}], "required": [{}]},
]


async def test_a_stored_format_was_not_sent_to_claude_which_takes_it() -> None:
    for shape in (SHAPE, LIST, CLOSED | {"required": ["rows", "note"]}):
        chosen = {"type": "json_schema", "json_schema": {"name": "sum", "schema": shape}}
        body = await _sent(call(OPUS, tools=[ADD], response_format=chosen))
        assert body["output_config"] == {"format": {"type": "json_schema", "schema": shape}}


@pytest.mark.parametrize("shape", UNFIT)
async def test_a_stored_format_that_claude_would_refuse_is_left_out(shape: dict[str, Any]) -> None:
    chosen = {"type": "json_schema", "json_schema": {"name": "sum", "schema": shape}}
    assert "output_config" not in await _sent(call(OPUS, tools=[ADD], response_format=chosen))
    assert "output_config" in await _sent(demanding(OPUS, "response_format", chosen))


async def test_a_stored_format_is_left_out_where_claude_has_none_or_continues_its_answer() -> None:
    assert "output_config" not in await _sent(call(OLDER_CLAUDE, response_format=SCHEMA))
    assert "output_config" not in await _sent(replace(call(OPUS, response_format=SCHEMA), beginning="It"))
    assert "output_config" not in await _sent(call(OPUS, response_format=ANY_JSON))


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (SCHEMA, '{"sum":1}'),
        (ANY_JSON, '{"text":"You said: Hi."}'),
        ({"type": "text"}, "You said: Hi."),
    ],
)
async def test_the_built_in_models_answer_in_the_format(chosen: dict[str, Any], said: str) -> None:
    async with models_on_server(builtin_models=True) as (_, models):
        asked = replace(call("builtin/echo", "Hi.", response_format=chosen), demanded=["response_format"])
        assert text_said(await ask(models, asked)) == said


async def test_a_script_makes_one_call_where_several_are_forbidden() -> None:
    script = '{"turns": [{"calls": [{"name": "add"}, {"name": "add"}]}]}'
    async with models_on_server(builtin_models=True) as (_, models):
        for parallel, made in ((True, 2), (False, 1)):
            events = await ask(models, call("builtin/scripted", script, tools=[ADD], parallel_tool_calls=parallel))
            assert str(events).count("CallFinished") == made
