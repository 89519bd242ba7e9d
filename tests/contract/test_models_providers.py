"""Every provider of the table, on a local server: asked where its variables say, with its own key, as it wants it."""

import json
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from shared.domain.messages import (
    AssistantMessage,
    ImageContent,
    Message,
    Reasoning,
    Summary,
    TextContent,
    ToolCall,
    ToolReturn,
    ToolReturns,
    UserMessage,
)
from shared.domain.models import BUILTIN, CODE, PROVIDERS
from tests.kit.model_server import Call, ModelServer, Turn
from tests.kit.model_server.model_calls import (
    ADD,
    ask,
    call,
    calls_made,
    ending,
    history,
    models_on_server,
    returned,
    text_said,
    thoughts,
)
from tests.kit.model_server.server import ReceivedRequest
from tests.kit.provider_rules.request import broken_rules
from worker.models.registry import Models

REMOTE = tuple(name for name in PROVIDERS if name not in (BUILTIN, CODE))
CHAT = tuple(name for name in REMOTE if PROVIDERS[name].wire == "chat")

PATHS = {
    "chat": "/chat/completions",
    "anthropic": "/v1/messages",
    "google": "/v1beta/models/some-model:streamGenerateContent",
}


def _handle(provider: str) -> str:
    return f"{provider}/some-model"


async def _sent(provider: str, messages: str | list[Message] = "Hello?", **options: Any) -> dict[str, Any]:
    async with models_on_server() as (server, models):
        await ask(models, call(_handle(provider), messages, tools=[ADD], **options))
        return server.requests[0].body


def _key_of(request: ReceivedRequest) -> str | None:
    headers = request.headers
    bearer = headers.get("authorization", "").removeprefix("Bearer ")
    return headers.get("api-key") or headers.get("x-api-key") or headers.get("x-goog-api-key") or bearer


async def _round(server: ModelServer, models: Models, handle: str) -> list[Message]:
    """A question that leads to two calls, and what they came to."""
    calls = [Call("add", {"a": 1, "b": 2}), Call("add", {"a": 3, "b": 4})]
    server.play(Turn(reasoning="Hm.", text="Adding.", calls=calls))
    events = await ask(models, call(handle, tools=[ADD], max_output_tokens=4000))
    assert thoughts(events) == "Hm."
    made = calls_made(events)
    spoken = AssistantMessage(
        text="Adding.",
        reasoning=Reasoning("Hm."),
        tool_calls=[ToolCall(done.call_id, done.name, done.arguments) for done in made],
        model=handle,
        provider_response=ending(events).provider_response,
    )
    results = ToolReturns([returned(done.call_id, text) for done, text in zip(made, ("3", "7"), strict=True)])
    return history(UserMessage("Hello?"), spoken, results)


@pytest.mark.parametrize("provider", REMOTE)
async def test_a_whole_round_of_calls_and_results(provider: str) -> None:
    handle = _handle(provider)
    async with models_on_server() as (server, models):
        messages = await _round(server, models, handle)
        server.say("Ten.")
        answer = await ask(models, call(handle, messages, tools=[ADD], max_output_tokens=4000))
        assert text_said(answer) == "Ten."
        assert ending(answer).usage.cached_input_tokens == 3
        for request in server.requests:
            assert broken_rules(request) == []
            assert PATHS[PROVIDERS[provider].wire] in request.path
        expected = PROVIDERS[provider].key(server.base_urls()) or "none"
        assert {_key_of(request) for request in server.requests} == {expected}


@pytest.mark.parametrize("provider", CHAT)
async def test_the_limit_of_an_answer_has_the_name_that_the_server_knows(provider: str) -> None:
    body = await _sent(provider, max_output_tokens=4000)
    known = PROVIDERS[provider].quirks.limit_field
    [other] = {"max_tokens", "max_completion_tokens"} - {known}
    assert body[known] == 4000
    assert other not in body


@pytest.mark.parametrize("provider", CHAT)
async def test_no_server_is_sent_a_field_that_it_does_not_know(provider: str) -> None:
    quirks = PROVIDERS[provider].quirks
    body = await _sent(provider, parallel_tool_calls=False, temperature=0.3)
    assert ("parallel_tool_calls" in body) is quirks.takes_parallel_tool_calls
    assert ("stream_options" in body) is quirks.takes_stream_options
    assert ("thinking" in body) is quirks.has_thinking_switch
    assert body["temperature"] == 0.3
    assert "prompt_cache_key" not in body, "OpenAI's own"


