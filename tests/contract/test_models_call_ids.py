"""Ids of tool calls that servers give twice: within an answer, and again in a later one, on every wire."""

import json

import pytest
from msgspec.structs import replace

from shared.domain.messages import AssistantMessage, ToolCall, ToolReturns, UserMessage
from tests.kit.model_server import Turn
from tests.kit.model_server.frames import data
from tests.kit.model_server.model_calls import (
    ADD,
    ANTHROPIC,
    CHAT,
    GOOGLE,
    HANDLES,
    RESPONSES,
    ask,
    call,
    calls_made,
    ending,
    history,
    models_on_server,
    returned,
)
from tests.kit.model_server.turn import Call
from worker.models.provider import CallStarted

IDS = [("one", "one"), ("one", "one", "one"), ("one", "two", "one"), ("one", "", "one")]


@pytest.mark.parametrize("handle", HANDLES)
@pytest.mark.parametrize("given", IDS)
async def test_two_calls_of_an_answer_had_one_id(handle: str, given: tuple[str, ...]) -> None:
    calls = [Call("add", {"a": number}, id=call_id) for number, call_id in enumerate(given)]
    async with models_on_server() as (server, models):
        server.play(Turn(calls=calls, reasoning="Twice."))
        events = await ask(models, call(handle, tools=[ADD]))
        made = calls_made(events)
        assert [json.loads(one.arguments) for one in made] == [{"a": number} for number in range(len(given))]
        ids = [one.call_id for one in made]
        assert len(set(ids)) == len(given)
        assert [event.call_id for event in events if isinstance(event, CallStarted)] == ids

        answer = AssistantMessage(
            tool_calls=[ToolCall(one.call_id, one.name, one.arguments) for one in made],
            model=handle,
            provider_response=ending(events).provider_response,
        )
        results = ToolReturns([returned(one.call_id, one.arguments) for one in made])
        await ask(models, call(handle, history(UserMessage("Add."), answer, results), tools=[ADD]))
        sent = json.dumps(server.requests[-1].body)
    # Gemini knows calls by their order, and its requests may leave their ids out.
    assert handle == GOOGLE or all(sent.count(json.dumps(call_id)) == 2 for call_id in ids)


@pytest.mark.parametrize("handle", [CHAT, RESPONSES, ANTHROPIC])
async def test_an_id_of_an_earlier_answer_came_again(handle: str) -> None:
    earlier = AssistantMessage(tool_calls=[ToolCall("one", "add", "{}")])
    before = history(UserMessage("Add."), earlier, ToolReturns([returned("one", "1")]), UserMessage("Again."))
    async with models_on_server() as (server, models):
        server.play(Turn(calls=[Call("add", {}, id="one"), Call("add", {}, id="two")]))
        made = calls_made(await ask(models, call(handle, before, tools=[ADD])))
    assert made[0].call_id not in ("one", "two")
    assert made[1].call_id == "two"


@pytest.mark.parametrize("handle", [CHAT, RESPONSES, ANTHROPIC])
async def test_an_id_of_an_answer_that_has_left_the_history_came_again(handle: str) -> None:
    asked = replace(call(handle, tools=[ADD]), taken_call_ids=frozenset({"one"}))
    async with models_on_server() as (server, models):
        server.play(Turn(calls=[Call("add", {}, id="one"), Call("add", {}, id="two")]))
        made = calls_made(await ask(models, asked))
    assert made[0].call_id not in ("one", "two")
    assert made[1].call_id == "two"


@pytest.mark.parametrize("handle", [CHAT, RESPONSES, ANTHROPIC])
@pytest.mark.parametrize("given", ["x" * 201, "a\0b", "a\nb", "\u2028"], ids=ascii)
async def test_an_id_that_cannot_be_kept_or_shown_was_kept(handle: str, given: str) -> None:
    async with models_on_server() as (server, models):
        server.play(Turn(calls=[Call("add", {"a": 1}, id=given), Call("add", {"a": 2}, id="two' \"ü{}%")]))
        made = calls_made(await ask(models, call(handle, tools=[ADD])))
    assert (len(made[0].call_id) < 50, made[0].call_id.isascii(), made[0].call_id.isprintable()) == (True, True, True)
    assert made[1].call_id == "two' \"ü{}%"


async def test_whole_calls_of_one_id_and_number_were_one_call() -> None:
    pieces = [
        {"index": 0, "id": "one", "function": {"name": "add", "arguments": arguments}}
        for arguments in ('{"a": 1}', '{"a": 2}', "")
    ]
    chunks = [data({"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]}) for piece in pieces]
    end = data({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    async with models_on_server() as (server, models):
        server.play(Turn(raw=(*chunks, end)))
        made = calls_made(await ask(models, call(CHAT, tools=[ADD])))
    assert [one.arguments for one in made] == ['{"a": 1}', '{"a": 2}']
    assert len({one.call_id for one in made}) == 2
