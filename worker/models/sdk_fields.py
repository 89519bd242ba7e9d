"""The fields of one event in the form that the SDKs can read. No I/O.

Servers that imitate OpenAI's Responses API or Gemini's send numbers as ids, texts as numbers, null for a list, and ids
that change from event to event. One such field makes an SDK refuse the whole answer, or take one call for two.
"""

import json
from typing import Any, cast

import msgspec
import msgspec.inspect

from worker.models.special_tokens import NOT_READ, fitted, read_json

ENDS = ("response.completed", "response.incomplete")

_BEGINS = ("response.created", "response.queued", "response.in_progress")
"""The event at the end of an answer repeats the contents of these."""

_COMPLETED = (
    *(b"response.output_item.", b"arguments.done", b"part.added", b'"parts"', b"responseId"),
    *(kind.encode() for kind in (*_BEGINS, *ENDS, "response.failed")),
)
"""Words in events from which a server may have omitted fields. In other events such a field would be null."""

_ADDED = "response.output_item.added"

_BARE_RESPONSE: dict[str, Any] = {"id": "", "status": None, "model": "", "output": [], "incomplete_details": None}
"""The fields that the SDK requires in a response."""


class _Item(msgspec.Struct):
    id: str | None = None
    call_id: str | None = None
    name: str | None = None


class _Response(msgspec.Struct):
    created_at: float | None = None
    status: str | None = None
    output: list[dict[str, Any]] | None = None
    incomplete_details: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None


class _Part(msgspec.Struct, rename="camel"):
    text: str | None = None


class _Content(msgspec.Struct):
    role: str | None = None
    parts: list[_Part] | None = None


