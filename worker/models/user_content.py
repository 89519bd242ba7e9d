"""What a user sent, or a tool gave, as turns hold it: text and images, fit for every provider."""

import base64
import binascii

from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.messages import ContentPart, ImageContent, TextContent
from worker.models.characters import whole_characters
from worker.models.turns import Image, ImageData, ImageLink

EMPTY = "[This message is empty.]"

_SIGNATURES = (
    (b"\x89PNG", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
)


def plain_text(text: str) -> str:
    """Text that every provider takes: not blank, and sound."""
    return whole_characters(text) if text.strip() else EMPTY


def user_content(content: str | list[ContentPart]) -> str | list[str | Image]:
    """The content of a user's message."""
    if isinstance(content, str):
        return plain_text(content)
    parts = [part for part in content if isinstance(part, ImageContent) or part.text.strip()]
    return [_part(part) for part in parts] or EMPTY


def images_in(content: list[ContentPart]) -> list[Image]:
    """The images of the content, without its text."""
    return [_image_of(part) for part in content if isinstance(part, ImageContent)]


def _part(part: ContentPart) -> str | Image:
    match part:
        case TextContent(text=text):
            return plain_text(text)
        case ImageContent():
            return _image_of(part)


def _image_of(part: ImageContent) -> Image:
    if part.data is not None:
        return _image(part.data, part.media_type)
    if part.url is not None:
        return ImageLink(part.url)
    raise ModelError(ModelErrorType.BAD_REQUEST, "An image in the history has neither a URL nor data.")


def _image(data: str, media_type: str | None) -> ImageData:
    try:
        content = base64.b64decode(data, validate=False)
    except binascii.Error as error:
        raise ModelError(ModelErrorType.BAD_REQUEST, "An image in the history is not valid base64.") from error
    found = next((kind for signature, kind in _SIGNATURES if content.startswith(signature)), "image/png")
    return ImageData(base64.b64encode(content).decode(), media_type or found)
