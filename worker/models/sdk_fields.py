"""The fields of one event in the form that the SDKs can read. No I/O.

Servers that imitate OpenAI's Responses API or Gemini's send numbers as ids, texts as numbers, null for a list, and ids
that change from event to event. One such field makes an SDK refuse the whole answer, or take one call for two. Others
send a text only as a whole, which the SDK does not read, or arguments with their call and again in pieces.
"""

import json
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import msgspec.inspect

from worker.models.special_tokens import NOT_READ, fitted, is_json, read_json

ENDS = ("response.completed", "response.incomplete")

_BEGINS = ("response.created", "response.queued", "response.in_progress")
"""The event at the end of an answer repeats the contents of these."""

_COMPLETED = (
    *(b"response.output_item.", b"arguments.done", b"part.added", b'"parts"', b"responseId"),
    *(kind.encode() for kind in (*_BEGINS, *ENDS, "response.failed")),
)
"""Words in events from which a server may have omitted fields. In other events such a field would be null."""

_ADDED, _DONE = "response.output_item.added", "response.output_item.done"

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
        self._forms: dict[str, str] = {}
        """For each kind of text and item, the type of the first event with one. Events of other types repeat them."""
        self._whole_calls: set[str | None] = set()
        """The ids of the calls that came with all of their arguments."""

    def completed(self, data: bytes) -> list[bytes]:
        """Returns the event in a form that the SDKs can read, with the events that it replaces; none for an empty one.
        `data` is JSON."""
        if not (b"null" in data or any(word in data for word in _COMPLETED)) and self._is_sound(data):
            return [data]
        found = read_json(data)
        if not isinstance(found, dict):
            return []  # some servers send null, an empty list or a text to keep the connection open
        event = cast("dict[str, Any]", found)
        is_geminis = not _OF_GEMINI.isdisjoint(event)
        completed = [self._of_gemini(event)] if is_geminis else self._of_responses(event)
        return [data if one == event else json.dumps(one).encode() for one in completed]

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
        if event.delta:
            self._forms.setdefault(event.type, event.type)
        is_whole = event.delta is not None or not event.type.endswith(".delta")
        is_known = self._ids.named(event.item_id, event.output_index) == event.item_id
        return is_whole and is_known and event.item_id not in self._whole_calls

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

    def _of_responses(self, event: dict[str, Any]) -> Iterator[dict[str, Any]]:
        kind = str(event.get("type"))
        fitting = fitted(event, _RESPONSES)
        if kind in _BEGINS and not _object(fitting.get("response")):
            return
        whole = self._with_fields(fitting)
        if whole.get("delta"):
            self._forms.setdefault(kind, kind)
        item, output = _object(whole.get("item")), _object(whole.get("response")).get("output")
        if kind in (_ADDED, _DONE):
            self._forms.setdefault(str(item.get("type")), kind)
        if kind == _DONE:
            yield from self._late_pieces(item, kind)
        for place, one in enumerate(_list(output) if kind in ENDS else []):
            ended = self._with_fields({"type": _DONE, "output_index": place, "item": _object(one)})
            yield from self._late_pieces(ended["item"], kind)
            if self._forms.setdefault(str(ended["item"].get("type")), kind) == kind:
                yield ended
        yield whole

    def _late_pieces(self, item: dict[str, Any], kind: str) -> Iterator[dict[str, Any]]:
        """Yields a whole item's texts as pieces, unless the answer's texts of that kind come in another way."""
        of_content = "reasoning_text" if item.get("type") == "reasoning" else "output_text"
        for name, parts, text_type in (
            ("summary_index", item.get("summary"), "reasoning_summary_text"),
            ("content_index", item.get("content"), of_content),
        ):
            for number, part in enumerate(map(_object, _list(parts))):
                refusal = part.get("refusal")
                text, piece = refusal or part.get("text"), f"response.{'refusal' if refusal else text_type}.delta"
                if isinstance(text, str) and text and self._forms.setdefault(piece, kind) == kind:
                    yield {"type": piece, "item_id": item.get("id"), name: number, "delta": text, "logprobs": []}

    def _with_fields(self, event: dict[str, Any]) -> dict[str, Any]:
        """The event with known ids, and with the texts and lists that its server has omitted."""
        return self._with_arguments(_with_texts(self._with_ids(event)))

    def _with_arguments(self, event: dict[str, Any]) -> dict[str, Any]:
        """The event with a call's arguments as text. If they came whole with the call, all that follow repeat them."""
        kind, item = event.get("type"), _object(event.get("item"))
        if item.get("type") == "function_call":
            return {**event, "item": {**item, "arguments": self._arguments(item, kind, item.get("id"))}}
        if kind == "response.function_call_arguments.done":
            return {**event, "arguments": self._arguments(event, kind, event.get("item_id"))}
        return {**event, "delta": ""} if event.get("item_id") in self._whole_calls and "delta" in event else event

    def _arguments(self, holder: dict[str, Any], kind: object, item_id: str | None) -> str:
        given = holder.get("arguments")
        text = given if isinstance(given, str) else json.dumps(given) if given and isinstance(given, dict) else ""
        if item_id in self._whole_calls or (kind == _ADDED and "".join(text.split()) == "{}"):
            return ""  # an empty object in front of the arguments means that there are none yet
        if kind == _ADDED and is_json(text.encode("utf-8", "surrogatepass")):
            self._whole_calls.add(item_id)
        return text

    def _with_ids(self, event: dict[str, Any]) -> dict[str, Any]:
        place, item = event.get("output_index"), event.get("item")
        if isinstance(item, dict):
            item = cast("dict[str, Any]", item)
            known = None if event.get("type") == _ADDED else self._ids.named(item.get("id"), place)
            return {**event, "item": {**item, "id": known or self._ids.begun(item.get("id"), place)}}
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
    kind, part = event.get("type"), _object(event.get("part"))
    if str(kind).endswith(".delta") and event.get("delta") is None:
        event = {**event, "delta": ""}
    if kind == "response.reasoning_summary_part.added" and part and part.get("text") is None:
        return {**event, "part": {**part, "text": ""}}
    if kind in (*ENDS, "response.failed"):
        response = _object(event.get("response"))
        bare = {name: one for name, one in _BARE_RESPONSE.items() if response.get(name) is None}
        is_list = isinstance(response.get("output"), list)
        return {**event, "response": {**response, **bare, **({} if is_list else {"output": []})}}
    if "logprobs" in event and not isinstance(event["logprobs"], list):
        return {**event, "logprobs": []}
    return event


def _object(value: object) -> dict[str, Any]:
    """Returns the value if it is an object, otherwise an empty object."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    """Returns the value if it is a list, otherwise an empty list."""
    return cast("list[object]", value) if isinstance(value, list) else []
