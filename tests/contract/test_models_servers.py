"""What real servers do beyond what is written of their wires: one table, which every wire passes."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from shared.domain.errors import ModelError, ModelErrorType
from tests.kit.model_server import Turn
from tests.kit.model_server.bare_answers import EVENTS, answered, answered_for_ever, stream_of, up_to_reason
from tests.kit.model_server.frames import data, event
from tests.kit.model_server.model_calls import (
    ANTHROPIC,
    CHAT,
    GOOGLE,
    HANDLES,
    RESPONSES,
    calls_made,
    ending,
    text_said,
    thoughts,
)
from tests.kit.model_server.turn import Call
from worker.models.provider import CallArguments, ModelEvent

every_wire = pytest.mark.parametrize("handle", HANDLES)

MARK = "\ufeff".encode()
FOUR = Turn(text="It is four.")

FIRST, SECOND = "\u00c4", "\u00d6"
"""They stand for what a server writes for the two halves of a character."""


def halves(handle: str, turn: Turn, first: str, second: str) -> list[bytes]:
    """The events of an answer with these escapes in place of `FIRST` and `SECOND`."""
    places = ((f" {SECOND}", second), (SECOND, second), (FIRST, first))
    frames = stream_of(handle, turn)
    for place, written in places:
        escaped = json.dumps(place)[1:-1].encode()
        frames = [frame.replace(escaped, written.encode()) for frame in frames]
    return frames


def said_in(kind: str, events: list[ModelEvent]) -> str:
    match kind:
        case "text":
            return text_said(events)
        case "reasoning":
            return thoughts(events)
        case _:
            [made] = calls_made(events)
            pieces = "".join(event.text for event in events if isinstance(event, CallArguments))
            assert json.loads(pieces) == json.loads(made.arguments)
            return str(json.loads(made.arguments)["a"])


TURNS = {
    "text": Turn(text=f"{FIRST} {SECOND}"),
    "reasoning": Turn(reasoning=f"{FIRST} {SECOND}", text="Yes."),
    "arguments": Turn(calls=[Call("add", '{"a": "' + FIRST + SECOND + '"}')]),
}
GEMINIS = Turn(calls=[Call("add", {"a": FIRST + SECOND})])
"""It sends arguments as an object, whole."""

HALVES = [
    (r"a\ud83d", r"\ude00b", "a\U0001f600b"),
    (r"a\uD83D", r"\uDE00b", "a\U0001f600b"),
    (r"\ud83d\ude00\ud83d", r"\ude00", "\U0001f600\U0001f600"),
    (r"a\ud83d", "b", "a\ufffdb"),
    ("a", r"\ude00b", "a\ufffdb"),
    (r"a\ud83d", r"\ud83db", "a\ufffd\ufffdb"),
    ("a", r"b\ud83d", "ab\ufffd"),
    (r"\ude00", r"\ud83d", "\ufffd\ufffd"),
]


@every_wire
@pytest.mark.parametrize("kind", TURNS)
@pytest.mark.parametrize(("first", "second", "whole"), HALVES)
async def test_half_a_character_became_two_marks_or_an_error(
    handle: str, kind: str, first: str, second: str, whole: str
) -> None:
    turn = GEMINIS if handle == GOOGLE and kind == "arguments" else TURNS[kind]
    events = await answered(handle, halves(handle, turn, first, second))
    assert said_in(kind, events) == whole
    kept = ending(events).provider_response
    assert kept is None or kept.encode()


@every_wire
async def test_half_a_character_in_a_name_and_an_id(handle: str) -> None:
    turn = Turn(calls=[Call(f"add{FIRST}", {}, id=f"one{SECOND}")])
    [made] = calls_made(await answered(handle, halves(handle, turn, r"\ud83d", r"\ude00")))
    assert (made.name, made.call_id) == ("add\ufffd", "one\ufffd")


@every_wire
async def test_half_a_character_in_an_error(handle: str) -> None:
    error = {"error": {"message": FIRST, "code": "server_error"}}
    frame = event({"type": "error", **error}) if handle == ANTHROPIC else data(error)
    with pytest.raises(ModelError) as caught:
        await answered(handle, [frame.replace(b"\\u00c4", b"No \\ud83d.")])
    assert "No \ufffd." in caught.value.message


def marked(frames: list[bytes]) -> list[bytes]:
    return [MARK + b"".join(frames)]


def marked_in_pieces(frames: list[bytes]) -> list[bytes]:
    return [MARK[:1], MARK[1:2], MARK[2:], *frames]


def in_single_bytes(frames: list[bytes]) -> list[bytes]:
    return [bytes([byte]) for byte in b"".join(frames)]


def with_other_line_ends(frames: list[bytes]) -> list[bytes]:
    return [frame.replace(b"\n", b"\r\n") for frame in frames]


def with_old_line_ends(frames: list[bytes]) -> list[bytes]:
    return [frame.replace(b"\n", b"\r") for frame in frames]


def without_spaces(frames: list[bytes]) -> list[bytes]:
    return [frame.replace(b"data: ", b"data:") for frame in frames]


def with_comments(frames: list[bytes]) -> list[bytes]:
    return [part for frame in frames for part in (b": OPENROUTER PROCESSING\n\n", frame)]


def with_ids_and_retries(frames: list[bytes]) -> list[bytes]:
    return [b"retry: 3000\n", *(b"id: 7\n" + frame for frame in frames)]


def in_many_lines(frames: list[bytes]) -> list[bytes]:
    return [frame.replace(b', "', b',\ndata: "') for frame in frames]


def without_last_empty_line(frames: list[bytes]) -> list[bytes]:
    *before, last = frames
    return [*before, last.rstrip(b"\n")]


FRAMINGS: list[Callable[[list[bytes]], list[bytes]]] = [
    marked,
    marked_in_pieces,
    in_single_bytes,
    with_other_line_ends,
    with_old_line_ends,
    without_spaces,
    with_comments,
    with_ids_and_retries,
    in_many_lines,
    without_last_empty_line,
]


@every_wire
@pytest.mark.parametrize("framed", FRAMINGS)
async def test_events_are_read_however_they_are_framed(
    handle: str, framed: Callable[[list[bytes]], list[bytes]]
) -> None:
    events = await answered(handle, framed(up_to_reason(handle, FOUR)))
    assert (text_said(events), ending(events).reason) == ("It is four.", "stop")


@every_wire
@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\u0085", "\x0b"])
async def test_a_character_that_ends_lines_elsewhere_cut_an_event(handle: str, character: str) -> None:
    escaped = json.dumps(f"a{character}b")[1:-1].encode()
    raw = json.dumps(f"a{character}b", ensure_ascii=False)[1:-1].encode()
    frames = [frame.replace(b"four", escaped).replace(escaped, raw) for frame in stream_of(handle, FOUR)]
    assert text_said(await answered(handle, frames)) == f"It is a{character}b."


@every_wire
@pytest.mark.parametrize(
    "content_type",
    ["text/event-stream; charset=utf-8", "text/plain", "application/json", "application/octet-stream", None],
)
async def test_a_stream_under_another_content_type_is_one(handle: str, content_type: str | None) -> None:
    assert text_said(await answered(handle, stream_of(handle, FOUR), content_type=content_type)) == "It is four."


NO_CREDIT = [
    {"error": {"message": "Insufficient credits"}},
    {"error": "Insufficient credits"},
    {"error": {"message": "Insufficient credits", "code": 402}},
    [{"error": {"message": "Insufficient credits", "code": 402, "status": "FAILED_PRECONDITION"}}],
]


@every_wire
@pytest.mark.parametrize("content_type", ["application/json", EVENTS, None])
@pytest.mark.parametrize("body", NO_CREDIT)
async def test_an_error_that_came_as_a_success_was_tried_again(
    handle: str, content_type: str | None, body: object
) -> None:
    with pytest.raises(ModelError, match="Insufficient credits") as caught:
        await answered(handle, [json.dumps(body, indent=1).encode()], "last chunk", content_type=content_type)
    assert (caught.value.error_type, caught.value.retryable) == (ModelErrorType.RATE_LIMIT, False)


@every_wire
@pytest.mark.parametrize(
    ("body", "words", "retryable"),
    [
        (b'{"error": {"message": "The model is overloaded."}}', "The model is overloaded.", True),
        (b'{"error": {"message": "Provider returned error", "code": 502}}', "Provider returned error", True),
        (b'{"error": {"message": "There is no such model."}}', "There is no such model.", False),
        (
            b'{"detail": "Not for you."}',
            "application/json, where a stream of events was asked for: Not for you.",
            False,
        ),
        (b"<html><title>Sign in</title><p>to the <b>proxy</b>", "application/json, .*Sign in to the proxy", False),
        (b"<html>502 Bad Gateway</html>", "502 Bad Gateway", True),
        (b"upstream connect error", "upstream connect error", False),
        (b"", r"nothing \(application/json\)", True),
        (b" \n", r"nothing \(application/json\)", True),
        (b"[]", "application/json", False),
        (b"17", "application/json", False),
    ],
)
async def test_what_is_no_stream_is_named(handle: str, body: bytes, words: str, *, retryable: bool) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        await answered(handle, [body], "last chunk", content_type="application/json")
    assert (caught.value.error_type, caught.value.retryable) == (ModelErrorType.ERROR, retryable)


WHOLE: dict[str, dict[str, Any]] = {
    CHAT: {
        "object": "chat.completion",
        "choices": [
            {
                "message": {
                    "role": "assistant",
                    "content": "It is four.",
                    "tool_calls": [{"id": "one", "function": {"name": "add", "arguments": '{"a": 1}'}}],
                },
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 5},
    },
    RESPONSES: {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": "completed",
        "error": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "output": [
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "It is four.", "annotations": []}],
            },
            {"id": "fc_1", "type": "function_call", "call_id": "one", "name": "add", "arguments": '{"a": 1}'},
        ],
        "usage": {
            "input_tokens": 7,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 12,
        },
    },
    ANTHROPIC: {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [
            {"type": "text", "text": "It is four."},
            {"type": "tool_use", "id": "one", "name": "add", "input": {"a": 1}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 7, "output_tokens": 5},
    },
    GOOGLE: {
        "candidates": [
            {
                "content": {
                    "role": "model",
                    "parts": [
                        {"text": "It is four."},
                        {"functionCall": {"id": "one", "name": "add", "args": {"a": 1}}},
                    ],
                },
                "finishReason": "STOP",
            }
        ],
        "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 5, "totalTokenCount": 12},
    },
}


@every_wire
@pytest.mark.parametrize("content_type", ["application/json", EVENTS, None])
@pytest.mark.parametrize("indent", [None, 2])
async def test_an_answer_that_is_not_streamed_is_taken(
    handle: str, content_type: str | None, indent: int | None
) -> None:
    body = json.dumps(WHOLE[handle], indent=indent).encode()
    events = await answered(handle, [body], "last chunk", content_type=content_type)
    assert text_said(events) == "It is four."
    assert [(made.call_id, made.name, json.loads(made.arguments)) for made in calls_made(events)] == [
        ("one", "add", {"a": 1})
    ]
    end = ending(events)
    assert (end.reason, end.usage.prompt_tokens, end.usage.completion_tokens) == ("tool_calls", 7, 5)


async def test_the_answer_so_far_beside_each_delta_is_not_said_twice() -> None:
    """Perplexity's servers send it."""
    chunks = [
        data({"choices": [{"delta": {"content": piece}, "message": {"content": so_far}, "finish_reason": None}]})
        for piece, so_far in (("It is ", "It is "), ("four.", "It is four."))
    ]
    end = data({"choices": [{"delta": {}, "message": {"content": "It is four."}, "finish_reason": "stop"}]})
    assert text_said(await answered(CHAT, [*chunks, end])) == "It is four."
    with pytest.raises(ModelError, match="no finish reason"):
        await answered(CHAT, chunks, "last chunk")


