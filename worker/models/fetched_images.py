"""Images that a message names by their address, fetched for a provider that takes them as data only.

The address is a caller's: it is asked as such, and takes as much of the process's memory as a request could bring.
"""

import mimetypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast
from urllib.parse import urlsplit

from pydantic_ai import messages as sdk

from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.model_servers import without_credentials
from shared.network.addresses import ForbiddenAddress
from shared.network.checked_http import CallersHttp, TooLarge, Unreachable
from worker.models.model_errors import LONGEST_DETAIL

MOST_BYTES = 20_000_000
"""Of one image: a whole request to Gemini may not have more."""
MOST_BYTES_TOGETHER = 60_000_000
SAYING_NOTHING = ("", "application/octet-stream", "binary/octet-stream")
"""Media types that a server gives for anything, so that the address has to say what it is."""


class _NoImage(Exception):
    """What is there is not an image."""


async def with_fetched_images(messages: Sequence[sdk.ModelMessage], http: CallersHttp) -> list[sdk.ModelMessage]:
    """The messages with every image as data.

    Raises `ModelError` when an image of the last message cannot be fetched. One of an earlier message may have gone
    from its address since: a note takes its place, so that the conversation goes on.
    """
    fetch = _ImageFetch(http)
    fetched: list[sdk.ModelMessage] = []
    for message in messages:
        if isinstance(message, sdk.ModelRequest):
            is_last = message is messages[-1]
            parts = [await _with_images(part, fetch, may_be_gone=not is_last) for part in message.parts]
            fetched.append(replace(message, parts=parts))
        else:
            fetched.append(message)
    return fetched


async def _with_images(part: sdk.ModelRequestPart, fetch: "_ImageFetch", *, may_be_gone: bool) -> sdk.ModelRequestPart:
    if not isinstance(part, sdk.UserPromptPart | sdk.ToolReturnPart):
        return part
    content = cast("object", part.content)
    if not isinstance(content, list):
        return part
    shown: list[Any] = []
    for one in cast("list[Any]", content):
        shown.append(await fetch.image(one, may_be_gone=may_be_gone) if isinstance(one, sdk.ImageUrl) else one)
    return replace(part, content=shown)


class _ImageFetch:
    """The images of one request to a provider, with the bytes that are left for them."""

    def __init__(self, http: CallersHttp) -> None:
        self._http = http
        self._bytes_left = MOST_BYTES_TOGETHER

    async def image(self, image: sdk.ImageUrl, *, may_be_gone: bool) -> sdk.BinaryContent | str:
        """The image as data, or the note that takes its place."""
        shown = without_credentials(image.url)
        try:
            return await self._fetched(image.url)
        except (ForbiddenAddress, Unreachable, TooLarge, _NoImage) as error:
            if may_be_gone:
                return f"[The image at {shown} is no longer there.]"
            why = str(error)[:LONGEST_DETAIL]
            raise ModelError(
                ModelErrorType.BAD_REQUEST,
                f"There is no image to be had at {shown} ({why}). This provider takes images as data: send it as "
                "base64, or under a public address.",
            ) from error

    async def _fetched(self, url: str) -> sdk.BinaryContent:
        found = await self._http.get(url, max_bytes=min(MOST_BYTES, self._bytes_left))
        if not 200 <= found.status_code < 300:
            raise _NoImage(f"the server answers {found.status_code}")
        media_type = found.media_type
        if media_type in SAYING_NOTHING:
            media_type = mimetypes.guess_type(urlsplit(url).path)[0] or "of an unknown type"
        if not media_type.startswith("image/"):
            raise _NoImage(f"it is {media_type}")
        self._bytes_left -= len(found.content)
        return sdk.BinaryContent(found.content, media_type=media_type)
