"""Parts of an answer whose pieces come in turns: each piece goes to its own part."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.kit.model_server import Turn
from tests.kit.model_server.bare_answers import answered, stream_of
from tests.kit.model_server.frames import data
from tests.kit.model_server.model_calls import ANTHROPIC, CHAT, RESPONSES, calls_made, ending, text_said, thoughts
from tests.kit.model_server.turn import Call
from worker.models.provider import CallArguments, ModelEvent


def begins(index: int, **block: Any) -> bytes:
    return data({"type": "content_block_start", "index": index, "content_block": block})


def calls(index: int, **given: int) -> bytes:
    return begins(index, type="tool_use", id=f"toolu_{index}", name="add", input=given)


def piece(index: int, kind: str, text: str) -> bytes:
    name = {"text": "text", "thinking": "thinking", "signature": "signature", "input_json": "partial_json"}[kind]
    return data({"type": "content_block_delta", "index": index, "delta": {"type": f"{kind}_delta", name: text}})


def stops(*indexes: int) -> list[bytes]:
    return [data({"type": "content_block_stop", "index": index}) for index in indexes]


async def said_by_claude(*blocks: bytes) -> list[ModelEvent]:
    first, *_, stop, end = stream_of(ANTHROPIC, Turn(text="x"))
    return await answered(ANTHROPIC, [first, *blocks, stop, end])


def arguments_of(events: Sequence[ModelEvent]) -> dict[int, Any]:
    """The arguments in the pieces of each call. No event of a whole call says other ones, and they come in order."""
    pieces = {made.index: "" for made in calls_made(events)}
    for event in events:
        if isinstance(event, CallArguments):
            pieces[event.index] += event.text
    assert [one for one in calls_made(events) if not pieces[one.index].startswith(one.arguments)] == []
    assert list(pieces) == sorted(pieces)
    return {index: json.loads(text) for index, text in pieces.items()}


PIECES = ((0, '{"a"'), (1, '{"a"'), (0, ": 1}"), (1, ": 2}"))
TWO = [piece(index, "input_json", text) for index, text in PIECES]


@pytest.mark.parametrize("given", [{}, {"a": 1}])
async def test_a_call_of_claude_was_told_as_a_whole_before_its_arguments(given: dict[str, int]) -> None:
    """Agents of an operator's own code got "{}" in front of them, and arguments that came with the call twice."""
    said = await said_by_claude(calls(0, **given), calls(1), *TWO, *stops(0, 1))
    assert arguments_of(said) == {0: {"a": 1}, 1: {"a": 2}}
    words = [piece(1, "text", word) for word in ("It is", " four.")]
    said = await said_by_claude(calls(0, **given), begins(1, type="text", text=""), words[0], TWO[0], words[1], TWO[2])
    assert (arguments_of(said), text_said(said)) == ({0: {"a": 1}}, "It is four.")


async def test_pieces_of_thinking_and_of_text_come_in_turns() -> None:
    begun = [begins(0, type="thinking", thinking=""), begins(1, type="text", text="")]
    thought = [piece(0, "thinking", "Hm"), piece(0, "thinking", "."), piece(0, "signature", "c2ln")]
    said = await said_by_claude(
        *begun, thought[0], piece(1, "text", "It is"), *thought[1:], piece(1, "text", " four."), *stops(0, 1)
    )
    assert (thoughts(said), text_said(said)) == ("Hm.", "It is four.")
    [answer] = json.loads(ending(said).provider_response or "")
    assert [(part["content"], part.get("signature")) for part in answer["parts"]] == [
        ("Hm.", "c2ln"),
        ("It is four.", None),
    ]


CALLS = Turn(calls=[Call("add", {"a": 1}, "one"), Call("add", {"a": 2}, "two")])


@pytest.mark.parametrize(("handle", "mark"), [(CHAT, b'"name"'), (RESPONSES, b"output_item.added")])
async def test_calls_that_begin_before_their_arguments_were_told_as_a_whole_at_once(handle: str, mark: bytes) -> None:
    first, *rest = stream_of(handle, CALLS)
    begun = [frame for frame in rest if mark in frame and b"arguments.done" not in frame]
    assert len(begun) == 2
    said = await answered(handle, [first, *begun, *(frame for frame in rest if frame not in begun)])
    assert arguments_of(said) == {0: {"a": 1}, 1: {"a": 2}}


async def test_a_call_without_arguments_is_whole_before_one_with_them() -> None:
    said = await said_by_claude(calls(0), calls(1), TWO[1], TWO[3], *stops(0, 1), calls(2, a=3), *stops(2))
    assert [(made.index, made.arguments) for made in calls_made(said)] == [(0, "{}"), (1, '{"a": 2}'), (2, '{"a": 3}')]
