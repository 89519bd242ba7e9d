"""Servers of OpenAI's Responses protocol that send an item as a whole, or as a whole and in pieces: it counts once."""

import json
from typing import Any

import pytest

from shared.domain.errors import ModelError
from tests.kit.model_server import Turn
from tests.kit.model_server.bare_answers import answered, stream_of
from tests.kit.model_server.frames import data
from tests.kit.model_server.model_calls import RESPONSES, calls_made, ending, text_said, thoughts
from tests.kit.model_server.turn import Call
from worker.models.provider import CallArguments

TURN = Turn(reasoning="Two and two.", text="It is four.", calls=[Call("add", {"a": 1, "b": 3}), Call("add", {"a": 2})])

CREATED, COMPLETED = "response.created", "response.completed"
ADDED, DONE = "response.output_item.added", "response.output_item.done"
PIECE, PIECES_DONE = "response.function_call_arguments.delta", "response.function_call_arguments.done"


def events_of(*kinds: str, turn: Turn = TURN) -> list[dict[str, Any]]:
    """The events of an answer that are of these kinds; all of them if no kind is given."""
    frames = [frame.partition(b"data: ")[2] for frame in stream_of(RESPONSES, turn)]
    found = [json.loads(frame) for frame in frames]
    return [event for event in found if not kinds or event["type"] in kinds]


def without_output(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same events with an end that does not repeat the answer."""
    return [
        {**event, "response": {**event["response"], "output": []}} if event["type"] == COMPLETED else event
        for event in events
    ]


def without(events: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    """The same events and items without these fields."""
    bare = [{name: value for name, value in event.items() if name not in names} for event in events]
    return [
        {**event, "item": {name: value for name, value in event["item"].items() if name not in names}}
        if "item" in event
        else event
        for event in bare
    ]


WHOLE: dict[str, list[dict[str, Any]]] = {
    "added, done": without_output(events_of(CREATED, ADDED, DONE, COMPLETED)),
    "added, done, and again in the end": events_of(CREATED, ADDED, DONE, COMPLETED),
    "done": without_output(events_of(CREATED, DONE, COMPLETED)),
    "done, without ids": without(without_output(events_of(CREATED, DONE, COMPLETED)), "id", "item_id"),
    "done, and again in the end": events_of(CREATED, DONE, COMPLETED),
    "the end": events_of(CREATED, COMPLETED),
    "the end alone": events_of(COMPLETED),
    "pieces, and the calls in the end": [
        event for event in events_of() if "function_call" not in json.dumps(event) or event["type"] == COMPLETED
    ],
    "pieces, and all of it three times": events_of(),
    "pieces without ids and places, and all of it again": without(
        [event for event in events_of() if "function_call" not in event["type"]], "item_id", "output_index"
    ),
    "pieces alone": without_output([event for event in events_of() if event["type"] not in (DONE, PIECES_DONE)]),
}


async def said_by(events: list[dict[str, Any]]) -> tuple[str, str, list[dict[str, Any]]]:
    """The reasoning, the text and the arguments of the calls. The pieces of arguments are those of the whole calls."""
    said = await answered(RESPONSES, [data(event) for event in events])
    made = {one.index: one.arguments for one in calls_made(said)}
    for index, arguments in made.items():
        pieces = [one.text for one in said if isinstance(one, CallArguments) and one.index == index]
        assert ("".join(pieces) or "{}") == arguments
    assert ending(said).reason == ("tool_calls" if made else "stop")
    return thoughts(said), text_said(said), [json.loads(arguments) for arguments in made.values()]


@pytest.mark.parametrize("events", WHOLE.values(), ids=WHOLE)
async def test_items_that_came_as_a_whole_were_lost_or_said_twice(events: list[dict[str, Any]]) -> None:
    assert await said_by(events) == ("Two and two.", "It is four.", [{"a": 1, "b": 3}, {"a": 2}])


async def test_a_refusal_that_came_as_a_whole_was_an_empty_answer() -> None:
    """It was asked for again."""
    refusal = {"type": "refusal", "refusal": "I cannot help with that."}
    events = without_output(events_of(CREATED, ADDED, DONE, COMPLETED, turn=Turn(text="x")))
    for event in events:
        if event["type"] == DONE:
            event["item"]["content"] = [refusal]
    with pytest.raises(ModelError, match=r"content_filter.*I cannot help with that\.") as caught:
        await said_by(events)
    assert not caught.value.retryable


CALLS = Turn(calls=[Call("add", {"a": 1, "b": 3}), Call("add", {"a": 2})])
ARGUMENTS = ('{"a": 1, "b": 3}', '{"a": 2}')


def with_first_arguments(events: list[dict[str, Any]], *arguments: Any) -> list[dict[str, Any]]:
    """The same events with these arguments in the events that begin the calls."""
    given = iter(arguments)
    return [
        {**one, "item": {**one["item"], "arguments": next(given)}} if one["type"] == ADDED else one for one in events
    ]


BEGUN = without_output(events_of(CREATED, ADDED, PIECE, PIECES_DONE, DONE, COMPLETED, turn=CALLS))


@pytest.mark.parametrize("kinds", [(), (PIECE,), (PIECES_DONE,), (DONE,), (PIECE, PIECES_DONE, DONE)])
@pytest.mark.parametrize("given", [ARGUMENTS, tuple(map(json.loads, ARGUMENTS)), ("{}", " { } "), ({}, None)])
async def test_arguments_of_a_response_that_came_with_the_call_and_again_were_there_twice(
    given: tuple[Any, ...], kinds: tuple[str, ...]
) -> None:
    events = [event for event in BEGUN if event["type"] in (CREATED, ADDED, COMPLETED, *kinds)]
    is_told = bool(kinds) or given[0] not in ("{}", {})
    made = (await said_by(with_first_arguments(events, *given)))[2]
    assert made == ([{"a": 1, "b": 3}, {"a": 2}] if is_told else [{}, {}])


async def test_arguments_whose_first_piece_came_with_the_call_are_whole() -> None:
    events = with_first_arguments(without_output(events_of(CREATED, ADDED, PIECE, COMPLETED, turn=CALLS)), '{"a"', "")
    first = next(place for place, event in enumerate(events) if event["type"] == PIECE)
    events[first]["delta"] = events[first]["delta"].removeprefix('{"a"')
    assert (await said_by(events))[2] == [{"a": 1, "b": 3}, {"a": 2}]


async def test_arguments_that_came_again_in_another_spelling_were_a_warning_of_the_sdk() -> None:
    events = BEGUN
    again = [
        {**one, "arguments": json.dumps(json.loads(one["arguments"]), indent=1)} if one["type"] == PIECES_DONE else one
        for one in events
    ]
    assert (await said_by(again))[2] == [{"a": 1, "b": 3}, {"a": 2}]


async def test_reasoning_in_an_answer_that_is_not_streamed_was_text() -> None:
    """gpt-oss has it in the content of its item, and not in a summary."""
    [answer] = [event["response"] for event in events_of(COMPLETED)]
    answer["output"][0] |= {"summary": [], "content": [{"type": "reasoning_text", "text": "Two and two."}]}
    said = await answered(RESPONSES, [json.dumps(answer).encode()], "last chunk", content_type="application/json")
    assert text_said(said) == "It is four."
