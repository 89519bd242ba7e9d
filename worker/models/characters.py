"""Characters that a server has cut in two. JSON may write a character beyond the first 65,536 as two halves, and some
servers cut their texts between them: the first half ends one piece, the second begins the next. A half by itself can
neither be sent nor stored.
"""

import json
import re

from worker.models.decoding import read_json

_HALF = re.compile("[\ud800-\udfff]")
_IN_HALVES = re.compile("[\ud800-\udfff\U00010000-\U0010ffff]")
_WRITTEN_IN_HALVES = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]|[\xf0-\xf4]")
"""In JSON: as an escape, as bytes that no UTF-8 has, or whole."""

_HIDDEN = 0x10F800 - 0xD800
"""Added to a half, it makes a character of it: one of the last that Unicode has, which are for private use."""

_HIDDEN_HALF = re.compile(f"[{chr(0xD800 + _HIDDEN)}-{chr(0xDFFF + _HIDDEN)}]")


def whole_characters(text: str) -> str:
    """The text with its halves put together, and U+FFFD in place of each that is alone."""
    if text.isascii() or _HALF.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class JoinedPieces:
    """Puts the characters of a text together that comes in pieces."""

    def __init__(self) -> None:
        self._half = ""

    def more(self, piece: str) -> str:
        """What is whole of what has come."""
        if not self._half and piece.isascii():
            return piece
        text, self._half = self._half + piece, ""
        if "\ud800" <= text[-1:] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return whole_characters(text)

    def rest(self) -> str:
        """U+FFFD for the half that the text ends with, if it does."""
        half, self._half = self._half, ""
        return whole_characters(half)


def with_hidden_halves(data: bytes) -> bytes:
    """JSON in which each half, of whole characters as well, stands as a character of its own, so that pieces compare
    with their whole. What is no JSON stays as it is. For libraries that refuse halves; `revealed_halves` takes it back
    in what they have read."""
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
    """The text with the halves that `with_hidden_halves` has hidden."""
    if text.isascii() or _HIDDEN_HALF.search(text) is None:
        return text
    return _HIDDEN_HALF.sub(lambda hidden: chr(ord(hidden[0]) - _HIDDEN), text)


def sound(text: str) -> str:
    """What a library has read whole, with every character whole."""
    return whole_characters(revealed_halves(text))
