"""Google's Gemini API, streamed with `alt=sse`."""

from collections.abc import Iterator
from typing import Any

from tests.kit.model_server.frames import data
from tests.kit.model_server.turn import MESSAGES, ErrorKind, Frame, Turn, words

_STATUSES = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED"}


def frames(turn: Turn, body: dict[str, Any], answer: int) -> Iterator[Frame]:
    """The stream of one answer. This protocol has no opening event, and sends each call in one piece."""

    def chunk(part: dict[str, Any]) -> bytes:
        return data({**_envelope(answer), "candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}]})

    for word in words(turn.reasoning):
        yield Frame("piece", chunk({"text": word, "thought": True}))
    for word in words(turn.text):
        yield Frame("piece", chunk({"text": word}))
    for index, call in enumerate(turn.calls):
        arguments = {} if isinstance(call.arguments, str) else call.arguments
        function_call = {"name": call.name, "args": arguments} | ({"id": call.id} if call.id else {})
        signed = {"thoughtSignature": turn.signature} if index == 0 and turn.reasoning else {}
        yield Frame("piece", chunk({"functionCall": function_call, **signed}))
    if turn.finish is None:
        return
    reason = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}.get(turn.finish, "STOP")
    ending = {"content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": reason, "index": 0}
    usage = {"usageMetadata": _usage(turn)} if turn.usage else {}
    yield Frame("closing", data({**_envelope(answer), "candidates": [ending], **usage}))


def error_body(kind: ErrorKind, status: int, message: str | None) -> dict[str, Any]:
    """The body of an HTTP error."""
    overflow = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
    default = "UNAVAILABLE" if kind == "overloaded" else "INTERNAL"
    return {
        "error": {
            "code": status,
            "message": message or MESSAGES.get(kind, overflow),
            "status": _STATUSES.get(status, default),
        }
    }


def error_event(message: str) -> bytes:
    """An error inside the stream."""
    return data({"error": {"code": 500, "message": message, "status": "INTERNAL"}})


def _envelope(answer: int) -> dict[str, Any]:
    return {"responseId": f"gemini-{answer:04d}", "modelVersion": "gemini-test"}


def _usage(turn: Turn) -> dict[str, Any]:
    return {
        "promptTokenCount": turn.prompt_tokens,
        "cachedContentTokenCount": turn.cached_tokens,
        "candidatesTokenCount": turn.output_tokens - turn.reasoning_tokens,
        "thoughtsTokenCount": turn.reasoning_tokens,
        "totalTokenCount": turn.prompt_tokens + turn.output_tokens,
    }
