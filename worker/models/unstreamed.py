"""What a server has sent in place of the stream of events that it was asked for."""

import re
from typing import Any, cast

from shared.domain.errors import ModelError, ModelErrorType
from worker.models.characters import whole_characters
from worker.models.decoding import is_json, read_json
from worker.models.model_errors import message_in, stream_error

_ANSWERS = ("choices", "candidates", "output", "content")
"""Fields of which a whole answer has one: Chat Completions', Gemini's, Responses', and Anthropic's."""

_PASSES = re.compile(
    r"overload|capacity|busy|try again|temporar|unavailable|time[d ]?-?out|bad gateway|internal|rate limit",
    re.IGNORECASE,
)
"""Words of errors that another try may not meet again."""

_MARKUP = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)

_EXCERPT = 200
"""Characters of a text that nobody can read as an answer."""


def is_whole(said: bytes | bytearray | None) -> bool:
    """Whether this, which came in place of a stream, is whole, though its connection broke before its end was said."""
    text = bytes(said or b"").strip()
    return text[:1] in (b"{", b"[") and is_json(text)


def unstreamed_answers(body: bytes, content_type: str, provider: str = "") -> list[dict[str, Any]]:
    """The whole answers in a body without events; none when it is a stream in which nothing came. Raises `ModelError`
    with the server's words for an error, and with the content type for what is something else."""
    text = body.strip()
    if text[:1] not in (b"{", b"[", b"<") and text and content_type.startswith("text/event-stream"):
        return []
    named = content_type.partition(";")[0].strip() or "no content type"
    if not text:
        raise ModelError(
            ModelErrorType.ERROR,
            f"The server answered with nothing ({named}), where a stream of events was asked for.",
            retryable=True,
        )
    try:
        found = read_json(text)
    except (ValueError, RecursionError):
        raise _unreadable(named, text.decode(errors="replace")) from None
    parts = cast("list[object]", found) if isinstance(found, list) else [found]
    answers = [cast("dict[str, Any]", part) for part in parts if isinstance(part, dict)]
    for answer in answers:
        if answer.get("error"):
            raise _refusal(answer["error"], provider)
        if not any(isinstance(answer.get(field), list) for field in _ANSWERS):
            raise _unreadable(named, message_in(answer) or text.decode(errors="replace"))
    if not answers:
        raise _unreadable(named, text.decode(errors="replace"))
    return answers


def _refusal(error: object, provider: str) -> ModelError:
    """An error in a response that says it is none. Without a code that is known, only its words say whether another try
    may help."""
    refusal = stream_error(error, provider=provider)
    if refusal.error_type is not ModelErrorType.ERROR or refusal.status is not None or _PASSES.search(refusal.message):
        return refusal
    return ModelError(refusal.error_type, refusal.message, retryable=False)


def _unreadable(content_type: str, text: str) -> ModelError:
    words = whole_characters(" ".join(_MARKUP.sub(" ", text).split())[:_EXCERPT])
    return ModelError(
        ModelErrorType.ERROR,
        f"The server answered with {content_type}, where a stream of events was asked for: {words or 'no text'}",
        retryable=_PASSES.search(words) is not None,
    )
