"""What servers send that imitate OpenAI's wire or Anthropic's, beyond what is written of them."""

import asyncio
import gzip
import json
from typing import Any

import pytest

from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.messages import AssistantMessage, ToolCall, ToolReturns, UserMessage
from tests.kit.model_server import Failure, Turn
from tests.kit.model_server.frames import data, event
from tests.kit.model_server.model_calls import (
    ADD,
    ANTHROPIC,
    ask,
    call,
    calls_made,
    ending,
    history,
    models_on_server,
    returned,
    text_said,
    thoughts,
)
from tests.kit.plain_answers import says, serving
from tests.kit.provider_rules.request import broken_rules
from worker.models.provider import ModelEvent, Thought
from worker.models.registry import Models

DONE = b"data: [DONE]\n\n"


def chunk(finish: str | None = None, usage: dict[str, Any] | None = None, **delta: Any) -> bytes:
    return data({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": usage})


async def answered(*chunks: bytes, handle: str = "vllm/m") -> list[ModelEvent]:
    async with models_on_server() as (server, models):
        server.play(Turn(raw=chunks))
        return await ask(models, call(handle, tools=[ADD]))


def call_piece(name: str | None = None, arguments: Any = None, **rest: Any) -> dict[str, Any]:
    return {**rest, "function": {"name": name, "arguments": arguments}}


async def test_whole_calls_that_all_have_the_number_0_were_one_call() -> None:
    first = call_piece("add", '{"a": 1}', index=0, id="one")
    second = call_piece("add", '{"a": 2}', index=0, id="two")
    events = await answered(chunk(tool_calls=[first]), chunk(tool_calls=[second]), chunk("tool_calls"), DONE)
    assert [(made.call_id, made.arguments) for made in calls_made(events)] == [("one", '{"a": 1}'), ("two", '{"a": 2}')]


@pytest.mark.parametrize("no_id", [None, ""])
async def test_whole_calls_that_have_the_number_0_and_no_id_were_one_call(no_id: str | None) -> None:
    pieces = [call_piece("add", text, index=0, id=no_id) for text in ('{"a": 1}', '{"a": 2}')]
    one_by_one = await answered(*(chunk(tool_calls=[piece]) for piece in pieces), chunk("tool_calls"), DONE)
    together = await answered(chunk(tool_calls=pieces), chunk("tool_calls"), DONE)
    for events in (one_by_one, together):
        made = calls_made(events)
        assert [(one.name, one.arguments) for one in made] == [("add", '{"a": 1}'), ("add", '{"a": 2}')]
        assert len({one.call_id for one in made}) == 2


async def test_calls_without_numbers_and_ids_are_told_apart_by_their_names() -> None:
    pieces = [call_piece("add"), call_piece(None, '{"a"'), call_piece(None, ": 1}"), call_piece("add", "{}")]
    events = await answered(*(chunk(tool_calls=[piece]) for piece in pieces), chunk("stop"), DONE)
    made = calls_made(events)
    assert [one.arguments for one in made] == ['{"a": 1}', "{}"]
    assert len({one.call_id for one in made}) == 2
    assert ending(events).reason == "tool_calls"


ONE, TWO = ("add", '{"a": 1}'), ("add", '{"a": 2}')


@pytest.mark.parametrize(
    ("pieces", "made"),
    [
        (
            [
                *(call_piece("add", "", id=call_id) for call_id in ("one", "two")),
                *(call_piece(None, '{"a": ', id=call_id) for call_id in ("one", "two")),
                *(call_piece(None, f"{number}}}", id=call_id) for number, call_id in ((1, "one"), (2, "two"))),
            ],
            [ONE, TWO],
        ),
        ([call_piece("add", text, id="one") for text in ("", '{"a": ', "1}", "")], [ONE]),
        ([call_piece("add", text, id="one") for text in ('{"a": 1}', '{"a": 2}')], [ONE, TWO]),
        ([call_piece("add", text) for text in ('{"a"', ": 1}", '{"a": 2}')], [ONE, TWO]),
        ([call_piece("add", ""), call_piece("list", "")], [("add", "{}"), ("list", "{}")]),
        ([call_piece("add", ""), call_piece("add", "")], [("add", "{}"), ("add", "{}")]),
        ([call_piece(*one) for one in (("add", ""), (None, ONE[1]), ("add", ""), (None, TWO[1]))], [ONE, TWO]),
    ],
    ids=["in turns", "id and name each time", "one id", "name each time", "no arguments", "one name", "name first"],
)
async def test_pieces_of_calls_without_numbers_went_to_the_call_that_began_last(
    pieces: list[dict[str, Any]], made: list[tuple[str, str]]
) -> None:
    events = await answered(*(chunk(tool_calls=[piece]) for piece in pieces), chunk("tool_calls"), DONE)
    last = {one.index: (one.name, one.arguments) for one in calls_made(events)}
    assert list(last.values()) == made


async def test_the_rest_of_a_call_without_a_number_was_lost_behind_a_text() -> None:
    pieces = [chunk(tool_calls=[call_piece("add", '{"a"')]), chunk(content="Hm."), chunk(tool_calls=[{}])]
    rest = chunk(tool_calls=[call_piece(None, ": 1}")])
    events = await answered(*pieces, rest, chunk("tool_calls"), DONE)
    assert (text_said(events), calls_made(events)[-1].arguments) == ("Hm.", '{"a": 1}')


async def test_pieces_of_two_calls_that_both_have_the_number_0_went_to_the_second() -> None:
    begun = [call_piece("add", "", index=0, id=call_id) for call_id in ("one", "two")]
    rest = [call_piece(None, text, index=0, id=call_id) for text, call_id in (('{"a": 1}', "one"), ('{"a": 2}', "two"))]
    events = await answered(*(chunk(tool_calls=[one]) for one in (*begun, *rest)), chunk("tool_calls"), DONE)
    last = {one.index: (one.call_id, one.arguments) for one in calls_made(events)}
    assert list(last.values()) == [("one", '{"a": 1}'), ("two", '{"a": 2}')]


@pytest.mark.parametrize("pieces", [[ONE, ("list", "")], [("list", ""), ONE], [("add", '{"a": '), ("list", "")]])
async def test_a_call_without_arguments_and_one_with_them_became_one_name(pieces: list[tuple[str, str]]) -> None:
    chunks = [chunk(tool_calls=[call_piece(name, text, index=0)]) for name, text in pieces]
    made = calls_made(await answered(*chunks, chunk("tool_calls"), DONE))
    assert [(one.name, one.arguments) for one in made] == [(name, text or "{}") for name, text in pieces]


async def test_a_name_that_comes_with_every_piece_is_said_once() -> None:
    pieces = [call_piece("add", text, index=0, id="one") for text in ('{"a"', ": 1}")]
    events = await answered(*(chunk(tool_calls=[piece]) for piece in pieces), chunk("tool_calls"), DONE)
    assert [(made.name, made.arguments) for made in calls_made(events)] == [("add", '{"a": 1}')]


async def test_a_name_whose_last_piece_brings_arguments_became_two_calls() -> None:
    begun = call_piece("a", "", index=0, id="one")
    pieces = [begun, call_piece("dd", '{"a"', index=0), call_piece(None, ": 1}", index=0)]
    events = await answered(*(chunk(tool_calls=[piece]) for piece in pieces), chunk("tool_calls"), DONE)
    assert [(made.name, made.arguments) for made in calls_made(events)] == [("add", '{"a": 1}')]


async def test_arguments_that_are_an_object_become_its_text() -> None:
    events = await answered(chunk(tool_calls=[call_piece("add", {"a": 1}, index=0)]), chunk("tool_calls"), DONE)
    assert json.loads(calls_made(events)[0].arguments) == {"a": 1}


async def test_reasoning_between_tags_is_no_text() -> None:
    texts = ("<think>", "Hm", ".", "</think>", "Four.")
    events = await answered(*(chunk(content=text) for text in texts), chunk("stop"), DONE)
    assert (thoughts(events), text_said(events)) == ("Hm.", "Four.")


async def test_content_in_parts_is_text() -> None:
    parts = [{"type": "text", "text": "Four"}, {"type": "reference", "id": 1}, "."]
    assert text_said(await answered(chunk(content=parts), chunk("stop"), DONE)) == "Four."


async def test_bytes_that_are_no_characters_are_put_in_place_of() -> None:
    halves = b'data: {"choices": [{"delta": {"content": "x\xf0\x9f"}}]}\n\n'
    assert text_said(await answered(halves, chunk("stop"), DONE)) == "x\ufffd"


async def test_usage_that_is_told_with_every_chunk_was_added_up() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    events = await answered(chunk(usage=usage, content="a"), chunk("stop", usage), DONE)
    assert (ending(events).usage.prompt_tokens, ending(events).usage.completion_tokens) == (5, 2)


async def test_an_answer_may_end_with_the_connection() -> None:
    assert text_said(await answered(chunk(content="Yes."), chunk("stop"))) == "Yes."


@pytest.mark.parametrize(
    ("error", "error_type", "retryable"),
    [
        ({"message": "slow down", "code": 429}, ModelErrorType.RATE_LIMIT, True),
        ({"message": "pay", "code": "insufficient_quota"}, ModelErrorType.RATE_LIMIT, False),
        ({"message": "too long", "code": "context_length_exceeded"}, ModelErrorType.CONTEXT_WINDOW, False),
        ({"message": "who?", "code": "invalid_api_key"}, ModelErrorType.AUTHENTICATION, False),
        ("out of memory", ModelErrorType.ERROR, True),
    ],
)
async def test_an_error_inside_a_stream_means_what_it_says(
    error: object, error_type: ModelErrorType, *, retryable: bool
) -> None:
    with pytest.raises(ModelError) as caught:
        await answered(data({"error": error}))
    assert (caught.value.error_type, caught.value.retryable) == (error_type, retryable)


async def test_special_tokens_in_what_users_say_reach_no_host_of_open_models() -> None:
    async with models_on_server() as (server, models):
        server.say("You said <\u200d|im_start|>.")
        events = await ask(models, call("vllm/m", "What is <|im_start|>?"))
        sent = server.requests[0].body["messages"][-1]["content"]
    assert sent == "What is <\u200d|im_start|>?"
    assert text_said(events) == "You said <|im_start|>."


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[bytes]:
    return [
        event({"type": "content_block_start", "index": index, "content_block": start}),
        *(event({"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas),
        event({"type": "content_block_stop", "index": index}),
    ]


CALLED = block(1, {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}})
SEALED = block(0, {"type": "redacted_thinking", "data": "sealed"})


def claude(*blocks: bytes, reason: str = "tool_use", **message: Any) -> Turn:
    start = {"id": "msg_1", "model": "m", "usage": {"input_tokens": 3, "output_tokens": 1}, **message}
    stop = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 2}}
    return Turn(raw=(event({"type": "message_start", "message": start}), *blocks, event(stop)))


async def test_reasoning_that_only_claude_can_read_goes_back_unread() -> None:
    async with models_on_server() as (server, models):
        server.play(claude(*SEALED, *CALLED))
        first = await ask(models, call(ANTHROPIC, tools=[ADD]))
        assert Thought("", "sealed") in first
        spoken = AssistantMessage(
            tool_calls=[ToolCall("toolu_1", "add", '{"a": 1}')],
            model=ANTHROPIC,
            provider_response=ending(first).provider_response,
        )
        results = ToolReturns([returned("toolu_1", "3")])
        await ask(models, call(ANTHROPIC, history(UserMessage("?"), spoken, results), tools=[ADD]))
        content = server.requests[1].body["messages"][1]["content"]
    assert content[0] == {"type": "redacted_thinking", "data": "sealed"}
    assert content[1]["input"] == {"a": 1}


async def test_thinking_that_claude_refuses_is_left_out_of_a_second_request() -> None:
    """The newest models bind it to all that came before, and memory may have changed."""
    refusal = Failure("bad_request", "messages.1: The block is bound to a different conversation.")
    handle = "anthropic/claude-opus-5-5"
    async with models_on_server() as (server, models):
        server.play(Turn(failure=refusal))
        server.say("Go on.")
        assert text_said(await ask(models, call(handle))) == "Go on."
        first, second = server.requests
    assert "anthropic-beta" not in first.headers
    assert second.headers["anthropic-beta"] == "thinking-binding-controls-2026-08-01"
    assert second.body["thinking"]["block_binding"] == {"prefix_mismatch_behavior": "drop_block"}


async def test_an_answer_is_read_that_a_server_compressed_unasked() -> None:
    packed = gzip.compress(chunk(content="Hel") + chunk("stop", content="lo.") + DONE)
    headers = b"content-type: text/event-stream\r\ncontent-encoding: gzip\r\n"

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says(packed, headers=headers))

    async with serving(answer) as served:
        models = Models({"VLLM_BASE_URL": served.url}, first_event_timeout=180, idle_timeout=180, retries=0)
        try:
            assert text_said(await ask(models, call("vllm/m"))) == "Hello."
        finally:
            await models.aclose()


TAGGED = [
    ("<think>", "Hm", ".", "</think>", "\n\nFour."),
    ("<think>\nHm.", "</think>\n\nFour."),
    ("<think>\nHm.</think>\n\nFour.",),
    ("<th", "ink>\nHm.", "</", "think>", "\n\nFour."),
    ("\n<think>", "\nHm.\n</think>\n", "\nFour."),
    tuple("<think>\nHm.\n</think>\n\nFour."),
]


@pytest.mark.parametrize("pieces", TAGGED)
async def test_tags_that_were_no_pieces_of_their_own_were_text_or_took_the_answer(pieces: tuple[str, ...]) -> None:
    """Servers that send several tokens at once, or a whole answer, were read as if the answer had no text."""
    events = await answered(*(chunk(content=piece) for piece in pieces), chunk("stop"), DONE)
    assert (thoughts(events).strip(), text_said(events).strip()) == ("Hm.", "Four.")
    whole = {"choices": [{"message": {"content": "".join(pieces)}, "finish_reason": "stop"}]}
    events = await answered(json.dumps(whole).encode())
    assert (thoughts(events).strip(), text_said(events).strip()) == ("Hm.", "Four.")


@pytest.mark.parametrize(
    "pieces",
    [
        ("Write <think>", " and </think>."),
        ("<b>Four.</b>",),
        ("<", "b>", "Four.</b>"),
        ("<think",),
        ("<thin", "g>"),
        ("a <", "think>"),
    ],
)
async def test_text_about_tags_is_text(pieces: tuple[str, ...]) -> None:
    events = await answered(*(chunk(content=piece) for piece in pieces), chunk("stop"), DONE)
    assert (thoughts(events), text_said(events)) == ("", "".join(pieces))


async def test_a_call_behind_what_may_be_a_tag_comes_behind_it() -> None:
    called = chunk(tool_calls=[call_piece("add", "{}", index=0, id="one")])
    events = await answered(chunk(content="<"), called, chunk("tool_calls"), DONE)
    assert text_said(events) == "<"
    assert [type(event).__name__ for event in events][:2] == ["Text", "CallStarted"]


async def test_whole_calls_of_number_0_without_arguments_were_one_call() -> None:
    pieces = [call_piece(name, "", index=0, id=f"id-{number}") for number, name in enumerate(("add", "list", "list"))]
    events = await answered(*(chunk(tool_calls=[piece]) for piece in pieces), chunk("tool_calls"), DONE)
    assert [(made.call_id, made.name, made.arguments) for made in calls_made(events)] == [
        ("id-0", "add", "{}"),
        ("id-1", "list", "{}"),
        ("id-2", "list", "{}"),
    ]


async def test_the_reasoning_of_mistrals_models_was_not_shown() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    said = [chunk(content=[thinking]), chunk(content=[{"type": "text", "text": "Four."}]), chunk(content="!")]
    events = await answered(*said, chunk("stop"), DONE, handle="mistral/magistral-medium-latest")
    assert (thoughts(events), text_said(events)) == ("Hm.", "Four.!")


HM, FOUR = {"type": "summary_text", "text": "Hm."}, {"type": "output_text", "text": "Four."}


@pytest.mark.parametrize(
    "thought",
    [
        {"summary": [HM]},
        {"content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"text": "Hm."},
        {"reasoning": "Hm."},
    ],
)
async def test_the_reasoning_and_the_text_of_databricks_models_were_lost(thought: dict[str, Any]) -> None:
    """Gateways put the parts of another protocol into the content."""
    reasoning = {"type": "reasoning", **thought}
    for chunks in ([chunk(content=[reasoning]), chunk(content=[FOUR])], [chunk(content=[reasoning, FOUR])]):
        events = await answered(*chunks, chunk("stop"), DONE)
        assert (thoughts(events), text_said(events)) == ("Hm.", "Four.")


async def test_a_call_in_the_form_before_tool_calls_was_lost() -> None:
    pieces = [{"name": "add", "arguments": ""}, {"arguments": '{"a": '}, {"name": None, "arguments": "1}"}]
    chunks = [chunk(content="Hm."), *(chunk(function_call=piece) for piece in pieces), chunk("function_call"), DONE]
    whole = {"message": {"content": None, "function_call": {"name": "add", "arguments": '{"a": 1}'}}}
    for said in (chunks, [json.dumps({"choices": [{**whole, "finish_reason": "function_call"}]}).encode()]):
        events = await answered(*said)
        assert [(made.name, made.arguments) for made in calls_made(events)] == [("add", '{"a": 1}')]
        assert ending(events).reason == "tool_calls"


async def test_a_call_in_both_forms_is_one_call() -> None:
    called = {"name": "add", "arguments": '{"a": 1}'}
    both = chunk(tool_calls=[{"index": 0, "id": "one", "function": called}], function_call=called)
    assert len(calls_made(await answered(both, chunk("tool_calls"), DONE))) == 1


@pytest.mark.parametrize("none", [{"tool_calls": [{"index": 0}]}, {"function_call": {"name": "", "arguments": ""}}])
async def test_an_empty_call_in_each_piece_of_a_text_parted_it(none: dict[str, Any]) -> None:
    """The model read its text with a paragraph between every two words."""
    said = {"reasoning": "Hm.", "content": "Fo"}
    async with models_on_server() as (server, models):
        server.play(Turn(raw=(chunk(**said, **none), chunk(content="ur.", **none), chunk("stop"), DONE)))
        first = await ask(models, call("vllm/m"))
        spoken = AssistantMessage("Four.", model="vllm/m", provider_response=ending(first).provider_response)
        await ask(models, call("vllm/m", history(UserMessage("?"), spoken, UserMessage("And?"))))
        sent = server.requests[1].body["messages"]
    assert [one["content"] for one in sent if one["role"] == "assistant"] == ["Four."]


DETAILS = [
    {"type": "reasoning.text", "text": "Hm, ", "index": 0, "format": "anthropic-claude-v1"},
    {"type": "reasoning.text", "text": "yes.", "index": 0, "format": "anthropic-claude-v1"},
    {"type": "reasoning.text", "signature": "c2lnbmVk", "index": 0, "format": "anthropic-claude-v1"},
    {"type": "reasoning.encrypted", "data": "sealed", "id": "call_1", "index": 1, "format": "google-gemini-v1"},
    {"type": "reasoning.encrypted", "data": "sealed too", "id": "call_2", "index": 1, "format": "google-gemini-v1"},
]
"""Of OpenRouter, in the pieces in which they come."""


@pytest.mark.parametrize("handle", ["openrouter/google/gemini-3-pro-preview", "openai_compatible/claude"])
async def test_what_openrouter_wants_back_was_lost(handle: str) -> None:
    """Behind each result Gemini refused the call without its signature."""
    pieces = [chunk(reasoning_details=[piece], reasoning=piece.get("text")) for piece in DETAILS]
    called = chunk(tool_calls=[call_piece("add", '{"a": 1}', index=0, id="call_1")])
    async with models_on_server() as (server, models):
        server.play(Turn(raw=(*pieces, called, chunk("tool_calls"), DONE)))
        first = await ask(models, call(handle, tools=[ADD]))
        assert thoughts(first) == "Hm, yes."
        spoken = AssistantMessage(
            tool_calls=[ToolCall("call_1", "add", '{"a": 1}')],
            model=handle,
            provider_response=ending(first).provider_response,
        )
        messages = history(UserMessage("?"), spoken, ToolReturns([returned("call_1", "3")]))
        await ask(models, call(handle, messages, tools=[ADD]))
        sent = server.requests[1].body["messages"][2]
        assert sent["reasoning_details"] == [
            {**DETAILS[0], "text": "Hm, yes.", "signature": "c2lnbmVk"},
            *DETAILS[3:],
        ]
        await ask(models, call("openrouter/another/model", messages, tools=[ADD]))
        assert "reasoning_details" not in json.dumps(server.requests[2].body)


@pytest.mark.parametrize("field", ["delta", "message"])
async def test_half_a_character_in_the_place_of_an_object_was_an_error_of_ours(field: str) -> None:
    with pytest.raises(ModelError):
        await answered(b'data: {"choices": [{"' + field.encode() + b'": "\\ud83d"}]}\n\n')


@pytest.mark.parametrize("odd", [[None, 5, "x"], {"type": "x"}, "text", [{"type": "reasoning.text", "text": 5}], [{}]])
async def test_reasoning_details_of_another_kind_lose_no_answer(odd: object) -> None:
    chunks = [chunk(reasoning_details=odd), chunk(reasoning_details=odd, content="Four."), chunk("stop"), DONE]
    assert text_said(await answered(*chunks, handle="openrouter/a/b")) == "Four."


@pytest.mark.parametrize(
    ("event_", "words", "error_type", "retryable"),
    [
        (
            {"object": "error", "message": "This model's maximum context length is 4096 tokens.", "code": 400},
            "maximum context length",
            ModelErrorType.CONTEXT_WINDOW,
            False,
        ),
        (
            {"object": "error", "message": "No such adapter.", "code": 404},
            "such adapter",
            ModelErrorType.BAD_REQUEST,
            False,
        ),
        ({"message": {"detail": [{"msg": "Too bad."}]}, "code": 422}, "Too bad", ModelErrorType.BAD_REQUEST, False),
        ({"message": "Slow down.", "type": "rate_limit_error"}, "Slow down", ModelErrorType.RATE_LIMIT, True),
        (
            {"choices": [{"delta": {}, "finish_reason": "error", "error": {"code": 502, "message": "It broke down."}}]},
            "It broke down",
            ModelErrorType.ERROR,
            True,
        ),
        ({"message": "The engine is dead.", "choices": None}, "engine is dead", ModelErrorType.ERROR, True),
    ],
)
async def test_an_error_that_was_not_in_a_field_of_its_name_was_no_reason(
    event_: dict[str, Any], words: str, error_type: ModelErrorType, *, retryable: bool
) -> None:
    """Of vLLM, Mistral and others: it was "no finish reason", without a word of it, and tried again."""
    for frame in (data(event_), b"event: error\n" + data(event_)):
        with pytest.raises(ModelError, match=words) as caught:
            await answered(frame, DONE)
        assert (caught.value.error_type, caught.value.retryable) == (error_type, retryable)


async def test_the_words_of_a_refusal_were_lost() -> None:
    pieces = [chunk(refusal=piece) for piece in ("I cannot ", "help with that.")]
    with pytest.raises(ModelError, match=r"content_filter.*I cannot help with that\.") as caught:
        await answered(*pieces, chunk("stop"), DONE, handle="openai/gpt-4o")
    assert not caught.value.retryable


WITH_RESULT = (
    UserMessage("?"),
    AssistantMessage(tool_calls=[ToolCall("one", "add", '{"a": 1}')]),
    ToolReturns([returned("one", "3")]),
)
NOTHING_MORE = {
    ANTHROPIC: claude(reason="end_turn"),
    "openai/gpt-4o": Turn(raw=(chunk("stop", {"prompt_tokens": 5, "completion_tokens": 2}), DONE)),
}


@pytest.mark.parametrize("handle", NOTHING_MORE)
async def test_a_model_that_had_nothing_to_add_to_its_results_failed_its_run(handle: str) -> None:
    """Claude ends a turn so, with two or three tokens and without a word."""
    async with models_on_server(retries=2) as (server, models):
        server.play(NOTHING_MORE[handle])
        [end] = await ask(models, call(handle, history(*WITH_RESULT), tools=[ADD]))
        assert (ending([end]).reason, ending([end]).usage.completion_tokens) == ("stop", 2)


@pytest.mark.parametrize("handle", NOTHING_MORE)
async def test_no_word_to_a_question_is_no_answer(handle: str) -> None:
    async with models_on_server(retries=1, jitter=lambda: 0.0) as (server, models):
        server.play(*[NOTHING_MORE[handle]] * 2)
        with pytest.raises(ModelError, match="empty content"):
            await ask(models, call(handle, history(*WITH_RESULT, UserMessage("And now?")), tools=[ADD]))


async def test_thinking_with_nothing_but_blank_text_behind_it_was_sent_back() -> None:
    pieces = ({"type": "thinking_delta", "thinking": "Hm."}, {"type": "signature_delta", "signature": "c2ln"})
    said = block(0, {"type": "text", "text": "Yes."})
    thought = block(1, {"type": "thinking", "thinking": ""}, *pieces)
    blank = block(2, {"type": "text", "text": "\n\n"})
    async with models_on_server() as (server, models):
        server.play(claude(*said, *thought, *blank, reason="max_tokens"))
        first = await ask(models, call(ANTHROPIC))
        kept = ending(first).provider_response
        spoken = AssistantMessage(text=text_said(first), model=ANTHROPIC, provider_response=kept)
        await ask(models, call(ANTHROPIC, history(UserMessage("?"), spoken, ("run-2", UserMessage("Go on.")))))
        assert broken_rules(server.requests[1]) == []
