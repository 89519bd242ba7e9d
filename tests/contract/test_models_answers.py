"""An answer comes out the same, whichever provider gave it."""

import json
from typing import Any

import pytest

from shared.domain.messages import AssistantMessage, Reasoning, ToolCall, ToolReturns, UserMessage
from tests.kit.model_server import Call, Turn
from tests.kit.model_server.frames import data
from tests.kit.model_server.model_calls import (
    ADD,
    ANTHROPIC,
    CHAT,
    GOOGLE,
    HANDLES,
    RESPONSES,
    THEN,
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
from worker.models.provider import CallArguments, CallFinished, CallStarted, ModelEvent, Thought


@pytest.mark.parametrize("handle", HANDLES)
async def test_text_comes_word_by_word_and_ends_with_its_usage(handle: str) -> None:
    async with models_on_server() as (server, models):
        server.say("One two three.")
        events = await ask(models, call(handle))
    assert text_said(events) == "One two three."
    assert len(events) == 4, "three words and the end"
    end = ending(events)
    assert end.reason == "stop"
    prompt = 14 if handle == ANTHROPIC else 11
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (prompt, 3)
    assert end.usage.cached_input_tokens == 3
    assert end.usage.context_tokens == prompt + 3
    assert not end.usage.estimated


@pytest.mark.parametrize("handle", HANDLES)
async def test_parallel_calls_are_told_apart(handle: str) -> None:
    async with models_on_server() as (server, models):
        server.play(Turn(text="Adding.", calls=[Call("add", {"a": 1, "b": 2}), Call("add", {"a": 3, "b": 4})]))
        events = await ask(models, call(handle, tools=[ADD]))
    calls = calls_made(events)
    assert [(made.index, made.name, json.loads(made.arguments)) for made in calls] == [
        (0, "add", {"a": 1, "b": 2}),
        (1, "add", {"a": 3, "b": 4}),
    ]
    assert len({made.call_id for made in calls}) == 2
    for made in calls:
        assert CallStarted(made.index, made.call_id, "add", has_arguments=handle.startswith("google_ai/")) in events
        assert _streamed_arguments(events, made.index) == made.arguments
    assert ending(events).reason == "tool_calls"


@pytest.mark.parametrize("handle", HANDLES)
async def test_a_call_without_arguments_has_an_empty_object(handle: str) -> None:
    async with models_on_server() as (server, models):
        server.play(Turn(calls=[Call("add")]))
        events = await ask(models, call(handle, tools=[ADD]))
    assert calls_made(events)[0].arguments == "{}"


@pytest.mark.parametrize("handle", [CHAT, RESPONSES, ANTHROPIC])
async def test_arguments_are_handed_on_as_the_model_wrote_them(handle: str) -> None:
    """Whoever runs the tool says what is wrong with them. (Gemini has no arguments as text.)"""
    async with models_on_server() as (server, models):
        server.play(Turn(calls=[Call("add", '{"a": 1, oops')]))
        events = await ask(models, call(handle, tools=[ADD]))
    assert calls_made(events)[0].arguments == '{"a": 1, oops'


async def test_calls_whose_arguments_come_in_turns_are_whole_in_the_end() -> None:
    """Some compatible servers write parallel calls at the same time: the last `CallFinished` of an index counts."""

    def chunk(index: int, arguments: str, **begin: Any) -> bytes:
        written = {"index": index, **begin, "function": {"name": "add" if begin else None, "arguments": arguments}}
        return data({"choices": [{"index": 0, "delta": {"tool_calls": [written]}, "finish_reason": None}]})

    chunks = (
        chunk(0, '{"a":', id="one"),
        chunk(1, '{"a":', id="two"),
        chunk(0, "1}"),
        chunk(1, "2}"),
        data({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
        b"data: [DONE]\n\n",
    )
    async with models_on_server() as (server, models):
        server.play(Turn(raw=chunks))
        events = await ask(models, call("vllm/m", tools=[ADD]))
    last = {event.index: event for event in events if isinstance(event, CallFinished)}
    assert {index: (event.call_id, event.arguments) for index, event in last.items()} == {
        0: ("one", '{"a":1}'),
        1: ("two", '{"a":2}'),
    }
    assert [_streamed_arguments(events, index) for index in (0, 1)] == ['{"a":1}', '{"a":2}']


@pytest.mark.parametrize("handle", HANDLES)
async def test_reasoning_is_shown_and_told_apart_from_text(handle: str) -> None:
    async with models_on_server() as (server, models):
        server.say("Four.", reasoning="Two and two.")
        events = await ask(models, call(handle))
    assert thoughts(events) == "Two and two."
    assert text_said(events) == "Four."
    if handle in (ANTHROPIC, RESPONSES):
        assert Thought("", "c2lnbmVkLWJ5LXRoZS1zZXJ2ZXI=") in events
    if handle != ANTHROPIC:
        assert ending(events).usage.reasoning_tokens == 3


@pytest.mark.parametrize("handle", HANDLES)
async def test_an_answer_at_the_limit_says_length(handle: str) -> None:
    async with models_on_server() as (server, models):
        server.say("And then", finish="length")
        events = await ask(models, call(handle, max_output_tokens=2048))
    assert text_said(events) == "And then"
    assert ending(events).reason == "length"


@pytest.mark.parametrize("handle", HANDLES)
async def test_a_refused_answer_says_content_filter(handle: str) -> None:
    async with models_on_server() as (server, models):
        server.say("I cannot", finish="content_filter")
        events = await ask(models, call(handle))
    assert ending(events).reason == "content_filter"


@pytest.mark.parametrize("handle", [ANTHROPIC, CHAT])
async def test_a_server_that_reports_less_than_no_tokens_gives_a_budget_none_back(handle: str) -> None:
    async with models_on_server() as (server, models):
        server.play(Turn(text="One two three.", prompt_tokens=-1, cached_tokens=-1, written_tokens=-1))
        usage = ending(await ask(models, call(handle))).usage
    assert min(usage.prompt_tokens, usage.completion_tokens, usage.context_tokens) > 0
    assert min(usage.cached_input_tokens, usage.cache_write_tokens, usage.reasoning_tokens) == 0


async def test_usage_is_estimated_where_a_server_reports_none() -> None:
    async with models_on_server() as (server, models):
        server.say("Twelve chars", usage=False)
        events = await ask(models, call("vllm/any-model", "x" * 400, system=""))
    usage = ending(events).usage
    assert usage.estimated
    assert (usage.prompt_tokens, usage.completion_tokens) == (100, 3)


@pytest.mark.parametrize(
    "handle",
    [
        "ollama/qwen3:8b",
        "vllm/org/model",
        "lmstudio/m",
        "openrouter/meta-llama/llama-3",
        "openai_compatible/m",
        "openai-proxy/m",
    ],
)
async def test_every_compatible_server_is_asked_over_chat(handle: str) -> None:
    async with models_on_server() as (server, models):
        server.say("Yes.")
        assert text_said(await ask(models, call(handle))) == "Yes."
        assert server.requests[0].wire == "chat"
        assert server.requests[0].model == handle.partition("/")[2]


@pytest.mark.parametrize("handle", ["openai/gpt-5-mini", "openai/o3", "openai/o4-mini", "openai/o1"])
async def test_openai_reasoning_models_are_asked_over_responses(handle: str) -> None:
    async with models_on_server() as (server, models):
        server.say("Yes.")
        await ask(models, call(handle))
        assert server.requests[0].wire == "responses"


async def test_an_answer_given_by_gemini_under_its_other_name() -> None:
    async with models_on_server() as (server, models):
        server.say("Yes.")
        assert text_said(await ask(models, call("gemini/gemini-2.5-flash"))) == "Yes."


@pytest.mark.parametrize("handle", HANDLES)
async def test_results_go_back_in_the_order_of_the_calls(handle: str) -> None:
    """A whole round: question, reasoning with two calls, their results, and the answer."""
    async with models_on_server() as (server, models):
        server.play(
            Turn(reasoning="Hm.", text="Adding.", calls=[Call("add", {"a": 1, "b": 2}), Call("add", {"a": 3, "b": 4})])
        )
        server.say("Ten.")
        first = await ask(models, call(handle, tools=[ADD]))
        made = calls_made(first)
        spoken = AssistantMessage(
            text="Adding.",
            reasoning=Reasoning("Hm."),
            tool_calls=[ToolCall(done.call_id, done.name, done.arguments) for done in made],
            model=handle,
            provider_response=ending(first).provider_response,
        )
        results = ToolReturns([returned(made[1].call_id, "7"), returned(made[0].call_id, "3", failed=True)])
        second = await ask(models, call(handle, history(UserMessage("?"), spoken, results), tools=[ADD]))
        assert text_said(second) == "Ten."
        body = server.requests[1].body
    envelopes = _result_envelopes(handle, body)
    assert envelopes == [
        {"status": "Failed", "message": "3", "time": THEN.isoformat()},
        {"status": "OK", "message": "7", "time": THEN.isoformat()},
    ]
    if handle != CHAT:
        assert "c2lnbmVkLWJ5LXRoZS1zZXJ2ZXI=" in json.dumps(body), "the signature goes back unchanged"
    if handle == RESPONSES:
        assert "rs_0001" in json.dumps(body)


def _streamed_arguments(events: list[ModelEvent], index: int) -> str:
    return "".join(event.text for event in events if isinstance(event, CallArguments) and event.index == index)


def _result_envelopes(handle: str, body: dict[str, Any]) -> list[dict[str, str]]:
    """The tool results as the model reads them, from each wire's own place."""
    match handle:
        case _ if handle == CHAT:
            texts = [message["content"] for message in body["messages"] if message["role"] == "tool"]
        case _ if handle == RESPONSES:
            texts = [item["output"] for item in body["input"] if item.get("type") == "function_call_output"]
        case _ if handle == ANTHROPIC:
            blocks = body["messages"][-1]["content"]
            texts = [_anthropic_text(block["content"]) for block in blocks if block["type"] == "tool_result"]
        case _:
            assert handle == GOOGLE
            texts = [part["functionResponse"]["response"] for part in body["contents"][-1]["parts"]]
    return [json.loads(text) if isinstance(text, str) else text for text in texts]


def _anthropic_text(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else content[0]["text"]
