"""Anthropic's Messages API.

Sources: Anthropic's API reference "Messages", its guides "Tool use" (how to implement it, handling tool results) and
"Extended thinking", and the reference page "Errors" for what the API refuses.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.kit.provider_rules.violation import (
    FUNCTION_NAME,
    Item,
    Violation,
    array_of,
    id_in,
    is_blank,
    items_of,
    object_of,
    repeated,
)

_CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")
_THINKING = ("thinking", "redacted_thinking")


class _Turn:
    """Messages of one role in a row, which the API reads as one; text alone counts as one block."""

    def __init__(self, role: Any) -> None:
        self.role = role
        self.blocks: list[Item] = []

    def of_type(self, *types: str) -> list[Item]:
        return [block for block in self.blocks if block.value.get("type") in types]

    def starts_with(self, *types: str) -> bool:
        return bool(self.blocks) and self.blocks[0].value.get("type") in types


def check_anthropic(body: Mapping[str, Any]) -> list[Violation]:
    """Every rule of `POST …/messages` that the body breaks."""
    messages = items_of(body, "messages")
    turns = _turns(messages)
    return [
        *user_speaks_first(messages),
        *user_speaks_last(messages),
        *roles_known(messages),
        *content_not_empty(messages),
        *text_not_blank(body, turns),
        *prefill_without_trailing_whitespace(turns),
        *tool_result_follows_tool_use(turns),
        *tool_results_first(turns),
        *tool_use_precedes_tool_result(turns),
        *tool_use_ids_unique(turns),
        *tool_use_ids_match_pattern(turns),
        *tool_use_input_is_object(turns),
        *names_match_pattern(turns, items_of(body, "tools")),
        *thinking_is_signed(turns),
        *thinking_comes_first(messages),
        *thinking_never_last(messages),
        *thinking_starts_tool_turn(body, turns),
    ]


def user_speaks_first(messages: Sequence[Item]) -> Iterator[Violation]:
    """Reference "Messages": user and assistant take turns, and the user begins."""
    if not messages or messages[0].value.get("role") != "user":
        yield Violation("anthropic.user_speaks_first", "messages[0]", "the first message must be the user's")


def user_speaks_last(messages: Sequence[Item]) -> Iterator[Violation]:
    """Reference "Messages": a last assistant message is one to go on with, which newer models and thinking refuse."""
    if messages and messages[-1].value.get("role") != "user":
        yield Violation("anthropic.user_speaks_last", messages[-1].where, "the last message must be the user's")


def roles_known(messages: Sequence[Item]) -> Iterator[Violation]:
    """Reference "Messages": `role` is `user` or `assistant`; instructions are the field `system`."""
    for where, message in messages:
        if message.get("role") not in ("user", "assistant"):
            yield Violation("anthropic.roles_known", where, f"{message.get('role')!r} is not a role")


def content_not_empty(messages: Sequence[Item]) -> Iterator[Violation]:
    """Reference "Messages", `content`: every message says something; only a last assistant message may be empty."""
    for index, (where, message) in enumerate(messages):
        may_be_empty = index == len(messages) - 1 and message.get("role") == "assistant"
        if not message.get("content") and not may_be_empty:
            yield Violation("anthropic.content_not_empty", where, "a message needs content")


def text_not_blank(body: Mapping[str, Any], turns: Sequence[_Turn]) -> Iterator[Violation]:
    """Reference "Messages", text block: at least one character, and the API refuses whitespace alone.

    It holds for the instructions and inside a tool's result, too.
    """
    blocks = [*items_of(body, "system"), *(block for turn in turns for block in turn.blocks)]
    nested = [part for where, block in blocks for part in items_of(block, "content", where)]
    for where, block in [*blocks, *nested]:
        if block.get("type") == "text" and is_blank(block.get("text")):
            yield Violation("anthropic.text_not_blank", where, "a text block needs more than whitespace")


def prefill_without_trailing_whitespace(turns: Sequence[_Turn]) -> Iterator[Violation]:
    """Guide "Prefill Claude's response": a last assistant message must not end in whitespace."""
    if not turns or turns[-1].role != "assistant" or not turns[-1].blocks:
        return
    where, last = turns[-1].blocks[-1]
    text = last.get("text")
    if isinstance(text, str) and text != text.rstrip():
        rule = "anthropic.prefill_without_trailing_whitespace"
        yield Violation(rule, where, "an answer to go on with must not end in whitespace")


def tool_result_follows_tool_use(turns: Sequence[_Turn]) -> Iterator[Violation]:
    """Guide "Tool use": the very next message holds a `tool_result` for every `tool_use`, one each."""
    rule = "anthropic.tool_result_follows_tool_use"
    for turn, following in zip(turns, [*turns[1:], _Turn("nobody")], strict=False):
        answered = [id_in(block, "tool_use_id") for _, block in following.of_type("tool_result")]
        for where, block in turn.of_type("tool_use"):
            if id_in(block, "id") not in answered:
                yield Violation(rule, where, f"{block.get('id')!r} has no tool_result in the next message")
            elif answered.count(id_in(block, "id")) > 1:
                yield Violation(rule, where, f"{block.get('id')!r} has more than one tool_result")


def tool_results_first(turns: Sequence[_Turn]) -> Iterator[Violation]:
    """Guide "Tool use": in a user message the `tool_result` blocks come before everything else."""
    for turn in turns:
        results = turn.of_type("tool_result")
        for block in results:
            if block not in turn.blocks[: len(results)]:
                yield Violation("anthropic.tool_results_first", block.where, "tool_result blocks come first")


def tool_use_precedes_tool_result(turns: Sequence[_Turn]) -> Iterator[Violation]:
    """Guide "Tool use": each `tool_result` names a `tool_use` of the message before it; only a user gives results."""
    for previous, turn in zip([_Turn("nobody"), *turns[:-1]], turns, strict=False):
        called = {id_in(block, "id") for _, block in previous.of_type("tool_use")}
        for where, block in turn.of_type("tool_result"):
            if id_in(block, "tool_use_id") not in called or turn.role != "user":
                text = f"{block.get('tool_use_id')!r} was not called in the message before"
                yield Violation("anthropic.tool_use_precedes_tool_result", where, text)


def tool_use_ids_unique(turns: Sequence[_Turn]) -> Iterator[Violation]:
    """Reference "Messages", `tool_use.id`: the API refuses two calls with one id, anywhere in the request."""
    ids = [id_in(block, "id") for turn in turns for _, block in turn.of_type("tool_use")]
    for call_id in repeated(ids):
        yield Violation("anthropic.tool_use_ids_unique", "messages", f"two calls have the id {call_id!r}")


def tool_use_ids_match_pattern(turns: Sequence[_Turn]) -> Iterator[Violation]:
    """Reference "Messages", `tool_use.id` and `tool_result.tool_use_id`: `^[a-zA-Z0-9_-]+$`."""
    for turn in turns:
        for where, block in turn.of_type("tool_use", "tool_result"):
            call_id = id_in(block, "id" if block.get("type") == "tool_use" else "tool_use_id")
            if not _CALL_ID.fullmatch(call_id):
                text = f"{call_id!r} is not letters, digits, _ and -"
                yield Violation("anthropic.tool_use_ids_match_pattern", where, text)


def tool_use_input_is_object(turns: Sequence[_Turn]) -> Iterator[Violation]:
    """Reference "Messages", `tool_use.input`: an object, never its text."""
    for turn in turns:
        for where, block in turn.of_type("tool_use"):
            if not isinstance(block.get("input"), dict):
                yield Violation("anthropic.tool_use_input_is_object", where, "input must be an object")


def names_match_pattern(turns: Sequence[_Turn], tools: Sequence[Item]) -> Iterator[Violation]:
    """Guide "Tool use", `name`: letters, digits, `_` and `-`, 64 at most."""
    calls = [block for turn in turns for block in turn.of_type("tool_use")]
    for where, value in [*calls, *tools]:
        if not FUNCTION_NAME.fullmatch(str(value.get("name") or "")):
            yield Violation("anthropic.names_match_pattern", where, f"{value.get('name')!r} cannot be a tool's name")


def thinking_is_signed(turns: Sequence[_Turn]) -> Iterator[Violation]:
    """Guide "Extended thinking", preserving thinking blocks: they go back unchanged, signature (or data) and all."""
    for turn in turns:
        for where, block in turn.of_type(*_THINKING):
            if is_blank(block.get("signature" if block.get("type") == "thinking" else "data")):
                yield Violation("anthropic.thinking_is_signed", where, "thinking goes back with its signature")


def thinking_comes_first(messages: Sequence[Item]) -> Iterator[Violation]:
    """Guide "Extended thinking": in an assistant message the thinking comes before text and calls."""
    for where, message in messages:
        spoken = message.get("role") != "assistant"
        for block_where, block in items_of(message, "content", where):
            is_thinking = block.get("type") in _THINKING
            if is_thinking and spoken:
                text = "thinking comes before everything else that the assistant says"
                yield Violation("anthropic.thinking_comes_first", block_where, text)
            spoken = spoken or not is_thinking


def thinking_never_last(messages: Sequence[Item]) -> Iterator[Violation]:
    """What the API refuses without a word in the guide: the final block of an assistant message is no thinking
    (forgecode#2107 has the finding)."""
    for where, message in messages:
        last = next((block for _, block in items_of(message, "content", where)[::-1]), dict[str, Any]())
        if message.get("role") == "assistant" and last.get("type") in _THINKING:
            yield Violation("anthropic.thinking_never_last", where, "something must be said behind thinking")


def thinking_starts_tool_turn(body: Mapping[str, Any], turns: Sequence[_Turn]) -> Iterator[Violation]:
    """Guide "Extended thinking" with tool use: with thinking enabled, the calls being answered began with thinking.

    The whole loop of calls and results is one turn of the assistant, and models think once in it, so one message that
    starts with thinking is enough. Adaptive thinking has no such rule: the model may not have thought at all.
    """
    if object_of(body.get("thinking")).get("type") != "enabled" or not turns:
        return
    loop: list[_Turn] = []
    for turn, previous in zip(reversed(turns[1:]), reversed(turns[:-1]), strict=True):
        if turn.role == "user" and not turn.starts_with("tool_result"):
            break
        if previous.role == "assistant":
            loop.append(previous)
    if loop and not any(turn.starts_with(*_THINKING) for turn in loop):
        where = loop[0].blocks[0].where if loop[0].blocks else "messages"
        text = "with thinking enabled, the assistant's message before a tool_result starts with a thinking block"
        yield Violation("anthropic.thinking_starts_tool_turn", where, text)


def _turns(messages: Sequence[Item]) -> list[_Turn]:
    turns: list[_Turn] = []
    for where, message in messages:
        if not turns or turns[-1].role != message.get("role"):
            turns.append(_Turn(message.get("role")))
        content = message.get("content")
        if isinstance(content, str):
            turns[-1].blocks.append(Item(f"{where}.content", {"type": "text", "text": content}))
        elif array_of(content):
            turns[-1].blocks.extend(items_of(message, "content", where))
    return turns
