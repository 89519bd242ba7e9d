"""Fields of answers that servers fill otherwise than their wire has it, or leave out: nothing that is there is lost."""

import json
from typing import Any, cast

import pytest

from tests.kit.model_server import Turn
from tests.kit.model_server.bare_answers import answered, stream_of
from tests.kit.model_server.model_calls import (
    ANTHROPIC,
    CHAT,
    GOOGLE,
    HANDLES,
    RESPONSES,
    calls_made,
    ending,
    text_said,
)
from tests.kit.model_server.turn import Call

TURN = Turn(text="It is four.", calls=[Call("add", {"a": 1, "b": 3})])

LEFT_OUT = object()


def changed(value: Any, name: str, kind: str | None, odd: object) -> Any:
    """The same JSON with this in every field of this name, of objects of this type if one is named."""
    if isinstance(value, list):
        return [changed(one, name, kind, odd) for one in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = {key: changed(one, name, kind, odd) for key, one in cast("dict[str, Any]", value).items()}
    if name in fields and kind in (None, fields.get("type")):
        fields[name] = odd
    return {key: one for key, one in fields.items() if one is not LEFT_OUT}


def frames_with(handle: str, name: str, kind: str | None, odd: object) -> list[bytes]:
    frames: list[bytes] = []
    for frame in stream_of(handle, TURN):
        before, word, said = frame.partition(b"data: {")
        told = json.dumps(changed(json.loads(b"{" + said), name, kind, odd)).encode() if word else b""
        frames.append(before + b"data: " + told + b"\n\n" if word else frame)
    assert frames != [] and (not name or frames != stream_of(handle, TURN))
    return frames


FIELDS: list[tuple[str, str, str | None, list[object]]] = [
    (CHAT, "id", None, [7, 1.5, True, [], {}, None, LEFT_OUT]),
    (CHAT, "model", None, [7, [], {}, None, LEFT_OUT]),
    (CHAT, "index", None, ["0", 0.0, None, LEFT_OUT]),
    (CHAT, "created", None, ["now", None, {}]),
    (ANTHROPIC, "id", None, [7, True, [], None, LEFT_OUT]),
    (ANTHROPIC, "model", None, [7, {}, None, LEFT_OUT]),
    (ANTHROPIC, "usage", None, [7, "many", [], None, LEFT_OUT]),
    (RESPONSES, "arguments", "function_call", [None, LEFT_OUT]),
    (RESPONSES, "output", None, [None, LEFT_OUT]),
    (RESPONSES, "logprobs", None, [None, LEFT_OUT]),
    (GOOGLE, "responseId", None, [None, "x", LEFT_OUT]),
]


@pytest.mark.parametrize(
    ("handle", "name", "kind", "odd"),
    [(handle, name, kind, odd) for handle, name, kind, odds in FIELDS for odd in odds],
)
async def test_a_field_of_another_kind_lost_the_whole_answer(
    handle: str, name: str, kind: str | None, odd: object
) -> None:
    said = await answered(handle, frames_with(handle, name, kind, odd))
    assert text_said(said) == "It is four."
    [made] = {one.index: one for one in calls_made(said)}.values()
    assert (made.name, json.loads(made.arguments)) == ("add", {"a": 1, "b": 3})
    assert made.call_id


COUNTS = {
    CHAT: "prompt_tokens",
    ANTHROPIC: "input_tokens",
    RESPONSES: "input_tokens",
    GOOGLE: "promptTokenCount",
}


@pytest.mark.parametrize("handle", HANDLES)
@pytest.mark.parametrize("count", [2**63, 10**19, 10**12, -3])
async def test_a_count_that_cannot_be_was_taken(handle: str, count: int) -> None:
    usage = ending(await answered(handle, frames_with(handle, COUNTS[handle], None, count))).usage
    assert usage.estimated
    assert 0 < usage.prompt_tokens < 10**9


@pytest.mark.parametrize("handle", [CHAT, ANTHROPIC, RESPONSES])
async def test_a_count_that_is_written_as_a_fraction_was_none(handle: str) -> None:
    usage = ending(await answered(handle, frames_with(handle, COUNTS[handle], None, 12.0))).usage
    assert type(usage.prompt_tokens) is int
    assert usage.prompt_tokens >= 12
    assert not usage.estimated


@pytest.mark.parametrize("part", [{}, {"text": None}, {"thought": True}, {"text": None, "thoughtSignature": None}])
async def test_an_empty_part_of_geminis_was_an_error_of_its_sdk(part: dict[str, Any]) -> None:
    first, *rest = stream_of(GOOGLE, Turn(text="It is four."))
    empty = {"candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}]}
    said = await answered(GOOGLE, [b"data: %b\n\n" % json.dumps(empty).encode(), first, *rest])
    assert text_said(said) == "It is four."


async def test_each_event_of_geminis_with_an_id_of_its_own_was_an_interruption() -> None:
    frames = stream_of(GOOGLE, TURN)
    told = [json.loads(frame.partition(b"data: ")[2]) | {"responseId": f"r{n}"} for n, frame in enumerate(frames)]
    said = await answered(GOOGLE, [b"data: %b\n\n" % json.dumps(one).encode() for one in told])
    assert (text_said(said), len(calls_made(said))) == ("It is four.", 1)


@pytest.mark.parametrize("delta", [None, ""])
async def test_a_piece_of_a_call_that_is_null_was_an_error_of_the_sdk(delta: str | None) -> None:
    frames = stream_of(RESPONSES, TURN)
    place = next(n for n, frame in enumerate(frames) if b"arguments.delta" in frame)
    empty = json.loads(frames[place].partition(b"data: ")[2]) | {"delta": delta}
    said = await answered(RESPONSES, [*frames[:place], b"data: %b\n\n" % json.dumps(empty).encode(), *frames[place:]])
    assert [json.loads(one.arguments) for one in calls_made(said)] == [{"a": 1, "b": 3}]
