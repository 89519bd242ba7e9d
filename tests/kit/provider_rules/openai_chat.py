"""OpenAI's Chat Completions, and the additional demands of compatible servers.

Sources: OpenAI's API reference "Create chat completion" and its guide "Function calling"; where an imitating server is
stricter, its chat template is named in the rule.
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
    is_object_text,
    items_of,
    object_of,
    repeated,
)

_SPEAKER_NAME = re.compile(r"[^\s<|\\/>]{1,64}")
_INSTRUCTIONS = ("system", "developer")


def check_openai_chat(body: Mapping[str, Any]) -> list[Violation]:
    """Every rule of `POST …/chat/completions` that the body breaks."""
    messages = items_of(body, "messages")
    return [
        *messages_not_empty(messages),
        *roles_known(messages),
        *system_first(messages),
        *content_or_tool_calls(messages),
        *tool_calls_answered(messages),
        *tool_message_follows_its_call(messages),
        *call_ids_unique(messages),
        *arguments_are_an_object(messages),
        *names_match_pattern(messages, items_of(body, "tools")),
    ]


def messages_not_empty(messages: Sequence[Item]) -> Iterator[Violation]:
    """API reference, `messages`: required, an array of at least one message."""
    if not messages:
        yield Violation("openai_chat.messages_not_empty", "messages", "a request needs at least one message")


def roles_known(messages: Sequence[Item]) -> Iterator[Violation]:
    """API reference, `messages`: the message types are told apart by these roles."""
    for where, message in messages:
        role = message.get("role")
        if role not in (*_INSTRUCTIONS, "user", "assistant", "tool"):
            yield Violation("openai_chat.roles_known", where, f"{role!r} is not a role")


def system_first(messages: Sequence[Item]) -> Iterator[Violation]:
    """Chat templates that vLLM and Ollama load with many open models (Qwen, Mistral, Llama) raise on a later one.

    OpenAI itself takes them anywhere.
    """
    begun = False
    for where, message in messages:
        is_instruction = message.get("role") in _INSTRUCTIONS
        if is_instruction and begun:
            yield Violation("openai_chat.system_first", where, "instructions must come before everything else")
        begun = begun or not is_instruction


def content_or_tool_calls(messages: Sequence[Item]) -> Iterator[Violation]:
    """API reference: `content` is required, in an assistant message unless `tool_calls` is there.

    A tool message may be empty text: a tool may have nothing to say.
    """
    rule = "openai_chat.content_or_tool_calls"
    for where, message in messages:
        content = message.get("content")
        if message.get("role") == "tool":
            if not isinstance(content, str) and not array_of(content):
                yield Violation(rule, where, "a tool message needs content")
        elif is_blank(content) and not array_of(content) and not array_of(message.get("tool_calls")):
            yield Violation(rule, where, "a message needs content or tool calls")
    for where, message in messages:
        for part_where, part in items_of(message, "content", where):
            if part.get("type") == "text" and not part.get("text"):
                yield Violation(rule, part_where, "a text part must not be empty")


def tool_calls_answered(messages: Sequence[Item]) -> Iterator[Violation]:
    """Guide "Function calling": each call gets a tool message with its id, right after the message that calls.

    The API refuses a request in which anything else comes first.
    """
    for index, (where, message) in enumerate(messages):
        answered = {id_in(reply, "tool_call_id") for _, reply in _replies(messages, index)}
        for call_where, call in items_of(message, "tool_calls", where):
            if id_in(call, "id") not in answered:
                text = f"call {call.get('id')!r} has no tool message right after its own message"
                yield Violation("openai_chat.tool_calls_answered", call_where, text)


def tool_message_follows_its_call(messages: Sequence[Item]) -> Iterator[Violation]:
    """API reference, tool message: it responds to a preceding message with `tool_calls`, once per call."""
    answers: set[str] = set()
    for index, (where, message) in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        open_ids = {id_in(call, "id") for _, call in items_of(message, "tool_calls", where)}
        for reply_where, reply in _replies(messages, index):
            if id_in(reply, "tool_call_id") in open_ids:
                open_ids.discard(id_in(reply, "tool_call_id"))
                answers.add(reply_where)
    for where, message in messages:
        if message.get("role") == "tool" and where not in answers:
            text = f"no call {message.get('tool_call_id')!r} waits here for a result"
            yield Violation("openai_chat.tool_message_follows_its_call", where, text)


def call_ids_unique(messages: Sequence[Item]) -> Iterator[Violation]:
    """API reference, `tool_calls[].id`: it names one call. Only the calls of one message are told apart by it.

    Servers that count anew with every answer (`call_0`, `call_1`) are within the rule.
    """
    for where, message in messages:
        calls = items_of(message, "tool_calls", where)
        ids = [id_in(call, "id") for _, call in calls]
        for call_where, call in calls:
            if is_blank(call.get("id")):
                yield Violation("openai_chat.call_ids_unique", call_where, "a tool call needs an id")
        for call_id in repeated(ids):
            yield Violation("openai_chat.call_ids_unique", where, f"two calls have the id {call_id!r}")


def arguments_are_an_object(messages: Sequence[Item]) -> Iterator[Violation]:
    """API reference, `function.arguments`: JSON text. vLLM's and Ollama's templates parse it and need an object."""
    for where, message in messages:
        for call_where, call in items_of(message, "tool_calls", where):
            if not is_object_text(object_of(call.get("function")).get("arguments")):
                text = "arguments must be the text of a JSON object"
                yield Violation("openai_chat.arguments_are_an_object", call_where, text)


def names_match_pattern(messages: Sequence[Item], tools: Sequence[Item]) -> Iterator[Violation]:
    """API reference: a function's name is letters, digits, `_` and `-`, 64 at most; a speaker's has no spaces."""
    calls = [call for where, message in messages for call in items_of(message, "tool_calls", where)]
    functions = [tool for tool in tools if tool.value.get("type", "function") == "function"]
    for where, value in [*calls, *functions]:
        name = object_of(value.get("function")).get("name")
        if not FUNCTION_NAME.fullmatch(str(name or "")):
            yield Violation("openai_chat.names_match_pattern", where, f"{name!r} cannot be a function's name")
    for where, message in messages:
        name = message.get("name")
        if name is not None and not _SPEAKER_NAME.fullmatch(str(name)):
            yield Violation("openai_chat.names_match_pattern", where, f"{name!r} cannot be a speaker's name")


def _replies(messages: Sequence[Item], index: int) -> Iterator[Item]:
    """The tool messages right after a message."""
    for item in messages[index + 1 :]:
        if item.value.get("role") != "tool":
            return
        yield item
