"""Chat templates' special tokens in the text of a request.

Many hosts of open models tokenize the texts of users and tools with special tokens allowed: a literal `<|im_start|>` in
a tool's result reaches the model as the real token, and the text after it as a turn of its own, in any role that the
text names. So we put a zero-width joiner into each such token. The model may copy it, or another invisible character,
into its answer, so we remove it there again.

The shapes of the tokens are those of pydantic-ai (`_special_tokens.py`).

This module also decodes providers' JSON, to the extent that we need it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import msgspec
import msgspec.inspect

from shared.domain.errors import ModelError, ModelErrorType

_Event = TypeVar("_Event")

NOT_READ = (msgspec.DecodeError, UnicodeDecodeError)
"""The errors that msgspec raises for invalid JSON, and for bytes inside a text that are not UTF-8."""

_NUMBER = re.compile("-?[0-9]{1,18}")


class Decoder(Generic[_Event]):
    """Parses the events of one protocol."""

    def __init__(self, event: type[_Event]) -> None:
        self._event = event
        self._type = msgspec.inspect.type_info(event)
        self._decoder = msgspec.json.Decoder(event)

    def decode(self, data: bytes) -> _Event:
        """The event. Raises `ModelError` if the data is not JSON, or has another form than every answer."""
        try:
            return self._decoder.decode(data)
        except (*NOT_READ, RecursionError) as error:
            return self._decode_otherwise(data, error)

    def _decode_otherwise(self, data: bytes, why: Exception) -> _Event:
        try:
            value = read_json(data)
        except (ValueError, RecursionError):
            raise not_json(data) from why
        # Some servers send null, a list or a text to keep the connection open.
        return self.convert(cast("object", value) if isinstance(value, dict) else {})

    def convert(self, value: object) -> _Event:
        """The event from parsed JSON. Raises `ModelError`."""
        try:
            return msgspec.convert(fitted(value, self._type) or {}, self._event)
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            raise ModelError(ModelErrorType.ERROR, f"The model's answer could not be read: {error}") from error


def fitted(value: Any, kind: msgspec.inspect.Type) -> Any:
    """The value with its texts and numbers in the types of the fields. Servers that imitate a protocol send numbers as
    ids and texts as numbers, and one object for a list of one. A value that is empty or cannot be converted becomes
    null, or is left out where null is not allowed, as if the server had not sent it. Unknown fields and values of
    another structure stay unchanged: they may be part of the answer, or are refused later."""
    match kind:
        case msgspec.inspect.StructType(fields=fields) if isinstance(value, dict):
            given = cast("dict[str, Any]", value)
            types = {field.encode_name: field.type for field in fields}
            fitting = {name: fitted(one, types[name]) if name in types else one for name, one in given.items()}
            return {name: one for name, one in fitting.items() if one is not None or _takes_null(types.get(name))}
        case msgspec.inspect.ListType(item_type=item) if isinstance(value, list) or (value and isinstance(value, dict)):
            values = cast("list[Any]", value if isinstance(value, list) else [value])
            return [fitting for one in values if (fitting := fitted(one, item)) is not None]
        case msgspec.inspect.StructType() | msgspec.inspect.ListType() if not value:
            return None
        case msgspec.inspect.DictType():
            return cast("object", value) if isinstance(value, dict) else None
        case msgspec.inspect.UnionType(types=types):
            [only] = [one for one in types if not isinstance(one, msgspec.inspect.NoneType)]
            return None if value is None else fitted(value, only)
        case msgspec.inspect.StrType():
            return as_text(value)
        case msgspec.inspect.IntType():
            return whole_number(value)
        case msgspec.inspect.FloatType():
            return value if isinstance(value, int | float) and not isinstance(value, bool) else None
        case _:
            return value


def _takes_null(kind: msgspec.inspect.Type | None) -> bool:
    return not isinstance(kind, msgspec.inspect.StrType | msgspec.inspect.IntType | msgspec.inspect.ListType)


def as_text(value: object) -> str | None:
    """The text that a server means by this value, if any."""
    match value:
        case str():
            return value
        case bool():
            return None
        case int() | float():
            return str(value)
        case _:
            return None


def whole_number(value: object) -> int | None:
    """The whole number that a server means by this value, if any."""
    match value:
        case bool():
            return None
        case int():
            return value
        case float() if value.is_integer():
            return int(value)
        case str() if _NUMBER.fullmatch(value):
            return int(value)
        case _:
            return None


def read_json(data: bytes) -> Any:
    """The value of the JSON, even if it contains half a character (see `special_tokens.py`) or invalid bytes. Raises
    `ValueError` or `RecursionError`."""
    try:
        return msgspec.json.decode(data)
    except NOT_READ:
        try:
            return json.loads(data.decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError:
            return json.loads(data.decode("utf-8", "replace"))


def is_json(data: bytes) -> bool:
    """Whether `read_json` can parse it."""
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (*NOT_READ, RecursionError):
        try:
            read_json(data)
        except (ValueError, RecursionError):
            return False
    return True


_MARKUP = re.compile(r"<(script|style)\b.*?(?:</\1>|\Z)|<[^<>]*>", re.DOTALL | re.IGNORECASE)
"""It takes linear time, also for markup that does not end."""

_EXCERPT = 200
"""Characters of a page or an unknown body that an error contains."""

_READ_FOR_EXCERPT = 20_000
"""Bytes of an event of the wrong form in which an error looks for words."""


def excerpt_of(text: str) -> str:
    """The beginning of a page or a text, without markup."""
    return whole_characters(" ".join(_MARKUP.sub(" ", text).split())[:_EXCERPT])


def not_json(data: bytes) -> ModelError:
    """The error for an event of a stream."""
    words = excerpt_of(data[:_READ_FOR_EXCERPT].decode(errors="replace"))
    return ModelError(ModelErrorType.ERROR, f"The model's stream held an event that is not JSON: {words}")


def number_in(fields: object, *path: str) -> int:
    """The number at the end of the path; 0 if there is none."""
    value: Any = fields
    for name in path:
        value = cast("Mapping[str, Any]", value).get(name) if isinstance(value, Mapping) else None
    return whole_number(value) or 0


_JOINER = "\u200d"
_INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff"
"""Characters that models write in place of the joiner."""

_WIDE_BAR = "\uff5c"
_NAME = rf'[^\s<>|"{_INVISIBLE}]'
_WIDE_NAME = rf'[^\s<>{_WIDE_BAR}"{_INVISIBLE}]'
_ENDINGS: tuple[tuple[str, str], ...] = (
    (
        "<",
        rf"\|{_NAME}{{1,64}}\|>|{_WIDE_BAR}{_WIDE_NAME}{{1,64}}{_WIDE_BAR}>|\|[a-z_]{{1,32}}>|[a-z_]{{1,32}}\|>"
        r"|start_of_turn>|end_of_turn>",
    ),
    (
        r"\[",
        r"\|(?:system|tool|assistant|user|endofturn)\|\]|/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS)\]"
        r"|TOOL_CALLS\]|e~\[",
    ),
    (r"\]", r"~b\]|~!b\["),
)
"""Each token's first character and what can follow it."""

