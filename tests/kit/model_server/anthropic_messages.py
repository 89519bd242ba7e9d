"""Anthropic's Messages API, streamed."""

from collections.abc import Iterator
from typing import Any

from tests.kit.model_server.frames import arguments_text, call_id, event
from tests.kit.model_server.turn import MESSAGES, ErrorKind, Frame, Turn, argument_pieces, words


def frames(turn: Turn, body: dict[str, Any], answer: int) -> Iterator[Frame]:
    """The stream of one answer."""
    message: dict[str, Any] = {
        "id": f"msg_{answer:04d}",
        "type": "message",
        "role": "assistant",
        "model": body.get("model"),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": turn.prompt_tokens,
            "cache_read_input_tokens": turn.cached_tokens,
            "cache_creation_input_tokens": turn.written_tokens,
            "output_tokens": 1,
        },
    }
    yield Frame("opening", event({"type": "message_start", "message": message}))
    yield Frame("opening", event({"type": "ping"}))
    for place, (start, deltas) in enumerate(_blocks(turn, answer)):
        yield Frame("opening", event({"type": "content_block_start", "index": place, "content_block": start}))
        for delta in deltas:
            kind = "closing" if delta["type"] == "signature_delta" else "piece"
            yield Frame(kind, event({"type": "content_block_delta", "index": place, "delta": delta}))
        yield Frame("closing", event({"type": "content_block_stop", "index": place}))
    if turn.finish is None:
        return
    reason = {"length": "max_tokens", "content_filter": "refusal"}.get(turn.finish)
    delta = {"stop_reason": reason or ("tool_use" if turn.calls else "end_turn"), "stop_sequence": None}
    usage = {"output_tokens": turn.output_tokens}
    yield Frame("closing", event({"type": "message_delta", "delta": delta, "usage": usage}))
    yield Frame("closing", event({"type": "message_stop"}))


def error_body(kind: ErrorKind, status: int, message: str | None) -> dict[str, Any]:
    """The body of an HTTP error."""
    types = {
        "rate_limit": "rate_limit_error",
        "auth": "authentication_error",
        "server": "api_error",
        "overloaded": "overloaded_error",
        "not_found": "not_found_error",
    }
    text = message or MESSAGES.get(kind, "prompt is too long: 210000 tokens > 200000 maximum")
    return {"type": "error", "error": {"type": types.get(kind, "invalid_request_error"), "message": text}}


def error_event(message: str) -> bytes:
    """An error inside the stream."""
    return event({"type": "error", "error": {"type": "overloaded_error", "message": message}})


def _blocks(turn: Turn, answer: int) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """The content blocks, each with its first event and its deltas."""
    if turn.reasoning:
        thinking: list[dict[str, Any]] = [
            {"type": "thinking_delta", "thinking": word} for word in words(turn.reasoning)
        ]
        signed = {"type": "signature_delta", "signature": turn.signature}
        yield {"type": "thinking", "thinking": "", "signature": ""}, [*thinking, signed]
    if turn.text:
        yield {"type": "text", "text": ""}, [{"type": "text_delta", "text": word} for word in words(turn.text)]
    for index, call in enumerate(turn.calls):
        pieces = ["", *argument_pieces(arguments_text(call))]
        begun: dict[str, Any] = {
            "type": "tool_use",
            "id": call_id(call, "toolu", answer, index),
            "name": call.name,
            "input": {},
        }
        yield begun, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
