"""An answer that is whole is a success, however its connection ends. One table for all wires."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from shared.domain.errors import ModelError
from tests.kit.model_server import Turn, anthropic_messages, gemini, openai_chat, openai_responses
from tests.kit.model_server.http_exchange import reset
from tests.kit.model_server.model_calls import (
    ADD,
    ANTHROPIC,
    CHAT,
    GOOGLE,
    HANDLES,
    RESPONSES,
    ask,
    call,
    calls_made,
    ending,
    text_said,
)
from tests.kit.model_server.turn import Call
from tests.kit.plain_answers import serving
from worker.models.provider import ModelEvent
from worker.models.registry import Models

FRAMES = {
    CHAT: openai_chat.frames,
    RESPONSES: openai_responses.frames,
    ANTHROPIC: anthropic_messages.frames,
    GOOGLE: gemini.frames,
}
VARIABLES = {
    CHAT: "OPENAI_BASE_URL",
    RESPONSES: "OPENAI_BASE_URL",
    ANTHROPIC: "ANTHROPIC_BASE_URL",
    GOOGLE: "GOOGLE_GEMINI_BASE_URL",
}
AFTER_REASON = {CHAT: 2, RESPONSES: 0, ANTHROPIC: 1, GOOGLE: 0}
"""Frames that come behind the one with the reason."""

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
ENDINGS = ("silence", "close", "reset", "no last chunk")


def stream_of(handle: str, turn: Turn) -> list[bytes]:
    model = handle.partition("/")[2]
    return [frame.data for frame in FRAMES[handle](turn, {"model": model}, 1)]


def up_to_reason(handle: str, turn: Turn) -> list[bytes]:
    frames = stream_of(handle, turn)
    return frames[: len(frames) - AFTER_REASON[handle]]


async def answered(handle: str, frames: Sequence[bytes], end: str, **rest: Any) -> list[ModelEvent]:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"".join(b"%x\r\n%b\r\n" % (len(frame), frame) for frame in frames))
        await writer.drain()
        if end == "reset":
            reset(writer)
        elif end != "silence":
            writer.close()

    arguments: dict[str, Any] = {"first_event_timeout": 30.0, "idle_timeout": 30.0, "retries": 0, **rest}
    async with serving(answer) as server:
        keys = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", "GEMINI_API_KEY": "k"}
        models = Models(keys | {VARIABLES[handle]: server.url.rstrip("/")}, **arguments)
        try:
            return await ask(models, call(handle, tools=[ADD]))
        finally:
            await models.aclose()


@pytest.mark.parametrize("handle", HANDLES)
@pytest.mark.parametrize("end", ENDINGS)
async def test_a_whole_answer_was_lost_with_its_connection(handle: str, end: str) -> None:
    said = await answered(handle, up_to_reason(handle, Turn(text="It is four.")), end)
    assert (text_said(said), ending(said).reason) == ("It is four.", "stop")
    assert ending(said).usage.completion_tokens > 0


@pytest.mark.parametrize("handle", HANDLES)
@pytest.mark.parametrize("end", ENDINGS)
async def test_so_were_whole_calls(handle: str, end: str) -> None:
    turn = Turn(calls=[Call("add", {"a": 1, "b": 3})])
    said = await answered(handle, up_to_reason(handle, turn), end)
    assert ([made.name for made in calls_made(said)], ending(said).reason) == (["add"], "tool_calls")


@pytest.mark.parametrize("handle", HANDLES)
@pytest.mark.parametrize("end", ["close", "reset", "no last chunk"])
async def test_an_answer_without_a_reason_is_cut(handle: str, end: str) -> None:
    with pytest.raises(ModelError):
        await answered(handle, stream_of(handle, Turn(text="It is four.", finish=None)), end)


WORDS = {CHAT: b'"stop"', ANTHROPIC: b'"end_turn"', GOOGLE: b'"STOP"'}
CALL_WORDS = {CHAT: b'"tool_calls"', ANTHROPIC: b'"tool_use"', GOOGLE: b'"STOP"'}


@pytest.mark.parametrize("handle", WORDS)
@pytest.mark.parametrize("word", [b'"finished"', b'"STOP_TOKEN"', b'"eos_token"', '"fertig\u00fc"'.encode()])
async def test_a_reason_in_a_word_of_another_server_is_an_end(handle: str, word: bytes) -> None:
    for turn, known, reason in (
        (Turn(text="It is four."), WORDS[handle], "stop"),
        (Turn(calls=[Call("add", {"a": 1, "b": 3})]), CALL_WORDS[handle], "tool_calls"),
    ):
        *before, last = up_to_reason(handle, turn)
        assert known in last
        said = await answered(handle, [*before, last.replace(known, word)], "close")
        assert (text_said(said), len(calls_made(said)), ending(said).reason) == (turn.text, len(turn.calls), reason)


@pytest.mark.parametrize("handle", HANDLES)
@pytest.mark.parametrize("cut", [None, 1, 2])
async def test_the_event_behind_a_byte_order_mark_was_lost(handle: str, cut: int | None) -> None:
    mark = "\ufeff".encode()
    if cut is not None and handle in (RESPONSES, GOOGLE):
        cut = None  # the SDKs' streams are given the mark in one piece
    frames = stream_of(handle, Turn(text="One, two."))
    whole = mark + b"".join(frames)
    pieces = [whole] if cut is None else [whole[:cut], whole[cut:]]
    assert text_said(await answered(handle, pieces, "close")) == "One, two."