@pytest.mark.parametrize("provider", CHAT)
async def test_earlier_reasoning_goes_back_where_the_server_takes_it(provider: str) -> None:
    async with models_on_server() as (server, models):
        messages = await _round(server, models, _handle(provider))
        await ask(models, call(_handle(provider), messages, tools=[ADD]))
        [spoken] = [one for one in server.requests[1].body["messages"] if one["role"] == "assistant"]
    takes_it = PROVIDERS[provider].quirks.reasoning_goes_back != "never"
    assert spoken.get("reasoning_content") == ("Hm." if takes_it else None)
    assert spoken["content"] == "Adding."


async def test_deepseek_wants_the_reasoning_of_every_answer_with_calls() -> None:
    """Also of one that another model gave, or that came without any: it refuses the request else."""
    spoken = AssistantMessage(tool_calls=[ToolCall("one", "add", '{"a": 1, "b": 2}')], model="openai/gpt-4o")
    body = await _sent("deepseek", history(UserMessage("?"), spoken, ToolReturns([returned("one", "3")])))
    assert body["messages"][2]["reasoning_content"] == ""


@pytest.mark.parametrize("reasoning", [True, False])
async def test_zai_is_told_to_think_or_not_to(reasoning: bool) -> None:
    body = await _sent("zai", reasoning=reasoning)
    assert body["thinking"] == {"type": "enabled" if reasoning else "disabled"}


@pytest.mark.parametrize("provider", CHAT)
async def test_servers_that_refuse_forced_calls_were_asked_for_them(provider: str) -> None:
    """The request was a 400 there, so no agent with a rule for its first call could run."""
    async with models_on_server() as (server, models):
        await ask(models, replace(call(_handle(provider), tools=[ADD]), must_call=True))
        body = server.requests[0].body
    takes_them = provider not in ("deepseek", "zai")
    assert body["tool_choice"] == ("required" if takes_them else "auto")


async def test_mistral_takes_ids_of_nine_letters_and_digits_only() -> None:
    spoken = AssistantMessage(tool_calls=[ToolCall("call_123456789", "add", '{"a": 1, "b": 2}')], model="openai/gpt-4o")
    messages = history(UserMessage("?"), spoken, ToolReturns([returned("call_123456789", "3")]))
    body = await _sent("mistral", messages)
    called, result = body["messages"][2]["tool_calls"][0]["id"], body["messages"][3]["tool_call_id"]
    assert called == result
    assert called.isalnum()
    assert len(called) == 9


async def test_minimax_takes_no_temperature_of_zero() -> None:
    assert (await _sent("minimax", temperature=0.0, reasoning=False))["temperature"] == 0.01


async def test_deepseeks_own_count_of_cached_tokens_is_read() -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 2,
        "total_tokens": 102,
        "prompt_cache_hit_tokens": 64,
        "prompt_cache_miss_tokens": 36,
    }
    chunks: tuple[dict[str, Any], ...] = (
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hi."}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage},
    )
    raw = tuple(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks)
    async with models_on_server() as (server, models):
        server.play(Turn(raw=(*raw, b"data: [DONE]\n\n")))
        found = ending(await ask(models, call("deepseek/deepseek-chat"))).usage
    assert (found.prompt_tokens, found.cached_input_tokens) == (100, 64)


@pytest.mark.parametrize(
    ("variables", "path"),
    [
        ({"AZURE_BASE_URL": ""}, "/openai/deployments/some-model/chat/completions?api-version=2025-04-01-preview"),
        (
            {"AZURE_BASE_URL": "/openai", "AZURE_API_VERSION": "2024-10-21"},
            "/openai/deployments/some-model/chat/completions?api-version=2024-10-21",
        ),
        ({"AZURE_BASE_URL": "/openai/v1"}, "/openai/v1/chat/completions"),
        ({"AZURE_BASE_URL": "/openai/v1/", "AZURE_API_VERSION": "2024-10-21"}, "/openai/v1/chat/completions"),
    ],
)
async def test_azures_addresses_old_and_new(variables: Mapping[str, str], path: str) -> None:
    async with ModelServer() as server:
        address = server.origin + variables["AZURE_BASE_URL"]
        environment = {**variables, "AZURE_BASE_URL": address, "AZURE_API_KEY": "azure-key"}
        models = Models(environment, first_event_timeout=180, idle_timeout=180, retries=0)
        await ask(models, call("azure/some-model"))
        await models.aclose()
        assert server.requests[0].path == path
        assert _key_of(server.requests[0]) == "azure-key"


