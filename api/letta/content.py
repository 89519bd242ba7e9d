"""Content on the wire, text and images: of a user's message, and of a tool's result."""

from typing import Any, assert_never, cast

from api.bounded_fields import as_object
from shared.domain.errors import InvalidRequest
from shared.domain.messages import ContentPart, ImageContent, TextContent, text_with_notes


def content_parts(given: list[Any], *, field: str) -> list[ContentPart]:
    """The parts of a list that a client sent in `field`. Raises `InvalidRequest`, which names the one that is none."""
    return [_read_part(as_object(part) or {}, f"{field}[{number}]") for number, part in enumerate(given)]


def tool_result(value: Any) -> tuple[str, list[ContentPart] | None]:
    """A result that a client brings, as text, and in the parts in which it came; None when it came as text."""
    if isinstance(value, list):
        parts = content_parts(cast("list[Any]", value), field="tool_return")
        return text_with_notes(parts), parts
    return "" if value is None else str(value), None


def _read_part(part: dict[str, Any], where: str) -> ContentPart:
    kind = part.get("type", "text")
    if kind == "text" and isinstance(part.get("text"), str):
        return TextContent(part["text"])
    given = as_object(part.get("source"))
    if kind == "image" and given is not None:
        if given.get("type") == "url" and isinstance(given.get("url"), str):
            return ImageContent(url=given["url"])
        media_type = given.get("media_type") or "image/png"
        if given.get("type") == "base64" and isinstance(given.get("data"), str) and isinstance(media_type, str):
            return ImageContent(data=given["data"], media_type=media_type)
    raise InvalidRequest(
        f"{where} is not understood: use {{'type': 'text', 'text': …}} or "
        "{'type': 'image', 'source': {'type': 'url' | 'base64', …}}",
        field=where,
    )


def wire_content(content: str | list[ContentPart]) -> str | list[dict[str, Any]]:
    """Content as the wire shows it: text stays text."""
    if isinstance(content, str):
        return content
    return [_wire_part(part) for part in content]


def _wire_part(part: ContentPart) -> dict[str, Any]:
    match part:
        case TextContent():
            return {"type": "text", "text": part.text}
        case ImageContent(url=str() as url):
            return {"type": "image", "source": {"type": "url", "url": url}}
        case ImageContent():
            source = {"type": "base64", "media_type": part.media_type, "data": part.data}
            return {"type": "image", "source": source}
        case _:
            assert_never(part)