_TOKEN_START = re.compile("|".join(f"{first}(?={ending})" for first, ending in _ENDINGS))
_JOINED = re.compile("|".join(f"(?<={first})[{_INVISIBLE}](?={ending})" for first, ending in _ENDINGS))
_MAY_BE_JOINED = re.compile(rf"(?<=[<\[\]])[{_INVISIBLE}]")
_ANY_INVISIBLE = re.compile(f"[{_INVISIBLE}]")
_LONGEST_TOKEN = 70
"""Characters after the joiner beyond which no token can end."""

_SERVED_BY_THEIR_MAKERS = re.compile(
    r"claude|cohere-|command|gemini|grok|muse-|nova-|sonar|chatgpt|codex|computer-use|dall-e|ft:|gpt-(?!oss)|o[134]"
    r"|omni-|sora|text-|tts-|whisper",
    re.IGNORECASE,
)
"""Models that only their makers serve, whose servers treat such text as plain text."""


def tokenizes_text(model: str) -> bool:
    """Whether the model's host may interpret special tokens in messages."""
    return _SERVED_BY_THEIR_MAKERS.match(model.removeprefix("~").rpartition("/")[2]) is None


_MISTRALS = re.compile("mi[sx]tral|ministral|magistral|devstral|codestral|pixtral", re.IGNORECASE)


def is_mistrals(model: str) -> bool:
    """Whether the model is one of Mistral's, whose templates refuse a user's message after results."""
    return _MISTRALS.search(model) is not None


def alternating(messages: Sequence[dict[str, Any]], *, answers_results: bool) -> list[dict[str, Any]]:
    """Joins consecutive messages of the user: many templates demand that user and model take turns.

    `answers_results`: the model must answer results before the user speaks.
    """
    turns: list[dict[str, Any]] = []
    for message in messages:
        role, before = message["role"], turns[-1]["role"] if turns else ""
        if role == before == "user":
            turns[-1] = {"role": role, "content": _both(turns[-1]["content"], message["content"])}
            continue
        if role == "user" and before == "tool" and answers_results:
            turns.append({"role": "assistant", "content": "OK."})
        turns.append(message)
    return turns