async def test_full_collections_looked_through_all_that_a_worker_had_imported() -> None:
    """They held up every stream for a fifth of a second. A worker puts aside what is there when an SDK has come."""
    there: list[bool] = []

    @contextmanager
    def importing() -> Generator[None]:
        yield
        there.append("worker.models.google_wire" in sys.modules)

    async with models_on_server(importing=importing) as (_, models):
        await models.model_for(_handle("google_ai"))
        await models.model_for(_handle("google_ai"))
    assert there == [True]


async def test_mistral_refused_each_request_for_a_field_that_was_null() -> None:
    """Its API takes no field that it does not know, whatever is in it."""
    assert "stream_options" not in await _sent("mistral")


WITH_RESULT = (
    UserMessage("Add."),
    AssistantMessage(tool_calls=[ToolCall("one", "add", '{"a": 1, "b": 2}')]),
    ToolReturns([returned("one", "3")]),
)
PICTURE = ImageContent(
    data="iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
OF_MISTRAL = (
    "mistral/mistral-large-latest",
    "mistral/labs-anything",
    "vllm/mistralai/Mistral-Small-4-119B-2603",
    "openrouter/mistralai/devstral-medium",
    "ollama/devstral:24b",
)


async def _roles(handle: str, messages: list[Message]) -> list[str]:
    async with models_on_server() as (server, models):
        await ask(models, call(handle, messages, tools=[ADD]))
        [request] = server.requests
    assert broken_rules(request) == []
    return [message["role"] for message in request.body["messages"]]


@pytest.mark.parametrize("handle", OF_MISTRAL)
async def test_mistral_refuses_a_user_who_speaks_right_behind_a_result(handle: str) -> None:
    """A message that was injected between two steps, or a picture in a result, ended the conversation."""
    roles = ["system", "user", "assistant", "tool", "assistant", "user"]
    assert await _roles(handle, history(*WITH_RESULT, UserMessage("Faster!"))) == roles
    shown = ToolReturns([ToolReturn("one", "add", "success", "3", parts=[TextContent("3"), PICTURE])])
    assert await _roles(handle, history(*WITH_RESULT[:2], shown)) == roles


async def test_no_other_model_is_told_that_it_has_answered() -> None:
    for handle in ("openai/gpt-4o", "vllm/Qwen/Qwen3-8B"):
        assert (await _roles(handle, history(*WITH_RESULT, UserMessage("Faster!"))))[-2:] == ["tool", "user"]


TEMPLATED = (
    "vllm/google/gemma-3-27b-it",
    "ollama/gemma3",
    "openrouter/mistralai/ministral-8b",
    "together/meta-llama/L",
)


@pytest.mark.parametrize("handle", TEMPLATED)
async def test_two_messages_of_the_user_in_a_row_were_refused_by_models_whose_turns_alternate(handle: str) -> None:
    """So was each request behind a compaction: a summary and the question."""
    after = history(Summary("They spoke of cats."), UserMessage("And dogs?"), UserMessage("Be quick.", role="system"))
    assert await _roles(handle, after) == ["system", "user"]
    pictures = history(UserMessage([TextContent("Look."), PICTURE]), UserMessage("Well?"), AssistantMessage(text="Ah."))
    assert await _roles(handle, pictures) == ["system", "user", "assistant", "user"]


async def test_messages_of_the_user_that_are_put_together_keep_their_words_and_pictures() -> None:
    body = await _sent("vllm", history(UserMessage("First."), UserMessage("Second.")))
    assert body["messages"][-1] == {"role": "user", "content": "First.\n\nSecond."}
    body = await _sent("vllm", history(UserMessage("First."), UserMessage([TextContent("Look."), PICTURE])))
    kinds = [part["type"] for part in body["messages"][-1]["content"]]
    assert kinds == ["text", "text", "image_url"]


@pytest.mark.parametrize("key", ["test-key-1\n", " test-key-1\r\n", "test-key-1 "])
@pytest.mark.parametrize("provider", ["openai", "anthropic", "google_ai", "azure"])
async def test_a_key_that_ended_in_a_line_break_was_a_connection_error(provider: str, key: str) -> None:
    """Files and stores of secrets put one behind it."""
    async with ModelServer() as server:
        variable = PROVIDERS[provider].addresses[0].key_variables[0]
        environment = {**server.base_urls(), "AZURE_BASE_URL": f"{server.origin}/openai/v1", variable: key}
        models = Models(environment, first_event_timeout=180, idle_timeout=180, retries=0)
        await ask(models, call(_handle(provider)))
        await models.aclose()
        assert _key_of(server.requests[0]) == "test-key-1"
