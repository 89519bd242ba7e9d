"""Fields of answers that servers fill otherwise than their wire has it, or leave out: nothing that is there is lost."""

import asyncio
import json
from typing import Any, cast

import pytest

from shared.domain.errors import ModelError, ModelErrorType
from tests.kit.model_server import Turn
from tests.kit.model_server.bare_answers import answered, asked_of, stream_of
from tests.kit.model_server.frames import data
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
from worker.models.provider import CallArguments

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
    (RESPONSES, "arguments", "function_call", [None, LEFT_OUT, 7, [], {"a": 1, "b": 3}]),
    (RESPONSES, "arguments", "response.function_call_arguments.done", [None, LEFT_OUT, 7, [], {"a": 1, "b": 3}]),
    (RESPONSES, "output", None, [None, LEFT_OUT, 7, "none", {}]),
    (RESPONSES, "logprobs", None, [None, LEFT_OUT, 7, "none", [None], {}]),
    (RESPONSES, "incomplete_details", None, [7, "none", [], [None]]),
    (RESPONSES, "created_at", None, ["now", True, [], {}, None, LEFT_OUT]),
    (RESPONSES, "status", None, [7, [], {}, None, LEFT_OUT]),
    (RESPONSES, "usage", None, [7, True, "many", [None], None, LEFT_OUT]),
    (RESPONSES, "response", "response.created", [None, {}, LEFT_OUT]),
    (RESPONSES, "response", "response.in_progress", [None, {}, LEFT_OUT]),
    (RESPONSES, "response", "response.completed", [7, "whole", [], {}, None, LEFT_OUT]),
    (RESPONSES, "call_id", None, [7, 1.5, True, [], None, LEFT_OUT]),
    (RESPONSES, "item_id", None, [7, "x", [], {}, None, LEFT_OUT]),
    (RESPONSES, "id", "function_call", [7, "x", True, [], {}, None, LEFT_OUT, ""]),
    (RESPONSES, "id", "message", [7, "x", [], None, LEFT_OUT, ""]),
    (RESPONSES, "output_index", None, ["0", 0, 1.5, None, LEFT_OUT]),
    (RESPONSES, "content_index", None, ["0", [], {}, None, LEFT_OUT]),
    (RESPONSES, "sequence_number", None, ["0", [], None, LEFT_OUT]),
    (GOOGLE, "responseId", None, [None, "x", LEFT_OUT, 7, True, [], {}]),
    (GOOGLE, "modelVersion", None, [None, LEFT_OUT, 7, [], {}]),
    (GOOGLE, "role", None, [None, LEFT_OUT, 7, [], {}]),
    (GOOGLE, "index", None, [None, LEFT_OUT, "0", "none", 1.5, [], {}]),
    (GOOGLE, "usageMetadata", None, [None, LEFT_OUT, 7, "many", [], {}]),
    (GOOGLE, "args", None, ['{"a": 1, "b": 3}']),
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


def with_ids(frames: list[bytes], item_id: str) -> list[bytes]:
    """The same events with other ids of items; `{}` is the number of the event."""
    told = [json.loads(frame.partition(b"data: ")[2]) for frame in frames]
    for number, event in enumerate(told):
        event |= {"item_id": item_id.format(number)} if "item_id" in event else {}
        event |= {"item": event["item"] | {"id": item_id.format(number)}} if "item" in event else {}
    return [b"data: %b\n\n" % json.dumps(event).encode() for event in told]


@pytest.mark.parametrize("item_id", ["{}", "one", ""], ids=["changing", "the same", "empty"])
async def test_a_call_whose_events_had_other_ids_was_two_calls(item_id: str) -> None:
    """One of them had no arguments, and both were run."""
    two = Turn(text="It is four.", calls=[Call("add", {"a": 1, "b": 3}), Call("add", {"a": 2, "b": 2})])
    said = await answered(RESPONSES, with_ids(stream_of(RESPONSES, two), item_id))
    made = {one.index: json.loads(one.arguments) for one in calls_made(said)}
    assert (text_said(said), list(made.values())) == ("It is four.", [{"a": 1, "b": 3}, {"a": 2, "b": 2}])