class _Candidate(msgspec.Struct, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None
    index: int | None = None


class _Counts(msgspec.Struct, rename="camel"):
    prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    total_token_count: int | None = None


class GeminiEvent(msgspec.Struct, rename="camel"):
    """One of Gemini's events."""

    candidates: list[_Candidate] | None = None
    response_id: str | None = None
    model_version: str | None = None
    usage_metadata: _Counts | None = None


class _Responses(msgspec.Struct):
    type: str | None = None
    output_index: int | None = None
    item_id: str | None = None
    content_index: int | None = None
    summary_index: int | None = None
    delta: str | None = None
    logprobs: list[dict[str, Any]] | None = None
    item: _Item | None = None
    response: _Response | None = None


_GEMINI, _RESPONSES = (msgspec.inspect.type_info(form) for form in (GeminiEvent, _Responses))
_OF_GEMINI = frozenset({"candidates", "promptFeedback", "usageMetadata"})
_READ_GEMINI, _READ_RESPONSES = msgspec.json.Decoder(GeminiEvent), msgspec.json.Decoder(_Responses)


class ItemIds:
    """The ids of an answer's items in the Responses API. An event with an unknown id belongs to the item at the event's
    place; an item without an id of its own gets one."""

    def __init__(self) -> None:
        self._ours: dict[str, str] = {}
        self._at: dict[int | None, str] = {}
        self._count = 0

    def begun(self, item_id: str | None, place: int | None) -> str:
        """The id of a new item."""
        self._count += 1
        ours = item_id if item_id and item_id not in self._ours else f"item_{self._count}"
        if item_id:
            self._ours[item_id] = ours
        self._at[place] = ours
        return ours

    def named(self, item_id: str | None, place: int | None) -> str | None:
        """The id of the item to which an event belongs."""
        known = self._ours.get(item_id) if item_id else None
        return known or self._at.get(place, item_id)


class SdkFields:
    """The events of one answer, completed with the fields that the SDKs require."""

    def __init__(self) -> None:
        self._response_id: Any = None
        """Gemini's id in the first event: if the id changes, the SDK considers the answer interrupted."""
        self._ids = ItemIds()

    def completed(self, data: bytes) -> bytes:
        """Returns the event in a form that the SDKs can read; nothing for an empty one. `data` is JSON."""
        if not (b"null" in data or any(word in data for word in _COMPLETED)) and self._is_sound(data):
            return data
        found = read_json(data)
        if not isinstance(found, dict):
            return b""  # some servers send null, an empty list or a text to keep the connection open
        event = cast("dict[str, Any]", found)
        is_geminis = not _OF_GEMINI.isdisjoint(event)
        completed = self._of_gemini(event) if is_geminis else self._of_responses(event)
        if completed is None:
            return b""
        return data if completed == event else json.dumps(completed).encode()

    def _is_sound(self, data: bytes) -> bool:
        """Whether each field has the type that the SDK expects, and each item a known id. Most events pass, and are
        not rewritten."""
        try:
            event = _READ_RESPONSES.decode(data)
            if event.type is None:
                _READ_GEMINI.decode(data)
                return True
        except (*NOT_READ, RecursionError):
            return False
        is_whole = event.delta is not None or not event.type.endswith(".delta")
        return is_whole and self._ids.named(event.item_id, event.output_index) == event.item_id

    def _of_gemini(self, event: dict[str, Any]) -> dict[str, Any]:
        fitting = fitted(event, _GEMINI)
        if _lacks_count(event.get("usageMetadata"), fitting.get("usageMetadata")):
            del fitting["usageMetadata"]  # missing counts are estimated
        self._response_id = self._response_id or fitting.get("responseId")
        if self._response_id:
            fitting["responseId"] = self._response_id
        candidates = fitting.get("candidates")
        if isinstance(candidates, list):
            fitting["candidates"] = [_with_full_parts(one) for one in cast("list[object]", candidates)]
        return fitting

    def _of_responses(self, event: dict[str, Any]) -> dict[str, Any] | None:
        kind = event.get("type")
        fitting = fitted(event, _RESPONSES)
        if kind in _BEGINS and not _object(fitting.get("response")):
            return None
        return _with_texts(self._with_ids(fitting))

    def _with_ids(self, event: dict[str, Any]) -> dict[str, Any]:
        place, item = event.get("output_index"), event.get("item")
        if isinstance(item, dict):
            item = cast("dict[str, Any]", item)
            find = self._ids.begun if event.get("type") == _ADDED else self._ids.named
            return {**event, "item": {**item, "id": find(item.get("id"), place)}}
        if "item_id" in event or place is not None:
            return {**event, "item_id": self._ids.named(event.get("item_id"), place)}
        return event


def _lacks_count(given: object, fitting: object) -> bool:
    """Whether a Gemini count is not a number."""
    if not isinstance(fitting, dict):
        return given is not None
    counts = cast("dict[str, object]", fitting)
    return any(one is not None and counts.get(name) is None for name, one in _object(given).items())


def _with_args(part: object) -> object:
    """One of Gemini's parts with the arguments of its call as an object. Some servers send them as text, and an empty
    object as an empty list."""
    call = _object(_object(part).get("functionCall"))
    if "args" not in call:
        return part
    return {**_object(part), "functionCall": {**call, "args": _as_object(call["args"])}}


def _as_object(args: object) -> object:
    try:
        read: object = read_json(args.encode("utf-8", "surrogatepass")) if isinstance(args, str) else args
    except (ValueError, RecursionError):
        return args
    return {} if read == [] else read


def _with_full_parts(candidate: object) -> object:
    """A candidate without empty parts."""
    content = _object(_object(candidate).get("content"))
    parts = content.get("parts")
    if not isinstance(parts, list):
        return candidate
    full = [_with_args(part) for part in cast("list[object]", parts) if not _is_empty(part)]
    return {**_object(candidate), "content": {**content, "parts": full}}


def _is_empty(part: object) -> bool:
    """Whether a part contains nothing but a mark of its kind."""
    if not isinstance(part, dict):
        return False
    return all(value is None or name == "thought" for name, value in cast("dict[str, object]", part).items())


def _with_texts(event: dict[str, Any]) -> dict[str, Any]:
    """An event of the Responses protocol with empty texts and lists for the fields that its server has omitted."""
    kind, part, item = event.get("type"), _object(event.get("part")), _object(event.get("item"))
    if str(kind).endswith(".delta") and event.get("delta") is None:
        event = {**event, "delta": ""}
    if kind == "response.reasoning_summary_part.added" and part and part.get("text") is None:
        return {**event, "part": {**part, "text": ""}}
    if item.get("type") == "function_call":
        return {**event, "item": {**item, "arguments": _arguments(item.get("arguments"), kind)}}
    if kind == "response.function_call_arguments.done":
        return {**event, "arguments": _arguments(event.get("arguments"), kind)}
    if kind in (*ENDS, "response.failed"):
        response = _object(event.get("response"))
        bare = {name: one for name, one in _BARE_RESPONSE.items() if response.get(name) is None}
        is_list = isinstance(response.get("output"), list)
        return {**event, "response": {**response, **bare, **({} if is_list else {"output": []})}}
    if "logprobs" in event and not isinstance(event["logprobs"], list):
        return {**event, "logprobs": []}
    return event


def _arguments(given: object, kind: object) -> str:
    """The arguments of a call as text. A new call has none yet: they follow in pieces."""
    if isinstance(given, str):
        return given
    return json.dumps(given) if isinstance(given, dict) and kind != _ADDED else ""


def _object(value: object) -> dict[str, Any]:
    """Returns the value if it is an object, otherwise an empty object."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
