"""Messages of AG-UI: stored messages in the clients' form, and the content that clients send.

A message has one id in streams and in snapshots: a user's message has the client's own id, an answer has our id, a
result has an id made of its call's.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import msgspec

from api.input_limits import as_object
from api.pages.leg_parts import AGAIN
from api.runs.command import attached_file, attached_image, image_at
from shared.domain.errors import InvalidRequest
from shared.domain.ids import MessageId
from shared.domain.messages import (
    AssistantMessage,
    ContentPart,
    ImageContent,
    Message,
    NewMessage,
    TextContent,
    ToolReturn,
    ToolReturns,
    UserMessage,
    text_with_notes,
)

WireMessage = dict[str, Any]

MOST_BYTES = 8_000_000
"""The most bytes of the messages in one snapshot. Clients refuse a frame of more than ten million characters."""

_LEGACY = "binary"
"""The type of every part with data in releases before 0.0.50."""


def result_id(call_id: str) -> str:
    """The id of the message with the result of a call."""
    return f"result-{call_id}"


def reasoning_id(message_id: MessageId) -> str:
    """The id of the message with an answer's reasoning, equal to that of `LegParts`."""
    return f"reasoning-{message_id}"


def wire_messages(stored: Iterable[Message | NewMessage], *, takes_parts: bool) -> list[WireMessage]:
    """The client's messages for stored messages, in order, without instructions and summaries: these are for the model.

    `takes_parts`: whether the client supports results with images.
    """
    taken: set[str] = set()
    made: list[WireMessage] = []
    for message in stored:
        for shown in _wire_message(message, takes_parts=takes_parts):
            # A client may have used one of its ids twice.
            if shown["id"] in taken:
                shown["id"] = message.id
            taken.add(shown["id"])
            add_in_place(made, shown)
    return made


def add_in_place(shown: list[WireMessage], message: WireMessage) -> None:
    """Adds a message where clients add it: a result after the message with its call, and after that one's results."""
    place = len(shown)
    for number in reversed(range(len(shown) if "toolCallId" in message else 0)):
        if any(call["id"] == message["toolCallId"] for call in shown[number].get("toolCalls", ())):
            after = range(number + 1, len(shown))
            place = next((one for one in after if shown[one]["role"] != "tool"), place)
            break
    shown.insert(place, message)


def _wire_message(message: Message | NewMessage, *, takes_parts: bool) -> Iterator[WireMessage]:
    match message.body:
        case UserMessage(role="user") as body:
            yield {"id": body.otid or message.id, "role": "user", "content": wire_content(body.content)}
        case UserMessage(role="assistant") as body:
            content = body.content if isinstance(body.content, str) else text_with_notes(body.content)
            yield {"id": message.id, "role": "assistant", "content": content}
        case AssistantMessage() as body:
            yield from _answer(message.id, body)
        case ToolReturns(returns=returns):
            for one in returns:
                if not one.of_speech:
                    yield wire_result(one.tool_call_id, one, takes_parts=takes_parts)
        case _:
            return


def _answer(message_id: MessageId, body: AssistantMessage) -> Iterator[WireMessage]:
    if body.reasoning is not None and body.reasoning.text:
        yield {"id": reasoning_id(message_id), "role": "reasoning", "content": body.reasoning.text}
    said = [text for text in (body.text, *(call.speech for call in body.tool_calls)) if text]
    shown: dict[str, WireMessage] = {}
    for number, text in enumerate(said):
        name = message_id + AGAIN * number
        shown[name] = {"id": name, "role": "assistant", "content": text}
    for call in body.tool_calls:
        if call.speech is not None:
            continue
        kind = "approvals" if call.needs_approval else "calls"
        holder = body.sibling_id if body.sibling_id is not None and body.sibling_holds == kind else message_id
        answer = shown.setdefault(holder, {"id": holder, "role": "assistant"})
        answer.setdefault("toolCalls", []).append(wire_call(call.id, call.name, call.arguments))
    yield from shown.values()


