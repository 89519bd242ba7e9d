"""What a model has once said, or a client brought, made its provider refuse every later request of the conversation."""

import json
from typing import Any

import pytest

from shared.domain.messages import (
    AssistantMessage,
    ImageContent,
    Message,
    ToolCall,
    ToolReturn,
    ToolReturns,
    UserMessage,
)
from tests.kit.model_server import Call, Turn
from tests.kit.model_server.model_calls import (
    ADD,
    ANTHROPIC,
    GOOGLE,
    HANDLES,
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

every_wire = pytest.mark.parametrize("handle", HANDLES)


async def _sent(handle: str, messages: list[Message]) -> ReceivedRequest:
    """The request that this history becomes, which its provider takes."""
    async with models_on_server() as (server, models):
        await ask(models, call(handle, messages, tools=[ADD]))
        [request] = server.requests
    assert broken_rules(request) == []
    return request


async def _sent_after(handle: str, turn: Turn, *, signed: bool = True) -> ReceivedRequest:
    """The request behind an answer, kept as the worker keeps it, with a result for each of its calls."""
    async with models_on_server() as (server, models):
        server.play(turn)
        events = await ask(models, call(handle, tools=[ADD]))
        made = [ToolCall(one.call_id, one.name, one.arguments) for one in calls_made(events)]
        kept = ending(events).provider_response if signed else None
        spoken = AssistantMessage(text=text_said(events), tool_calls=made, model=handle, provider_response=kept)
        results = [ToolReturns([returned(one.id, "No such tool.", tool=one.name, failed=True) for one in made])]
        messages = history(UserMessage("?"), spoken, *(results if made else []), ("run-2", UserMessage("Go on.")))
        await ask(models, call(handle, messages, tools=[ADD]))
        request = server.requests[-1]
    assert broken_rules(request) == []
    assert thoughts(events) or not turn.reasoning
    return request


@every_wire
@pytest.mark.parametrize("arguments", ['{"a": ' + "[" * 5000, '{"a":' * 3000, "[" * 5000 + "]" * 5000])
async def test_arguments_in_thousands_of_brackets_could_not_be_sent_back(handle: str, arguments: str) -> None:
    """A model that repeats itself writes them until its limit is reached."""
    spoken = AssistantMessage(tool_calls=[ToolCall("one", "add", arguments)])
    messages = history(UserMessage("Add."), spoken, ToolReturns([returned("one", "cut off", failed=True)]))
    request = await _sent(handle, messages)
    assert "INVALID_JSON" in json.dumps(request.body)


NAMES = [
    "multi_tool_use.parallel",
    "functions.add",
    "add numbers",
    "add<|channel|>commentary",
    "ädd",
    "add" * 40,
    "x y",
]


@every_wire
@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("name", NAMES)
async def test_the_name_of_a_tool_that_there_is_not_was_sent_back(handle: str, name: str, is_kept: bool) -> None:
    turn = Turn(reasoning="Hm." if is_kept else "", calls=[Call(name, {"a": 1}), Call("add", {"a": 1, "b": 2})])
    request = await _sent_after(handle, turn, signed=is_kept)
    body = json.dumps(request.body, ensure_ascii=False)
    assert f'"name": "{name}"' not in body
    assert '"name": "add"' in body


@every_wire
async def test_a_call_without_a_name_in_an_imported_history_was_sent_back(handle: str) -> None:
    spoken = AssistantMessage(tool_calls=[ToolCall("one", "", "{}")])
    await _sent(handle, history(UserMessage("?"), spoken, ToolReturns([returned("one", "none", tool="")])))


@every_wire
@pytest.mark.parametrize("finish", ["length", "content_filter"])
async def test_an_answer_that_was_cut_off_in_its_reasoning_was_sent_back(handle: str, finish: Any) -> None:
    request = await _sent_after(handle, Turn(reasoning="Hm, let me see.", finish=finish))
    assert "[This reply had no text.]" in json.dumps(request.body)


@every_wire
@pytest.mark.parametrize("blank", ["\n\n", " ", "\t\n"])
async def test_blank_text_between_reasoning_and_a_call_was_sent_back(handle: str, blank: str) -> None:
    request = await _sent_after(handle, Turn(reasoning="Hm.", text=blank, calls=[Call("add", {"a": 1, "b": 2})]))
    if handle == ANTHROPIC:
        kinds = [block["type"] for block in request.body["messages"][1]["content"]]
        assert kinds == ["thinking", "tool_use"]


@every_wire
@pytest.mark.parametrize("text", ["", " ", "\n"])
async def test_an_empty_result_of_a_client_was_sent_as_a_blank_text(handle: str, text: str) -> None:
    spoken = AssistantMessage(tool_calls=[ToolCall("one", "add", '{"a": 1, "b": 2}')])
    result = ToolReturn("one", "add", "success", text, is_plain=True)
    await _sent(handle, history(UserMessage("Add."), spoken, ToolReturns([result])))


PICTURES = {
    "image/png": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
    "image/jpeg": "/9j/4AAQSkZJRgABAQEASABIAAD/2wBDAP//////////////////////////////////////////////",
    "image/gif": "R0lGODlhAQABAIAAAP///wAAACH5BAEAAAAALAAAAAABAAEAAAICRAEAOw==",
    "image/webp": "UklGRiQAAABXRUJQVlA4IBgAAAAwAQCdASoBAAEAAgA0JaQAA3AA/vuUAAA=",
}


@pytest.mark.parametrize("said", ["image/png", "image/jpeg", None])
@pytest.mark.parametrize("kind", PICTURES)
@pytest.mark.parametrize("handle", [ANTHROPIC, GOOGLE])
async def test_an_image_under_the_type_of_another_was_refused(handle: str, kind: str, said: str | None) -> None:
    """Pictures that somebody has renamed: clients take the type from the name of the file."""
    image = ImageContent(data=PICTURES[kind], media_type=said)
    request = await _sent(handle, history(UserMessage([image])))
    assert f'"{kind}"' in json.dumps(request.body)


@pytest.mark.parametrize("handle", [*HANDLES, "vllm/google/gemma-3-27b-it"])
async def test_a_call_behind_the_words_that_a_client_gave_the_model_was_refused(handle: str) -> None:
    """Gemini takes a call only behind the user's turn, and other models' turns alternate. The model was asked to go on
    when it made the call, and is shown that it was."""
    begun = [UserMessage("Add."), UserMessage("I shall add:", role="assistant")]
    called = AssistantMessage(tool_calls=[ToolCall("one", "add", '{"a": 1, "b": 2}')])
    before = (await _sent(handle, history(*begun))).body
    after = (await _sent(handle, history(*begun, called, ToolReturns([returned("one", "3")])))).body
    key = next(name for name in ("messages", "contents", "input") if name in before)
    sent = [one for one in before[key] if one.get("role") != "system"]
    assert len(sent) == 3
    again = [one for one in after[key] if one.get("role") != "system"]
    assert [_words(one) for one in again[:3]] == [_words(one) for one in sent]


def _words(turn: dict[str, Any]) -> str:
    """The turn without the marks for its provider's cache."""
    return json.dumps(turn).replace(', "cache_control": {"type": "ephemeral", "ttl": "5m"}', "")
