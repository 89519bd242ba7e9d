"""Servers that compress a stream unasked. What is mended in an answer is mended in theirs too, on every wire."""

import asyncio
import gzip
import zlib
from collections.abc import Callable, Sequence

import pytest

from shared.domain.errors import ModelError
from tests.kit.model_server import Turn
from tests.kit.model_server.bare_answers import EVENTS, asked_of, head, stream_of, up_to_reason
from tests.kit.model_server.model_calls import HANDLES, ending, text_said
from worker.models.provider import ModelEvent

every_wire = pytest.mark.parametrize("handle", HANDLES)

HALVES = Turn(text="\u00c4 \u00d6")

PACKED: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress, "identity": bytes}


async def answered(
    handle: str, frames: Sequence[bytes], encoding: str = "gzip", content_type: str = EVENTS
) -> list[ModelEvent]:
    """What the model says when its server sends these events compressed, and hangs up without an end."""

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        packed = PACKED[encoding](b"".join(frames))
        pieces = (packed[at : at + 20] for at in range(0, len(packed), 20))
        writer.write(head(content_type, content_encoding=encoding))
        writer.write(b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces))
        await writer.drain()
        writer.close()

    return await asked_of(handle, answer)


@every_wire
@pytest.mark.parametrize("encoding", PACKED)
async def test_half_a_character_in_a_compressed_stream_was_an_error(handle: str, encoding: str) -> None:
    frames = stream_of(handle, HALVES)
    for whole, half in ((rb" \u00d6", rb"\ude00b"), (rb"\u00d6", rb"\ude00b"), (rb"\u00c4", rb"a\ud83d")):
        frames = [frame.replace(whole, half) for frame in frames]
    assert text_said(await answered(handle, frames, encoding)) == "a\U0001f600b"


@every_wire
async def test_a_compressed_answer_was_lost_with_its_connection(handle: str) -> None:
    said = await answered(handle, up_to_reason(handle, Turn(text="It is four.")))
    assert (text_said(said), ending(said).reason) == ("It is four.", "stop")


@every_wire
@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_a_whole_error_in_the_place_of_a_stream_was_lost_with_its_connection(handle: str, encoding: str) -> None:
    error = b'{"error": {"message": "Insufficient credits"}}'
    with pytest.raises(ModelError, match="Insufficient credits"):
        await answered(handle, [error], encoding, content_type="application/json")
    with pytest.raises(ModelError, match="hung up"):
        await answered(handle, [error[:-1]], encoding, content_type="application/json")


@every_wire
async def test_what_is_not_compressed_as_its_server_says_is_an_error_of_the_model(handle: str) -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = b"".join(stream_of(handle, Turn(text="It is four.")))
        writer.write(head(content_encoding="gzip") + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        await writer.drain()

    with pytest.raises(ModelError):
        await asked_of(handle, answer)