def wire_call(call_id: str, name: str, arguments: str) -> WireMessage:
    """A call as part of an assistant's message."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def wire_result(call_id: str, result: ToolReturn, *, takes_parts: bool) -> WireMessage:
    """The message with the result of the call with this shown id."""
    said = result.text if result.parts is None or not takes_parts else wire_content(result.parts)
    shown = {"id": result_id(call_id), "role": "tool", "toolCallId": call_id, "content": said}
    return shown if result.status == "success" else {**shown, "metadata": {"holdfast": _outcome(result)}}


def _outcome(result: ToolReturn) -> dict[str, Any]:
    """The status of an unsuccessful result, for the metadata: the protocol's results have no field for it."""
    return {"status": result.status, **({"outcome": "unknown"} if result.is_unknown else {})}


def wire_content(content: str | list[ContentPart]) -> str | list[dict[str, Any]]:
    """The content of a user's message or of a result."""
    return content if isinstance(content, str) else [_wire_part(part) for part in content]


def _wire_part(part: ContentPart) -> dict[str, Any]:
    match part:
        case TextContent(file=file) if file is not None and file.data is not None:
            source = {"type": "data", "value": file.data, "mimeType": file.media_type}
            return {"type": "document", "source": source, "metadata": {"filename": file.name}}
        case TextContent(text=text):
            return {"type": "text", "text": text}
        case ImageContent(url=str() as url):
            source = {"type": "url", "value": url}
        case ImageContent(data=data, media_type=media_type):
            source = {"type": "data", "value": data or "", "mimeType": media_type or "image/png"}
    return {"type": "image", "source": source} | ({"metadata": {"filename": part.name}} if part.name else {})


def newest_within(messages: Sequence[WireMessage | msgspec.Raw], most: int = MOST_BYTES) -> list[msgspec.Raw]:
    """The newest messages that fit into a snapshot, as JSON, without older ones."""
    kept: list[msgspec.Raw] = []
    for message in reversed(messages):
        encoded = msgspec.json.encode(message)
        most -= len(encoded)
        if most < 0:
            break
        kept.append(msgspec.Raw(encoded))
    return kept[::-1]


def read_content(content: Any, place: str) -> str | list[ContentPart]:
    """The content of a message from a client: a text, or parts. Raises `InvalidRequest`, which names the invalid
    part."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"{place} is missing: it must be a text or a list of parts", field=place)
    parts = cast("list[Any]", content)
    return [_read_part(as_object(part) or {}, f"{place}[{number}]") for number, part in enumerate(parts)]


def _read_part(part: dict[str, Any], place: str) -> ContentPart:
    kind, source = part.get("type"), as_object(part.get("source")) or {}
    if kind == "text" and isinstance(part.get("text"), str):
        return TextContent(part["text"])
    if kind == _LEGACY:
        kind, source = _of_legacy_part(part)
    value, media_type = source.get("value"), source.get("mimeType")
    named = part.get("filename") or (as_object(part.get("metadata")) or {}).get("filename")
    if kind == "image" and isinstance(value, str):
        if source.get("type") == "url":
            return image_at(value, field=f"{place}.source.value", named=named)
        if source.get("type") == "data" and isinstance(media_type, str):
            return attached_image(value, media_type, field=f"{place}.source.value", named=named)
    if kind == "document" and isinstance(value, str) and source.get("type") == "data":
        media_type = media_type if isinstance(media_type, str) else None
        return attached_file(named, media_type, value, field=f"{place}.source.value")
    raise InvalidRequest(f"{place} is not understood: {_why_not(kind, source)}", field=place)


def _of_legacy_part(part: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    media_type = part.get("mimeType")
    kind = "image" if isinstance(media_type, str) and media_type.startswith("image/") else "document"
    if isinstance(part.get("data"), str):
        return kind, {"type": "data", "value": part["data"], "mimeType": media_type}
    return kind, {"type": "url", "value": part.get("url"), "mimeType": media_type}


def _why_not(kind: Any, source: dict[str, Any]) -> str:
    if kind in ("audio", "video"):
        return f"models of this server take no {kind}. Send a text, images, or documents"
    if source.get("type") == "file":
        return "this server keeps no files: send the data itself"
    if kind == "document":
        return "documents need a source of the type data"
    return "use {'type': 'text', 'text': …} or {'type': 'image', 'source': {'type': 'url' | 'data', 'value': …}}"
