"""Gemini's `generateContent` and `streamGenerateContent`.

Sources: Google's "Gemini API reference" (Content, Part, FunctionCall, FunctionResponse), its guide "Function calling",
and for what the API refuses without a word in the reference, the report google-gemini/gemini-cli#3814.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.kit.provider_rules.violation import Item, Violation, items_of, object_of

_FUNCTION_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")
_IN_JSON_OR_PROTO = {
    "functionCall": "function_call",
    "functionResponse": "function_response",
    "functionDeclarations": "function_declarations",
}
"""The API reads both spellings of a field."""

_BESIDES_DATA = frozenset({"thought", "videoMetadata", "video_metadata", "mediaResolution", "media_resolution"})
"""Fields of a part that only describe what is in it."""


def check_gemini(body: Mapping[str, Any]) -> list[Violation]:
    """Every rule of `POST …:generateContent` that the body breaks."""
    contents = items_of(body, "contents")
    return [
        *user_speaks_first(contents),
        *user_speaks_last(contents),
        *roles_alternate(contents),
        *parts_not_empty(body, contents),
        *function_response_follows_call(contents),
        *function_call_precedes_response(contents),
        *arguments_are_an_object(contents),
        *response_is_an_object(contents),
        *names_match_pattern(body, contents),
    ]


def user_speaks_first(contents: Sequence[Item]) -> Iterator[Violation]:
    """Guide "Text generation", conversations: the history begins with the user; contents are required."""
    if not contents or contents[0].value.get("role", "user") != "user":
        yield Violation("gemini.user_speaks_first", "contents[0]", "the first turn must be the user's")


def user_speaks_last(contents: Sequence[Item]) -> Iterator[Violation]:
    """Guide "Text generation", conversations: the model answers the user's turn, which comes last."""
    if contents and contents[-1].value.get("role", "user") != "user":
        yield Violation("gemini.user_speaks_last", contents[-1].where, "the last turn must be the user's")


def roles_alternate(contents: Sequence[Item]) -> Iterator[Violation]:
    """Reference, `Content.role`: `user` or `model`; several turns alternate between them.

    A turn that holds nothing but function responses is the tools', whatever its role says: the user may speak after it
    (pydantic-ai issue 4210 has the finding).
    """
    previous = None
    for where, content in contents:
        role = content.get("role", "user")
        if role not in ("user", "model"):
            yield Violation("gemini.roles_alternate", where, f"{role!r} is not a role")
        speaker = "tools" if role == "user" and _holds_results_only(content, where) else role
        if speaker == previous:
            yield Violation("gemini.roles_alternate", where, f"two turns of the {speaker} in a row")
        previous = speaker


def _holds_results_only(content: Mapping[str, Any], where: str) -> bool:
    parts = items_of(content, "parts", where)
    return bool(parts) and all("functionResponse" in part.value or "function_response" in part.value for part in parts)


def parts_not_empty(body: Mapping[str, Any], contents: Sequence[Item]) -> Iterator[Violation]:
    """Reference, `Content.parts` and `Part.data`: a turn has parts, and each part has its data.

    Empty text that carries a thought signature has to go back as it came.
    """
    system = object_of(body.get("systemInstruction") or body.get("system_instruction"))
    whole = [*contents, *([Item("systemInstruction", system)] if system else [])]
    for where, content in whole:
        parts = items_of(content, "parts", where)
        if not parts:
            yield Violation("gemini.parts_not_empty", where, "a turn needs parts")
        for part_where, part in parts:
            data = {key: value for key, value in part.items() if key not in _BESIDES_DATA}
            if not data or (data.get("text") == "" and len(data) == 1):
                yield Violation("gemini.parts_not_empty", part_where, "a part needs data")


def function_response_follows_call(contents: Sequence[Item]) -> Iterator[Violation]:
    """Guide "Function calling" and gemini-cli#3814: the next turn answers every call, as many as there are.

    The responses name their functions in the order of the calls: the API has no ids to go by.
    """
    rule = "gemini.function_response_follows_call"
    for (where, content), following in zip(contents, [*contents[1:], Item("", {})], strict=False):
        called = _names(content, where, "functionCall")
        if called and called != _names(following.value, following.where, "functionResponse"):
            yield Violation(rule, where, f"the next turn must hold the responses of {', '.join(called)}, in this order")


def function_call_precedes_response(contents: Sequence[Item]) -> Iterator[Violation]:
    """Guide "Function calling": a turn of responses comes right after the model's turn of calls."""
    for previous, (where, content) in zip([Item("", {}), *contents[:-1]], contents, strict=False):
        called = set(_names(previous.value, previous.where, "functionCall"))
        for part_where, response in _data(content, where, "functionResponse"):
            if response.get("name") not in called or content.get("role", "user") != "user":
                text = f"{response.get('name')!r} was not called in the turn before"
                yield Violation("gemini.function_call_precedes_response", part_where, text)


def arguments_are_an_object(contents: Sequence[Item]) -> Iterator[Violation]:
    """Reference, `FunctionCall.args`: a Struct, so a JSON object, or absent."""
    for where, content in contents:
        for part_where, call in _data(content, where, "functionCall"):
            if not isinstance(call.get("args", {}), dict):
                yield Violation("gemini.arguments_are_an_object", part_where, "args must be an object")


def response_is_an_object(contents: Sequence[Item]) -> Iterator[Violation]:
    """Reference, `FunctionResponse.response`: required, a Struct, so a JSON object."""
    for where, content in contents:
        for part_where, response in _data(content, where, "functionResponse"):
            if not isinstance(response.get("response"), dict):
                yield Violation("gemini.response_is_an_object", part_where, "response must be an object")


def names_match_pattern(body: Mapping[str, Any], contents: Sequence[Item]) -> Iterator[Violation]:
    """Reference, `FunctionDeclaration.name`: begins with a letter or `_`, then also digits, `.`, `:` and `-`; 64."""
    named = [call for where, content in contents for call in _data(content, where, "functionCall")]
    for where, tool in items_of(body, "tools"):
        for spelling in ("functionDeclarations", _IN_JSON_OR_PROTO["functionDeclarations"]):
            named.extend(items_of(tool, spelling, where))
    for where, value in named:
        if not _FUNCTION_NAME.fullmatch(str(value.get("name") or "")):
            yield Violation("gemini.names_match_pattern", where, f"{value.get('name')!r} cannot be a function's name")


def _data(content: Mapping[str, Any], where: str, field: str) -> list[Item]:
    """What the turn's parts hold in `field`, the parts without it left out."""
    spellings = (field, _IN_JSON_OR_PROTO[field])
    return [
        Item(part_where, object_of(part[spelling]))
        for part_where, part in items_of(content, "parts", where)
        for spelling in spellings
        if spelling in part
    ]


def _names(content: Mapping[str, Any], where: str, field: str) -> list[str]:
    return [str(value.get("name")) for _, value in _data(content, where, field)]
