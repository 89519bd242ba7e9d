"""Images that a message names by their address, fetched for a provider that takes them as data only.

The address is a client's, so the SDK's own download does it: it asks no private address and takes no endless body.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import httpx2
from pydantic_ai import messages as sdk
from pydantic_ai.models import download_item

from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.model_servers import without_credentials
from worker.models.foreign_errors import LONGEST_DETAIL, SDK_ERRORS


async def with_fetched_images(messages: Sequence[sdk.ModelMessage]) -> list[sdk.ModelMessage]:
    """The messages with every image as data.

    Raises `ModelError` when an image of the last message cannot be fetched. One of an earlier message may have gone
    from its address since: a note takes its place, so that the conversation goes on.
    """
    fetched: list[sdk.ModelMessage] = []
    for message in messages:
        if isinstance(message, sdk.ModelRequest):
            is_last = message is messages[-1]
            parts = [await _with_images(part, may_be_gone=not is_last) for part in message.parts]
            fetched.append(replace(message, parts=parts))
        else:
            fetched.append(message)
    return fetched


async def _with_images(part: sdk.ModelRequestPart, *, may_be_gone: bool) -> sdk.ModelRequestPart:
    if not isinstance(part, sdk.UserPromptPart | sdk.ToolReturnPart):
        return part
    content = cast("object", part.content)
    if not isinstance(content, list):
        return part
    shown: list[Any] = []
    for one in cast("list[Any]", content):
        shown.append(await _fetch(one, may_be_gone=may_be_gone) if isinstance(one, sdk.ImageUrl) else one)
    return replace(part, content=shown)


async def _fetch(image: sdk.ImageUrl, *, may_be_gone: bool) -> sdk.BinaryContent | str:
    shown = without_credentials(image.url)
    try:
        found = await download_item(image, data_format="bytes")
        content = sdk.BinaryContent(found["data"], media_type=found["data_type"])
        if content.is_image:
            return content
        why = f"it is {content.media_type}"
    except httpx2.HTTPStatusError as error:
        why = f"the server answers {error.response.status_code}"
    except SDK_ERRORS as error:
        why = str(error)[:LONGEST_DETAIL]
    if may_be_gone:
        return f"[The image at {shown} is no longer there.]"
    raise ModelError(
        ModelErrorType.BAD_REQUEST,
        f"There is no image to be had at {shown} ({why}). This provider takes images as data: send it as base64, or "
        "under a public address.",
    )
