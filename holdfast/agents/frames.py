"""Frames between a worker and the process of a body: four bytes with a length, then JSON in UTF-8."""

import asyncio
import json
from typing import Any

Frame = dict[str, Any]

LONGEST_FRAME = 64_000_000
"""Bytes of a frame for the worker. The worker's frames have no limit, because a long history must reach the code."""


FRAMES = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))
"""A constant, because `json.dumps` would make another one for each frame. Escapes would count as up to six bytes."""


def packed(frame: Frame) -> bytes:
    """Returns the frame as bytes, with a question mark for half a character of UTF-16. Raises `TypeError` or
    `ValueError` for values that JSON cannot express, and `ValueError` for more than `LONGEST_FRAME` bytes, which the
    worker would take for the end of this process."""
    data = FRAMES.encode(frame).encode("utf-8", "replace")
    if len(data) > LONGEST_FRAME:
        raise ValueError(f"what the code gives to its run at once has {len(data)} bytes, {LONGEST_FRAME} are allowed")
    return len(data).to_bytes(4, "big") + data


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """Returns the next frame, or None if the other side is gone. A killed peer that left bytes unread resets the
    connection, which means the same as its end."""
    try:
        length = int.from_bytes(await reader.readexactly(4), "big")
        return json.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