async def test_items_that_a_server_puts_at_one_place_are_told_apart_by_their_ids() -> None:
    two = Turn(calls=[Call("add", {"a": 1, "b": 3}), Call("add", {"a": 2, "b": 2})])
    frames = [frame.replace(b'"output_index": 1', b'"output_index": 0') for frame in stream_of(RESPONSES, two)]
    begun = [frame for frame in frames if b'"response.output_item.added"' in frame]
    rest = [frame for frame in frames[1:] if frame not in begun]
    said = await answered(RESPONSES, [frames[0], *begun, *rest])
    made = {one.index: json.loads(one.arguments) for one in calls_made(said)}
    assert list(made.values()) == [{"a": 1, "b": 3}, {"a": 2, "b": 2}]


NOTHING = [b"null", b"{}", b"[]", b'"keepalive"', b" ", b"5", b'{"type": "response.novelty", "response": null}']


@pytest.mark.parametrize("handle", HANDLES)
@pytest.mark.parametrize("nothing", NOTHING)
async def test_an_event_that_says_nothing_lost_the_answer(handle: str, nothing: bytes) -> None:
    frames = stream_of(handle, TURN)
    said = await answered(handle, [one for frame in frames for one in (b"data: %b\n\n" % nothing, frame)])
    assert (text_said(said), len({one.index for one in calls_made(said)})) == ("It is four.", 1)


EMPTY: list[dict[str, Any]] = [
    {"choices": {}},
    {"choices": ""},
    {"choices": [None]},
    {"choices": [{"delta": ""}]},
    {"choices": [{"delta": []}]},
    {"choices": [{"delta": {"tool_calls": [None]}}]},
    {"choices": [{"delta": {"tool_calls": {}}}]},
    {"choices": [{"delta": {"tool_calls": [{"function": ""}]}}]},
]


@pytest.mark.parametrize("nothing", EMPTY)
async def test_an_empty_field_of_another_kind_lost_the_answer(nothing: dict[str, Any]) -> None:
    empty = b"data: %b\n\n" % json.dumps(nothing).encode()
    said = await answered(CHAT, [one for frame in stream_of(CHAT, TURN) for one in (empty, frame)])
    made = {one.index: json.loads(one.arguments) for one in calls_made(said)}
    assert (text_said(said), made) == ("It is four.", {0: {"a": 1, "b": 3}})


async def test_a_call_or_a_choice_that_was_in_no_list_lost_the_answer() -> None:
    told = [json.loads(frame.partition(b"data: ")[2]) for frame in stream_of(CHAT, TURN)[:-1]]
    for event in told:
        for choice in event["choices"]:
            for name, value in choice["delta"].items():
                choice["delta"][name] = value[0] if name == "tool_calls" else value
        event["choices"] = event["choices"][0] if event["choices"] else {}
    said = await answered(CHAT, [b"data: %b\n\n" % json.dumps(event).encode() for event in told])
    assert (text_said(said), len({one.index for one in calls_made(said)})) == ("It is four.", 1)


@pytest.mark.parametrize("handle", HANDLES)
async def test_the_mark_of_the_end_behind_two_spaces_was_no_json(handle: str) -> None:
    frames = [frame.replace(b"data: ", b"data:   ").replace(b"\n\n", b" \n\n") for frame in stream_of(handle, TURN)]
    assert text_said(await answered(handle, frames)) == "It is four."


@pytest.mark.parametrize("delta", [None, LEFT_OUT, 4])
async def test_a_text_that_is_a_number_or_nothing_was_an_error(delta: object) -> None:
    frames = stream_of(RESPONSES, Turn(text="It is 4"))
    place = next(n for n, frame in enumerate(frames) if b"output_text.done" in frame)
    event = changed(json.loads(frames[place - 1].partition(b"data: ")[2]), "delta", None, delta)
    more = b"data: %b\n\n" % json.dumps(event).encode()
    said = await answered(RESPONSES, [*frames[:place], more, *frames[place:]])
    assert text_said(said) == "It is 4" + ("4" if delta == 4 else "")


