"""Answers are stored in one form, which every wire can read."""

import json

from pydantic_ai import messages as sdk

from worker.models.history_mapping import Given, ReasoningPart, TextPart, ToolCallPart, read_kept, write_kept

GIVEN = Given("anthropic", "claude", "msg_1", "tool_call")
PARTS = [
    ReasoningPart("Hm.", None, "signed"),
    ReasoningPart("", "redacted_thinking", "sealed"),
    TextPart("Adding."),
    ToolCallPart("one", "add", '{"a": 1}', {"extra_content": {"google": {"thought_signature": "s"}}}),
]


def test_the_sdk_reads_what_our_own_wires_keep() -> None:
    kept = write_kept(PARTS, GIVEN)
    assert kept is not None
    [answer] = sdk.ModelMessagesTypeAdapter.validate_json(kept)
    assert isinstance(answer, sdk.ModelResponse)
    assert (answer.provider_name, answer.model_name, answer.provider_response_id) == ("anthropic", "claude", "msg_1")
    signed, sealed, said, called = answer.parts
    assert isinstance(signed, sdk.ThinkingPart)
    assert (signed.content, signed.signature, signed.provider_name) == ("Hm.", "signed", "anthropic")
    assert isinstance(sealed, sdk.ThinkingPart)
    assert (sealed.id, sealed.signature) == ("redacted_thinking", "sealed")
    assert isinstance(said, sdk.TextPart)
    assert isinstance(called, sdk.ToolCallPart)
    assert (called.tool_call_id, called.tool_name, called.args) == ("one", "add", '{"a": 1}')
    assert called.provider_details == {"extra_content": {"google": {"thought_signature": "s"}}}


def test_what_the_sdk_keeps_is_read() -> None:
    kept = sdk.ModelResponse(
        parts=[
            sdk.ThinkingPart("Hm.", signature="signed", provider_name="anthropic"),
            sdk.TextPart("Adding."),
            sdk.ToolCallPart("add", {"a": 1}, "one"),
        ],
        provider_name="anthropic",
    )
    answer = read_kept(sdk.ModelMessagesTypeAdapter.dump_json([kept]).decode(), "anthropic")
    assert answer is not None
    thought = ReasoningPart("Hm.", None, "signed")
    assert answer.parts == [thought, TextPart("Adding."), ToolCallPart("one", "add", '{"a":1}')]


def test_what_is_kept_is_read_again() -> None:
    kept = write_kept(PARTS, GIVEN)
    assert kept is not None
    answer = read_kept(kept, "anthropic")
    assert answer is not None
    assert answer.parts == PARTS
    assert read_kept(kept, "openai") is None, "signatures are worth nothing elsewhere"


def test_an_answer_of_text_and_calls_is_not_kept() -> None:
    assert write_kept([TextPart("Hi."), ToolCallPart("one", "add", "{}")], GIVEN) is None


def test_parts_of_other_wires_are_passed_over() -> None:
    part = {"part_kind": "file", "content": "R0lG"}
    answer = read_kept(json.dumps([{"kind": "response", "provider_name": "google", "parts": [part]}]), "google")
    assert answer is not None
    assert answer.parts == []
    assert read_kept("[1]", "google") is None
