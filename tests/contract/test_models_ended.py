"""An answer that is whole is a success, however its connection ends. One table for all wires."""

import json
from typing import Any

import pytest

from shared.domain.errors import ModelError
from tests.kit.model_server import Turn
from tests.kit.model_server.bare_answers import answered, stream_of, up_to_reason
from tests.kit.model_server.model_calls import (
    ANTHROPIC,
    CHAT,
    GOOGLE,
    HANDLES,
    RESPONSES,
    calls_made,
    ending,
    text_said,
)
from tests.kit.model_server.turn import Call

ENDINGS = ("silence", "close", "reset", "no last chunk")


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


FORWARDED = [
    (b'"length"', "length"),
    (b'"max_tokens"', "length"),
    (b'"MAX_TOKENS"', "length"),
    (b'"model_length"', "length"),
    (b'"model_context_window_exceeded"', "length"),
    (b'"content_filter"', "content_filter"),
    (b'"refusal"', "content_filter"),
    (b'"SAFETY"', "content_filter"),
]


@pytest.mark.parametrize("handle", [CHAT, ANTHROPIC])
@pytest.mark.parametrize(("word", "reason"), FORWARDED)
async def test_an_answer_cut_for_a_reason_of_another_protocol_was_whole(handle: str, word: bytes, reason: str) -> None:
    """Gateways forward the words of the servers behind them."""
    *before, last = up_to_reason(handle, Turn(text="It is"))
    said = await answered(handle, [*before, last.replace(WORDS[handle], word)], "close")
    assert (text_said(said), ending(said).reason) == ("It is", reason)


@pytest.mark.parametrize("handle", [CHAT, ANTHROPIC])
async def test_an_answer_that_ended_with_an_error_in_the_word_of_another_protocol_was_whole(handle: str) -> None:
    *before, last = up_to_reason(handle, Turn(text="It is"))
    for word in (b'"error"', b'"abort"'):
        with pytest.raises(ModelError, match="ended its answer with an error"):
            await answered(handle, [*before, last.replace(WORDS[handle], word)], "last chunk")


@pytest.mark.parametrize("reason", [None, "fertig", "context_window_exceeded", "stop"])
async def test_a_call_of_a_response_that_is_incomplete_for_an_unknown_reason_was_made(reason: str | None) -> None:
    *before, last = up_to_reason(RESPONSES, Turn(calls=[Call("add", {"a": 1, "b": 3})]))
    end = json.loads(last.partition(b"data: ")[2])
    end |= {"type": "response.incomplete"}
    end["response"] |= {
        "status": "incomplete", "incomplete_details": None if reason is None else {"reason": reason},
    }  # fmt: skip
    said = await answered(RESPONSES, [*before, b"data: %b\n\n" % json.dumps(end).encode()], "close")
    assert (len(calls_made(said)), ending(said).reason) == (1, "length")


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (
            {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT", "blockReasonMessage": "Not about this."}},
            "PROHIBITED_CONTENT: Not about this.",
        ),
        ({"promptFeedback": {"blockReason": "BLOCKLIST"}}, "BLOCKLIST"),
        (
            {"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": "Malformed: add(a=1"}]},
            "Malformed: add(a=1",
        ),
        ({"candidates": [{"finishReason": "SAFETY", "finishMessage": "Blocked half \ud83d."}]}, "Blocked half \ufffd."),
    ],
)
async def test_what_gemini_says_of_an_answer_that_it_does_not_give_was_lost(end: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError) as failed:
        await answered(GOOGLE, [b"data: %b\r\n\r\n" % json.dumps(end).encode()], "close")
    assert f"The provider says: {words}" in failed.value.message