async def test_a_whole_answer_behind_its_deltas_was_taken_a_second_time() -> None:
    call = {"index": 0, "id": "one", "function": {"name": "add", "arguments": '{"a": 1}'}}
    delta = {"content": "It is four.", "tool_calls": [call]}
    chunks = [
        data({"choices": [{"delta": delta, "finish_reason": None}]}),
        data({"choices": [{"message": delta, "finish_reason": "tool_calls"}]}),
    ]
    events = await answered(CHAT, chunks)
    assert text_said(events) == "It is four."
    assert [made.arguments for made in calls_made(events)] == ['{"a": 1}']


CALLED = {"id": "one", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
ANSWERED = {"role": "assistant", "content": "It is four.", "tool_calls": [CALLED]}


@pytest.mark.parametrize("delta", [{}, {"role": "assistant", "content": ""}, {"content": None, "tool_calls": []}])
async def test_a_whole_answer_beside_an_empty_delta_was_an_empty_answer(delta: dict[str, Any]) -> None:
    """Gateways send it as one body and as one event."""
    said = {"choices": [{"index": 0, "delta": delta, "message": ANSWERED, "finish_reason": "tool_calls"}]}
    one_body, one_event = [json.dumps(said).encode()], [data(said)]
    for frames, kind in ((one_body, "application/json"), (one_event, EVENTS)):
        events = await answered(CHAT, frames, "last chunk", content_type=kind)
        assert (text_said(events), [made.arguments for made in calls_made(events)]) == ("It is four.", ['{"a": 1}'])


async def test_an_answer_in_the_form_of_text_completions_was_an_empty_answer() -> None:
    pieces = [{"index": 0, "text": text, "finish_reason": None} for text in ("It is", " four.")]
    last = {"index": 0, "text": "", "finish_reason": "stop"}
    events = await answered(CHAT, [data({"choices": [choice]}) for choice in (*pieces, last)])
    assert text_said(events) == "It is four."
    beside = [data({"choices": [{**choice, "delta": {"content": choice["text"]}}]}) for choice in (*pieces, last)]
    assert text_said(await answered(CHAT, beside)) == "It is four."


async def test_chunks_in_a_list_are_an_answer_of_gemini() -> None:
    first, last = ({"candidates": [{"content": {"parts": [{"text": text}]}}]} for text in ("It is ", "four."))
    body = json.dumps([first, {**last, "candidates": [{**last["candidates"][0], "finishReason": "STOP"}]}])
    assert text_said(await answered(GOOGLE, [body.encode()], "last chunk", content_type="application/json")) == (
        "It is four."
    )


def error_of(handle: str) -> bytes:
    error = {"message": "It broke down.", "type": "server_error"}
    return {
        CHAT: data({"error": error}),
        RESPONSES: event({"type": "error", "code": "server_error", "message": "It broke down.", "param": None}),
        ANTHROPIC: event({"type": "error", "error": error}),
        GOOGLE: data({"error": {"code": 500, "message": "It broke down.", "status": "INTERNAL"}}),
    }[handle]


BEHIND: list[Callable[[str], bytes]] = [
    error_of,
    lambda _handle: b"data: {not JSON\n\n",
    lambda _handle: b"data: 5\n\n",
    lambda _handle: b'error: {"code": 500, "message": "It broke down."}\n\n',
    lambda _handle: data({"error": {"message": "It broke down."}}),
]


@every_wire
@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("turn", [FOUR, Turn(calls=[Call("add", {"a": 1})])])
async def test_an_error_behind_the_reason_took_a_whole_answer(
    handle: str, behind: Callable[[str], bytes], turn: Turn
) -> None:
    events = await answered(handle, [*up_to_reason(handle, turn), behind(handle)], "silence")
    assert (text_said(events), len(calls_made(events))) == (turn.text, len(turn.calls))


@every_wire
async def test_an_error_in_front_of_the_reason_is_one(handle: str) -> None:
    frames = stream_of(handle, Turn(text="It is four.", finish=None))
    with pytest.raises(ModelError, match="It broke down"):
        await answered(handle, [*frames, error_of(handle), *up_to_reason(handle, FOUR)[-1:]])


async def test_an_error_in_a_field_of_its_own_is_one() -> None:
    """Of llama.cpp's server."""
    with pytest.raises(ModelError, match="It broke down"):
        await answered(CHAT, [b'error: {"code": 500, "message": "It broke down."}\n\n'])


async def test_the_words_behind_a_reason_that_is_an_error_are_kept() -> None:
    end = data({"choices": [{"delta": {}, "finish_reason": "error"}]})
    with pytest.raises(ModelError, match="It broke down"):
        await answered(CHAT, [*stream_of(CHAT, FOUR)[:2], end, error_of(CHAT)])


@every_wire
async def test_a_server_pinged_for_ever_behind_its_answer(handle: str) -> None:
    events = await answered_for_ever(handle, up_to_reason(handle, FOUR), b": ping\n\n")
    assert text_said(events) == "It is four."


@pytest.mark.parametrize("handle", [CHAT, ANTHROPIC, GOOGLE])
async def test_so_did_one_with_events(handle: str) -> None:
    pings: dict[str, dict[str, Any]] = {
        CHAT: {"choices": []},
        ANTHROPIC: {"type": "ping"},
        GOOGLE: {"candidates": []},
    }
    events = await answered_for_ever(handle, up_to_reason(handle, FOUR), data(pings[handle]))
    assert text_said(events) == "It is four."


@pytest.mark.parametrize(("handle", "none"), [(CHAT, "null"), (CHAT, "none"), (GOOGLE, "FINISH_REASON_UNSPECIFIED")])
async def test_a_word_for_no_reason_was_one(handle: str, none: str) -> None:
    word = "finishReason" if handle == GOOGLE else "finish_reason"

    def unended(text: str) -> bytes:
        said = {"content": {"parts": [{"text": text}]}} if handle == GOOGLE else {"delta": {"content": text}}
        key = "candidates" if handle == GOOGLE else "choices"
        return data({key: [{**said, word: none}]})

    with pytest.raises(ModelError):
        await answered(handle, [unended("It is "), unended("four.")])


@pytest.mark.parametrize("handle", [CHAT, GOOGLE])
async def test_an_answer_goes_on_behind_a_reason_that_comes_with_every_event(handle: str) -> None:
    def ended(text: str) -> bytes:
        if handle == GOOGLE:
            return data({"candidates": [{"content": {"parts": [{"text": text}]}, "finishReason": "STOP"}]})
        return data({"choices": [{"delta": {"content": text}, "finish_reason": "stop"}]})

    assert text_said(await answered(handle, [ended(text) for text in ("It ", "is ", "four.")])) == "It is four."


def counts(handle: str, prompt: int, completion: int) -> dict[str, Any]:
    match handle:
        case "openai/gpt-4o-mini":
            return {"usage": {"prompt_tokens": prompt, "completion_tokens": completion}}
        case "openai/gpt-5":
            details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
            total = prompt + completion
            return {"usage": {"input_tokens": prompt, "output_tokens": completion, "total_tokens": total, **details}}
        case "google_ai/gemini-2.5-flash":
            return {"usageMetadata": {"promptTokenCount": prompt, "candidatesTokenCount": completion}}
        case _:
            return {"usage": {"input_tokens": prompt, "output_tokens": completion}}


def counted_early(handle: str) -> list[bytes]:
    """A stream with counts in events before the last."""
    frames = stream_of(handle, Turn(text="It is four.", usage=False))
    frames = frames[:-1] if handle in (CHAT, ANTHROPIC) else frames  # they end with an event that only says so
    early, last = counts(handle, 100, 1), counts(handle, 100, 3)
    if handle == RESPONSES:
        at = [{"type": f"response.{kind}", "sequence_number": 0} for kind in ("created", "in_progress", "queued")]
        begun = json.loads(frames[0].partition(b"data: ")[2])["response"]
        ended = json.loads(frames[-1].partition(b"data: ")[2])
        return [
            *(event({**kind, "response": {**begun, **early}}) for kind in at),
            *frames[2:-1],
            event({**ended, "response": {**ended["response"], **last}}),
        ]
    if handle == ANTHROPIC:
        return [
            *frames[:-1],
            *(event({"type": "message_delta", "delta": {}, **each}) for each in (early, early)),
            frames[-1].replace(b'"usage": {', b'"unused": {'),
            event({"type": "message_delta", "delta": {}, **last}),
        ]
    none: dict[str, Any] = {"candidates": []} if handle == GOOGLE else {"choices": []}
    return [data({**none, **early}), data({**none, **early}), *frames, data({**none, **last})]


@every_wire
async def test_counts_that_came_before_the_last_ones_were_added(handle: str) -> None:
    usage = ending(await answered(handle, counted_early(handle), "last chunk")).usage
    assert usage.completion_tokens == 3
    assert usage.prompt_tokens - usage.cached_input_tokens - usage.cache_write_tokens in (100, 97)


async def test_counts_that_came_before_the_last_event_alone_count() -> None:
    frames = counted_early(RESPONSES)
    frames[-1] = frames[-1].replace(b'"usage"', b'"unused"')
    usage = ending(await answered(RESPONSES, frames)).usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (100, 1)
