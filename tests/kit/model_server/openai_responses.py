"""OpenAI's Responses API, streamed."""

import itertools
from collections.abc import Iterator
from typing import Any

from tests.kit.model_server.frames import arguments_text, call_id, event
from tests.kit.model_server.openai_chat import error_body as chat_error_body
from tests.kit.model_server.turn import Call, ErrorKind, Frame, Turn, argument_pieces, words


def frames(turn: Turn, body: dict[str, Any], answer: int) -> Iterator[Frame]:
    """The stream of one answer."""
    numbers = itertools.count()

    def numbered(kind: str, payload: dict[str, Any]) -> bytes:
        return event({"type": kind, "sequence_number": next(numbers), **payload})

    started = _response(body, answer, "in_progress", [], None)
    yield Frame("opening", numbered("response.created", {"response": started}))
    yield Frame("opening", numbered("response.in_progress", {"response": started}))
    items: list[dict[str, Any]] = []
    parts = [_reasoning(turn, answer)] if turn.reasoning else []
    parts += [_message(turn, answer)] if turn.text else []
    parts += [_call(call, answer, index) for index, call in enumerate(turn.calls)]
    for place, part in enumerate(parts):
        for frame_kind, kind, payload in part:
            if kind == "response.output_item.done":
                items.append(payload["item"])
            yield Frame(frame_kind, numbered(kind, {"output_index": place, **payload}))
    if turn.finish is None:
        return
    status = "completed" if turn.finish == "stop" else "incomplete"
    why = None if turn.finish == "stop" else {"length": "max_output_tokens"}.get(turn.finish, turn.finish)
    ended = _response(body, answer, status, items, why) | ({"usage": _usage(turn)} if turn.usage else {})
    yield Frame("closing", numbered(f"response.{status}", {"response": ended}))


def error_body(kind: ErrorKind, status: int, message: str | None) -> dict[str, Any]:
    """The body of an HTTP error: the same as of Chat Completions."""
    return chat_error_body(kind, status, message)


def error_event(message: str) -> bytes:
    """An error inside the stream."""
    return event({"type": "error", "sequence_number": 99, "code": "server_error", "message": message, "param": None})


_Events = Iterator[tuple[Any, str, dict[str, Any]]]


def _reasoning(turn: Turn, answer: int) -> _Events:
    item: dict[str, Any] = {"id": f"rs_{answer:04d}", "type": "reasoning", "summary": []}
    place: dict[str, Any] = {"item_id": item["id"], "summary_index": 0}
    yield "opening", "response.output_item.added", {"item": item}
    empty: dict[str, Any] = {"type": "summary_text", "text": ""}
    yield "opening", "response.reasoning_summary_part.added", {**place, "part": empty}
    for word in words(turn.reasoning):
        yield "piece", "response.reasoning_summary_text.delta", {**place, "delta": word}
    whole: dict[str, Any] = {"type": "summary_text", "text": turn.reasoning}
    yield "closing", "response.reasoning_summary_text.done", {**place, "text": turn.reasoning}
    yield "closing", "response.reasoning_summary_part.done", {**place, "part": whole}
    done = {**item, "summary": [whole], "encrypted_content": turn.signature}
    yield "closing", "response.output_item.done", {"item": done}


def _message(turn: Turn, answer: int) -> _Events:
    item: dict[str, Any] = {
        "id": f"msg_{answer:04d}",
        "type": "message",
        "role": "assistant",
        "status": "in_progress",
        "content": [],
    }
    place: dict[str, Any] = {"item_id": item["id"], "content_index": 0}
    empty: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    yield "opening", "response.output_item.added", {"item": item}
    yield "opening", "response.content_part.added", {**place, "part": empty}
    for word in words(turn.text):
        yield "piece", "response.output_text.delta", {**place, "delta": word, "logprobs": []}
    whole: dict[str, Any] = {**empty, "text": turn.text}
    yield "closing", "response.output_text.done", {**place, "text": turn.text, "logprobs": []}
    yield "closing", "response.content_part.done", {**place, "part": whole}
    yield "closing", "response.output_item.done", {"item": {**item, "status": "completed", "content": [whole]}}


def _call(call: Call, answer: int, index: int) -> _Events:
    item: dict[str, Any] = {
        "id": f"fc_{answer:04d}{index:02d}",
        "type": "function_call",
        "status": "in_progress",
        "call_id": call_id(call, "call", answer, index),
        "name": call.name,
        "arguments": "",
    }
    place: dict[str, Any] = {"item_id": item["id"]}
    arguments = arguments_text(call)
    yield "piece", "response.output_item.added", {"item": item}
    for piece in argument_pieces(arguments):
        yield "piece", "response.function_call_arguments.delta", {**place, "delta": piece}
    yield "closing", "response.function_call_arguments.done", {**place, "arguments": arguments, "name": call.name}
    yield "closing", "response.output_item.done", {"item": {**item, "status": "completed", "arguments": arguments}}


def _response(
    body: dict[str, Any], answer: int, status: str, output: list[dict[str, Any]], why_incomplete: str | None
) -> dict[str, Any]:
    return {
        "id": f"resp_{answer:04d}",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": status,
        "model": body.get("model"),
        "output": output,
        "error": None,
        "incomplete_details": {"reason": why_incomplete} if why_incomplete else None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
    }


def _usage(turn: Turn) -> dict[str, Any]:
    return {
        "input_tokens": turn.prompt_tokens,
        "input_tokens_details": {"cached_tokens": turn.cached_tokens},
        "output_tokens": turn.output_tokens,
        "output_tokens_details": {"reasoning_tokens": turn.reasoning_tokens},
        "total_tokens": turn.prompt_tokens + turn.output_tokens,
    }