async def test_a_piece_of_a_chat_that_is_a_number_was_lost() -> None:
    first, *rest = [
        data({"choices": [{"delta": {"content": piece}, "finish_reason": end}]})
        for piece, end in [(4, None), (" and ", None), (0, None), (0.5, None), (True, None), ("", "stop")]
    ]
    assert text_said(await answered(CHAT, [first, *rest])) == "4 and 00.5"


async def test_counts_in_a_choice_were_estimated() -> None:
    """Moonshot's servers send them there."""
    usage = {"prompt_tokens": 7, "completion_tokens": 2}
    said = {"delta": {"content": "Yes."}, "finish_reason": "stop", "usage": usage}
    used = ending(await answered(CHAT, [data({"choices": [said]})])).usage
    assert (used.prompt_tokens, used.completion_tokens, used.estimated) == (7, 2, False)


async def test_pieces_of_claude_without_a_type_were_lost() -> None:
    told = [json.loads(frame.partition(b"data: ")[2]) for frame in stream_of(ANTHROPIC, TURN)]
    for event in told:
        if event["type"] == "content_block_delta":
            del event["delta"]["type"]
    said = await answered(ANTHROPIC, [data(event) for event in told])
    made = {one.index: json.loads(one.arguments) for one in calls_made(said)}
    assert (text_said(said), made) == ("It is four.", {0: {"a": 1, "b": 3}})


NO_PARTS: list[Any] = [None, [], "", {}, [None]]
NO_CONTENT: list[Any] = [None, {}, "", [], *({"parts": parts} for parts in NO_PARTS), LEFT_OUT]


@pytest.mark.parametrize("content", NO_CONTENT)
async def test_geminis_last_event_has_no_content(content: object) -> None:
    *frames, last = stream_of(GOOGLE, TURN)
    event = changed(json.loads(last.partition(b"data: ")[2]), "content", None, content)
    said = await answered(GOOGLE, [*frames, b"data: %b\n\n" % json.dumps(event).encode()])
    assert (text_said(said), len(calls_made(said))) == ("It is four.", 1)


async def test_a_candidate_or_a_part_of_geminis_that_was_in_no_list_lost_the_answer() -> None:
    told = [json.loads(frame.partition(b"data: ")[2]) for frame in stream_of(GOOGLE, TURN)]
    for event in told:
        [event["candidates"]] = event["candidates"]
        if len(parts := event["candidates"]["content"]["parts"]) == 1:
            [event["candidates"]["content"]["parts"]] = parts
    said = await answered(GOOGLE, [data(event) for event in told])
    assert (text_said(said), len(calls_made(said))) == ("It is four.", 1)


@pytest.mark.parametrize("reason", ["length", "max_tokens", "MAX_TOKENS"])
async def test_a_cut_answer_of_a_gateway_on_geminis_protocol_counted_as_whole(reason: str) -> None:
    *frames, last = stream_of(GOOGLE, Turn(text="It is"))
    cut = changed(json.loads(last.partition(b"data: ")[2]), "finishReason", None, reason)
    assert ending(await answered(GOOGLE, [*frames, data(cut)])).reason == "length"


@pytest.mark.parametrize("count", ["11", 11.0, "eleven", 1.5, [], {}])
async def test_a_count_of_geminis_of_another_kind_lost_the_whole_answer(count: object) -> None:
    said = await answered(GOOGLE, frames_with(GOOGLE, "promptTokenCount", None, count))
    usage = ending(said).usage
    assert text_said(said) == "It is four."
    assert usage.prompt_tokens > 0
    assert usage.estimated == (count not in ("11", 11.0))


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


