"""OpenAI's Chat Completions, streamed."""

from collections.abc import Iterator
from typing import Any

from tests.kit.model_server.frames import arguments_text, call_id, data
from tests.kit.model_server.turn import MESSAGES, ErrorKind, Frame, Turn, argument_pieces, words

DONE = b"data: [DONE]\n\n"


def frames(turn: Turn, body: dict[str, Any], answer: int) -> Iterator[Frame]:
    """The stream of one answer."""

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return data({**_envelope(body, answer), "choices": [choice]})

    yield Frame("opening", chunk({"role": "assistant", "content": ""}))
    for word in words(turn.reasoning):
        yield Frame("piece", chunk({"reasoning_content": word}))
    for word in words(turn.text):
        yield Frame("piece", chunk({"content": word}))
    for index, call in enumerate(turn.calls):
        begun = {"index": index, "id": call_id(call, "call", answer, index), "type": "function"}
        yield Frame("piece", chunk({"tool_calls": [{**begun, "function": {"name": call.name, "arguments": ""}}]}))
        for piece in argument_pieces(arguments_text(call)):
            yield Frame("piece", chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}))
    if turn.finish is not None:
        reason = "tool_calls" if turn.calls and turn.finish == "stop" else turn.finish
        yield Frame("closing", chunk({}, reason))
        if turn.usage:
            yield Frame("closing", data({**_envelope(body, answer), "choices": [], "usage": _usage(turn)}))
        yield Frame("closing", DONE)


def whole(turn: Turn, body: dict[str, Any], answer: int) -> dict[str, Any]:
    """The same answer for a request without `stream`."""
    calls = [
        {
            "id": call_id(call, "call", answer, index),
            "type": "function",
            "function": {"name": call.name, "arguments": arguments_text(call)},
        }
        for index, call in enumerate(turn.calls)
    ]
    message = {"role": "assistant", "content": turn.text or None, **({"tool_calls": calls} if calls else {})}
    reason = "tool_calls" if calls else turn.finish
    return {
        **_envelope(body, answer),
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
        "usage": _usage(turn),
    }


def error_body(kind: ErrorKind, status: int, message: str | None) -> dict[str, Any]:
    """The body of an HTTP error."""
    codes = {"rate_limit": "rate_limit_exceeded", "auth": "invalid_api_key", "context": "context_length_exceeded"}
    types = {"rate_limit": "requests", "server": "server_error", "overloaded": "server_error"}
    overflow = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."
    return {
        "error": {
            "message": message or MESSAGES.get(kind, overflow),
            "type": types.get(kind, "invalid_request_error"),
            "param": None,
            "code": codes.get(kind),
        }
    }


def error_event(message: str) -> bytes:
    """An error inside the stream."""
    return data({"error": {"message": message, "type": "server_error", "param": None, "code": None}})


def _envelope(body: dict[str, Any], answer: int) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answer:04d}",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": body.get("model"),
    }


def _usage(turn: Turn) -> dict[str, Any]:
    return {
        "prompt_tokens": turn.prompt_tokens,
        "completion_tokens": turn.output_tokens,
        "total_tokens": turn.prompt_tokens + turn.output_tokens,
        "prompt_tokens_details": {"cached_tokens": turn.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": turn.reasoning_tokens},
    }
