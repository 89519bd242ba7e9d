"""An answer in the form in which it is stored when its provider wants some of it back: signatures, ids, reasoning.

The form is the JSON of pydantic-ai's `ModelResponse`, whatever gave the answer: an agent that changes its model goes on
with its history over every wire, and two of them are pydantic-ai's.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from worker.models.turns import Answered, AnswerPart, Called, Reasoned, Said


class _Text(msgspec.Struct, tag_field="part_kind", tag="text"):
    content: str


class _Thinking(msgspec.Struct, tag_field="part_kind", tag="thinking"):
    content: str
    id: str | None = None
    signature: str | None = None
    provider_name: str | None = None


class _ToolCall(msgspec.Struct, tag_field="part_kind", tag="tool-call"):
    tool_name: str
    args: str | dict[str, Any] | None
    tool_call_id: str
    provider_name: str | None = None
    provider_details: dict[str, Any] | None = None


_Part = _Text | _Thinking | _ToolCall


class _OtherPart(msgspec.Struct):
    """Of any kind: what comes from wires that know more kinds than these is theirs to read."""

    part_kind: str


class _Response(msgspec.Struct, kw_only=True, tag_field="kind", tag="response"):
    parts: list[msgspec.Raw]
    provider_name: str | None = None
    provider_details: dict[str, Any] | None = None


_READ_PARTS: dict[str, msgspec.json.Decoder[_Part]] = {
    "text": msgspec.json.Decoder(_Text),
    "thinking": msgspec.json.Decoder(_Thinking),
    "tool-call": msgspec.json.Decoder(_ToolCall),
}


class Given(msgspec.Struct, frozen=True):
    """Who gave an answer, and what they said of it."""

    provider_name: str
    model: str
    response_id: str | None
    reason: str
    details: dict[str, Any] | None = None
    """What the provider added to the answer as a whole, and wants to be reminded of."""


def write_kept(parts: Sequence[AnswerPart], given: Given) -> str | None:
    """The answer in its stored form; None if nobody wants any of it back, as text and calls say it all."""
    if all(isinstance(part, Said) or (isinstance(part, Called) and not part.details) for part in parts):
        return None
    written = {
        "kind": "response",
        "parts": [_written(part, given.provider_name) for part in parts],
        "model_name": given.model,
        "provider_name": given.provider_name,
        "provider_details": given.details,
        "provider_response_id": given.response_id,
        "finish_reason": given.reason,
    }
    try:
        return msgspec.json.encode([written]).decode()
    except UnicodeEncodeError:
        # Half a character (see `characters.py`): what cannot be kept unchanged is rebuilt from text and calls.
        return None


def read_kept(stored: str, provider_name: str) -> Answered | None:
    """The answer as turns know it, or None when it is another provider's or of an unknown form."""
    try:
        [answer] = msgspec.json.decode(stored, type=list[_Response])
        if answer.provider_name != provider_name:
            return None
        found = [_read(part) for part in answer.parts]
    except (ValueError, UnicodeEncodeError):
        return None
    return Answered([part for part in found if part is not None], stored, answer.provider_details)


def _read(raw: msgspec.Raw) -> AnswerPart | None:
    kind = msgspec.json.decode(raw, type=_OtherPart).part_kind
    decoder = _READ_PARTS.get(kind)
    if decoder is None:
        return None
    match decoder.decode(raw):
        case _Text(content=text):
            return Said(text)
        case _Thinking(content=text, id=name, signature=signature):
            return Reasoned(text, name, signature)
        case _ToolCall(tool_name=name, args=arguments, tool_call_id=call_id, provider_details=details):
            written = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode()
            return Called(call_id, name, written, details)


def _written(part: AnswerPart, provider_name: str) -> _Part:
    match part:
        case Said(text=text):
            return _Text(text)
        case Reasoned(text=text, id=name, signature=signature):
            return _Thinking(text, name, signature, provider_name)
        case Called(id=call_id, name=name, arguments=arguments, details=details):
            return _ToolCall(name, arguments, call_id, provider_name if details else None, details)