@pytest.mark.parametrize(("first", "last"), [(7, 0), (7, None), (0, 7), (None, 7)])
async def test_a_count_of_0_at_one_end_of_the_stream_hid_the_count_at_the_other(
    first: int | None, last: int | None
) -> None:
    start = {"type": "message_start", "message": {"usage": {"input_tokens": first, "output_tokens": 0}}}
    said = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Yes."}}
    stop = {"delta": {"stop_reason": "end_turn"}, "usage": {"input_tokens": last, "output_tokens": 2}}
    frames = [data(one) for one in (start, said, {"type": "message_delta", **stop})]
    usage = ending(await answered(ANTHROPIC, frames)).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.estimated) == (7, 2, False)


@pytest.mark.parametrize(
    ("first", "last", "prompt"),
    [
        ({"input_tokens": 5, "cache_read_input_tokens": 5000}, {"input_tokens": 0, "cache_read_input_tokens": 0}, 5005),
        ({"input_tokens": 5000}, {"input_tokens": 0, "cache_read_input_tokens": 5000}, 5000),
        ({"input_tokens": 5, "cache_read_input_tokens": 5000}, {}, 5005),
    ],
)
async def test_a_cached_prompt_was_counted_twice_or_not_at_all_behind_a_count_of_0(
    first: dict[str, int], last: dict[str, int], prompt: int
) -> None:
    start = {"type": "message_start", "message": {"usage": first}}
    said = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Yes."}}
    stop = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {**last, "output_tokens": 2}}
    usage = ending(await answered(ANTHROPIC, [data(one) for one in (start, said, stop)])).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.estimated) == (prompt, 2, False)


@pytest.mark.parametrize(
    "error",
    [
        {"type": "error", "message": "Slow down.", "code": 429},
        {"message": "Slow down.", "type": "", "code": 429},
        {"message": "Slow down.", "code": "rate_limit_exceeded"},
    ],
)
@pytest.mark.parametrize("handle", [ANTHROPIC, RESPONSES])
async def test_the_words_of_an_error_without_the_field_error_were_lost(handle: str, error: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"^Slow down\.") as caught:
        await answered(handle, [data(error)])
    assert (caught.value.error_type, caught.value.retryable) == (ModelErrorType.RATE_LIMIT, True)


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


CALL_OF_CLAUDE: list[tuple[Any, list[Any]]] = [
    ({"a": 1, "b": 3}, ['{"a": 1, ', '"b": 3}']),
    ({"a": 1, "b": 3}, [""]),
    ('{"a": 1, "b": 3}', []),
    ("", ['{"a": 1, "b": 3}']),
    ([], [{"a": 1, "b": 3}]),
    (None, ["", {"a": 1, "b": 3}]),
]


