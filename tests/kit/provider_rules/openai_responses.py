"""OpenAI's Responses API: a list of items instead of messages, the calls and their outputs among them.

Sources: OpenAI's API reference "Create a model response", its guides "Function calling" and "Reasoning models", and
for what the API refuses without a word in the reference, the reports openai/openai-node#1567 and
openai/openai-dotnet#1050.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.kit.provider_rules.violation import FUNCTION_NAME, Item, Violation, id_in, is_object_text, items_of, repeated


def check_openai_responses(body: Mapping[str, Any]) -> list[Violation]:
    """Every rule of `POST …/responses` that the body breaks."""
    items = items_of(body, "input")
    goes_on = bool(body.get("previous_response_id") or body.get("conversation"))
    return [
        *input_not_empty(body),
        *items_known(items),
        *message_content_not_empty(items),
        *call_has_output(items),
        *([] if goes_on else output_has_call(items)),
        *call_ids_unique(items),
        *arguments_are_an_object(items),
        *reasoning_is_followed(items),
        *names_match_pattern(items, items_of(body, "tools")),
    ]


def input_not_empty(body: Mapping[str, Any]) -> Iterator[Violation]:
    """API reference, `input`: text or a list of items; there is nothing to answer without one."""
    if not body.get("input"):
        yield Violation("openai_responses.input_not_empty", "input", "a request needs input")


def items_known(items: Sequence[Item]) -> Iterator[Violation]:
    """API reference, `input`: an item names its type; a message may do with its role."""
    for where, item in items:
        if not _kind(item):
            yield Violation("openai_responses.items_known", where, "an item needs a type, or the role of a message")


def message_content_not_empty(items: Sequence[Item]) -> Iterator[Violation]:
    """API reference, input message: `content` is required, text or a list of parts."""
    for where, item in items:
        if _kind(item) == "message" and not item.get("content"):
            yield Violation("openai_responses.message_content_not_empty", where, "a message needs content")


def call_has_output(items: Sequence[Item]) -> Iterator[Violation]:
    """Guide "Function calling": every `function_call` is answered by a `function_call_output` with its `call_id`.

    The output comes after its call and before the model or the user speaks again.
    """
    for index, (where, item) in enumerate(items):
        if _kind(item) == "function_call" and id_in(item, "call_id") not in _outputs_behind(items, index):
            text = f"call {item.get('call_id')!r} has no output before the next message"
            yield Violation("openai_responses.call_has_output", where, text)


def output_has_call(items: Sequence[Item]) -> Iterator[Violation]:
    """API reference, `function_call_output`: its `call_id` is that of a call the model made before; one output each."""
    waiting: set[str] = set()
    for where, item in items:
        if _kind(item) == "function_call":
            waiting.add(id_in(item, "call_id"))
        elif _kind(item) == "function_call_output":
            if id_in(item, "call_id") not in waiting:
                text = f"no call {item.get('call_id')!r} before this waits for an output"
                yield Violation("openai_responses.output_has_call", where, text)
            waiting.discard(id_in(item, "call_id"))


def call_ids_unique(items: Sequence[Item]) -> Iterator[Violation]:
    """API reference, `call_id`: calls and outputs find each other by it alone, so it is unique in the whole input."""
    calls = [id_in(item, "call_id") for _, item in items if _kind(item) == "function_call"]
    for call_id in repeated(calls):
        yield Violation("openai_responses.call_ids_unique", "input", f"two calls have the call_id {call_id!r}")


def arguments_are_an_object(items: Sequence[Item]) -> Iterator[Violation]:
    """API reference, `function_call.arguments`: text of a JSON object."""
    for where, item in items:
        if _kind(item) == "function_call" and not is_object_text(item.get("arguments")):
            text = "arguments must be the text of a JSON object"
            yield Violation("openai_responses.arguments_are_an_object", where, text)


def reasoning_is_followed(items: Sequence[Item]) -> Iterator[Violation]:
    """Guide "Reasoning models" and openai-node#1567: reasoning goes back together with what it led to.

    The item after it (or after several of them) is the model's message or call.
    """
    for index, (where, item) in enumerate(items):
        if _kind(item) != "reasoning":
            continue
        nothing: dict[str, Any] = {}
        following = next((later for _, later in items[index + 1 :] if _kind(later) != "reasoning"), nothing)
        is_said = _kind(following) == "message" and following.get("role") == "assistant"
        if not is_said and not _kind(following).endswith("_call"):
            text = "reasoning must be followed by the message or call that it led to"
            yield Violation("openai_responses.reasoning_is_followed", where, text)


def names_match_pattern(items: Sequence[Item], tools: Sequence[Item]) -> Iterator[Violation]:
    """API reference, `function_call.name` and a function tool's `name`: letters, digits, `_` and `-`, 64 at most."""
    calls = [item for item in items if _kind(item.value) == "function_call"]
    functions = [tool for tool in tools if tool.value.get("type") == "function"]
    for where, value in [*calls, *functions]:
        name = value.get("name")
        if not FUNCTION_NAME.fullmatch(str(name or "")):
            yield Violation("openai_responses.names_match_pattern", where, f"{name!r} cannot be a function's name")


def _kind(item: Mapping[str, Any]) -> str:
    """The item's type. A message may leave it out."""
    is_message = item.get("role") in ("user", "assistant", "system", "developer")
    return str(item.get("type") or ("message" if is_message else ""))


def _outputs_behind(items: Sequence[Item], index: int) -> set[str]:
    found: set[str] = set()
    for _, item in items[index + 1 :]:
        if _kind(item) == "function_call_output":
            found.add(id_in(item, "call_id"))
        elif _kind(item) == "message" and item.get("role") != "assistant":
            break
    return found