def _both(first: str | list[Any], second: str | list[Any]) -> str | list[Any]:
    """The contents of two messages as the content of one."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    contents = ([{"type": "text", "text": one}] if isinstance(one, str) else one for one in (first, second))
    return [part for content in contents for part in content]


def escaped_tokens(text: str) -> str:
    """The text with a joiner after the first character of each special token."""
    return _TOKEN_START.sub(lambda found: found[0] + _JOINER, text)


class SpecialTokenUnescaper:
    """Removes the joiner from text that arrives in pieces of any size.

    Only text from a joiner on is ever held back, until the following text shows whether it is inside a token.
    """

    def __init__(self) -> None:
        self._before = ""
        """The last emitted character: a token may begin with it."""
        self._held = ""

    def more(self, piece: str) -> str:
        """Returns the part of the received text that can be emitted."""
        if not self._held and (piece.isascii() or _ANY_INVISIBLE.search(piece) is None):
            self._before = piece[-1:] or self._before
            return piece
        text = _JOINED.sub("", self._before + self._held + piece)[len(self._before) :]
        held_from = self._first_that_may_be_joined(text)
        text, self._held = text[:held_from], text[held_from:]
        self._before = text[-1:] or self._before
        return text

    def rest(self) -> str:
        """Returns the held text at the end, which was not a token."""
        held, self._held = self._held, ""
        return held

    def _first_that_may_be_joined(self, text: str) -> int:
        behind = self._before + text
        for found in _MAY_BE_JOINED.finditer(behind):
            if len(behind) - found.end() < _LONGEST_TOKEN and not _ENDS_NAME.search(behind, found.end()):
                return found.start() - len(self._before)
        return len(text)


_ENDS_NAME = re.compile(r'[\s"]')
"""Characters that no token contains, and the end of a JSON string."""


# Characters that a server has split. JSON may write a character beyond the first 65,536 as two halves (surrogates), and
# some servers split their texts between them: one piece ends with the first half, and the next begins with the second.
# A single half can neither be sent nor stored.


_HALF = re.compile("[\ud800-\udfff]")
_IN_HALVES = re.compile("[\ud800-\udfff\U00010000-\U0010ffff]")
_WRITTEN_IN_HALVES = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]|[\xf0-\xf4]")
"""A half in JSON: as an escape, as bytes that are invalid UTF-8, or inside a whole character."""

_HIDDEN = 0x10F800 - 0xD800
"""Added to a half, it gives one of the last private-use characters of Unicode."""

_HIDDEN_HALF = re.compile(f"[{chr(0xD800 + _HIDDEN)}-{chr(0xDFFF + _HIDDEN)}]")


def whole_characters(text: str) -> str:
    """The text with its halves joined, and U+FFFD in place of each single one."""
    if text.isascii() or _HALF.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class JoinedPieces:
    """Joins the split characters of a text that arrives in pieces."""

    def __init__(self) -> None:
        self._half = ""

    def more(self, piece: str) -> str:
        """Returns the received text without a split character at its end."""
        if not self._half and piece.isascii():
            return piece
        text, self._half = self._half + piece, ""
        if "\ud800" <= text[-1:] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return whole_characters(text)

    def rest(self) -> str:
        """U+FFFD if the text ends with a half."""
        half, self._half = self._half, ""
        return whole_characters(half)


def with_hidden_halves(data: bytes) -> bytes:
    """JSON in which each half, even of whole characters, is a character of its own, so that pieces can be compared with
    the whole text. Invalid JSON stays unchanged. For libraries that refuse halves; `revealed_halves` reverses this in
    their results."""
    if _WRITTEN_IN_HALVES.search(data) is None:
        return data
    try:
        text = json.dumps(read_json(data), ensure_ascii=False)
    except (ValueError, RecursionError):
        return data
    return _IN_HALVES.sub(_hidden, text).encode()


def _hidden(character: re.Match[str]) -> str:
    units = character[0].encode("utf-16-le", "surrogatepass")
    return "".join(chr(int.from_bytes(units[at : at + 2], "little") + _HIDDEN) for at in range(0, len(units), 2))


def revealed_halves(text: str) -> str:
    """The text with the halves that `with_hidden_halves` has replaced."""
    if text.isascii() or _HIDDEN_HALF.search(text) is None:
        return text
    return _HIDDEN_HALF.sub(lambda hidden: chr(ord(hidden[0]) - _HIDDEN), text)


def sound(text: str) -> str:
    """Returns a library's result with every character complete."""
    return whole_characters(revealed_halves(text))