@pytest.mark.parametrize(("given", "pieces"), CALL_OF_CLAUDE)
async def test_arguments_that_came_with_the_call_and_in_pieces_were_there_twice(given: Any, pieces: list[Any]) -> None:
    """Anthropic's own clients ignore those that come with the call, so servers send both unnoticed."""
    begun, *_, end = [frame for frame in stream_of(ANTHROPIC, TURN) if b"content_block_st" in frame][2:]
    frames = stream_of(ANTHROPIC, TURN)
    first, last = frames.index(begun), frames.index(end)
    index = json.loads(begun.partition(b"data: ")[2])["index"]
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    told = [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    begun = json.dumps(changed(json.loads(begun.partition(b"data: ")[2]), "input", None, given)).encode()
    said = await answered(
        ANTHROPIC,
        [
            *frames[:first],
            b"data: %b\n\n" % begun,
            *(b"data: %b\n\n" % json.dumps(one).encode() for one in told),
            *frames[last:],
        ],
    )
    made = {one.index: json.loads(one.arguments) for one in calls_made(said)}
    assert made == {0: {"a": 1, "b": 3}}
    assert json.loads("".join(one.text for one in said if isinstance(one, CallArguments))) == made[0]


async def test_arguments_of_a_response_that_came_with_the_call_alone_were_lost() -> None:
    """The call was made with no arguments."""
    kept: list[bytes] = []
    for frame in stream_of(RESPONSES, Turn(calls=[Call("add", {"a": 1, "b": 3})])):
        one = json.loads(frame.partition(b"data: ")[2])
        if one["type"] == "response.output_item.added":
            one["item"]["arguments"] = '{"a": 1, "b": 3}'
        if one["type"] in ("response.created", "response.output_item.added", "response.completed"):
            kept.append(data(one))
    assert [json.loads(made.arguments) for made in calls_made(await answered(RESPONSES, kept))] == [{"a": 1, "b": 3}]


@pytest.mark.parametrize("rest", [{}, {"output": None}, {"id": "resp_1", "status": "failed"}])
async def test_the_words_of_a_failed_response_without_other_fields_were_lost(rest: dict[str, Any]) -> None:
    """It was a "TypeError", and was not tried again."""
    error = {"code": "rate_limit_exceeded", "message": "Slow down."}
    begun, *_ = stream_of(RESPONSES, TURN)
    failed = data({"type": "response.failed", "response": {"error": error, **rest}})
    with pytest.raises(ModelError, match="Slow down") as caught:
        await answered(RESPONSES, [begun, failed])
    assert (caught.value.error_type, caught.value.retryable) == (ModelErrorType.RATE_LIMIT, True)


@pytest.mark.parametrize("delta", [None, ""])
async def test_a_piece_of_a_call_that_is_null_was_an_error_of_the_sdk(delta: str | None) -> None:
    frames = stream_of(RESPONSES, TURN)
    place = next(n for n, frame in enumerate(frames) if b"arguments.delta" in frame)
    empty = json.loads(frames[place].partition(b"data: ")[2]) | {"delta": delta}
    said = await answered(RESPONSES, [*frames[:place], b"data: %b\n\n" % json.dumps(empty).encode(), *frames[place:]])
    assert [json.loads(one.arguments) for one in calls_made(said)] == [{"a": 1, "b": 3}]


@pytest.mark.parametrize("handle", HANDLES)
async def test_the_words_of_a_server_in_an_event_that_is_not_json_were_lost(handle: str) -> None:
    with pytest.raises(ModelError, match="not JSON: The upstream is gone") as caught:
        await answered(handle, [b"data: The upstream <b>is gone</b>.\n\n"])
    assert not caught.value.retryable


@pytest.mark.parametrize("markup", [b"<script>", b"<style ", b"<", b"<a "])
async def test_markup_without_an_end_took_the_square_of_its_length(markup: bytes) -> None:
    with pytest.raises(ModelError, match="not JSON: Gone"):
        await answered(CHAT, [b"data: Gone " + markup * 100_000 + b"\n\n"])


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"error": {"message": "Slow down.", "code": 429}, "responseId": 12}, "Slow down"),
        ({"promptFeedback": {"blockReason": "SAFETY"}, "modelVersion": 2.5, "responseId": 7}, "SAFETY"),
    ],
)
async def test_an_end_of_geminis_with_an_id_that_is_a_number_was_none(event: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        await answered(GOOGLE, [data(event)])


@pytest.mark.parametrize("handle", HANDLES)
async def test_an_error_whose_code_is_a_long_number_was_an_error_of_ours(handle: str) -> None:
    with pytest.raises(ModelError, match="Too much"):
        await answered(handle, [data({"error": {"message": "Too much.", "code": "4" * 5000}})])


@pytest.mark.parametrize("handle", [CHAT, ANTHROPIC])
async def test_an_error_whose_body_breaks_off_lost_its_status(handle: str) -> None:
    """A key that was refused was tried again."""

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 900\r\n\r\nThis key was revoked")
        writer.close()

    with pytest.raises(ModelError, match="This key was revoked") as caught:
        await asked_of(handle, answer)
    assert (caught.value.error_type, caught.value.retryable) == (ModelErrorType.AUTHENTICATION, False)
