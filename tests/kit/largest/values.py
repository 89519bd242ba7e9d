"""The largest values of each sort that a schema allows, as JSON.

They are pieces of text that are put together, and the large ones are made once: a walk sends thousands of them.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, cast

ROOM = 15_900_000
"""The limit for one value of a body, in bytes; the rest of the body comes on top."""

MOST_VALUES = 90_000
"""Of a document that may have 100,000."""

DEEPEST = 90
LONG_NUMBER = "9" * 4300
"""The longest that Python converts."""

PIECES: Mapping[str, str] = {
    "one word": "a",
    "words": "ab ",
    "separators": ",;&|/",
    "lines": "a\n",
    "no spaces": "\u66f8",
    "combining": "e\u0301",
    "escapes": '"\\',
    "brackets": "[{(<",
    "digits": "9",
}
"""The pieces that a text repeats."""

MANY_CHARACTERS = 200_000
"""Of a text that may be longer, only one of all pieces is sent: each is 16 MB."""

Fragment = bytes
"""A JSON value in UTF-8."""
Sorted = tuple[str, Fragment]
"""A sort, and a value of it."""


def text(piece: str, bytes_: int = ROOM, characters: int | None = None) -> str:
    """The piece again and again, in at most so many bytes of JSON, and so many characters."""
    weight = len(_quoted(piece)) - 2
    times = bytes_ // weight
    if characters is not None:
        times = min(times, characters // len(piece) + 1)
    return (piece * times)[:characters]


def encoded(value: object) -> Fragment:
    """Returns the value as JSON without escaped letters."""
    return json.dumps(value, ensure_ascii=False).encode()


def an_object(base: Mapping[str, Any], name: str, fragment: Fragment) -> Fragment:
    """The object `base` with a field of this name more, or another one in its place."""
    rest = encoded({key: value for key, value in base.items() if key != name})
    return b"".join((rest[:-1], b"," if len(rest) > 2 else b"", encoded(name), b":", fragment, b"}"))


@cache
def _quoted(text: str) -> Fragment:
    return encoded(text)


@cache
def _long_text(sort: str, characters: int | None) -> Fragment:
    return encoded(text(PIECES[sort], characters=characters))


@cache
def _of_all_pieces(characters: int | None) -> Fragment:
    """Each piece again and again, for its part of the text."""
    each = None if characters is None else characters // len(PIECES)
    return encoded("".join(text(piece, ROOM // len(PIECES), each) for piece in PIECES.values()))


@cache
def largest_objects() -> tuple[Sorted, ...]:
    """Values for a schema that only says `object`."""
    deep = b'{"a":' * DEEPEST + b"1" + b"}" * DEEPEST
    lists: dict[str, Fragment] = {
        "deep": b",".join([deep] * (MOST_VALUES // (DEEPEST + 1))),
        "long numbers": b",".join([LONG_NUMBER.encode()] * 3600),
        "many numbers": b",".join([b"9223372036854775807"] * MOST_VALUES),
        "many fractions": b",".join([b"0.14285714285714285"] * MOST_VALUES),
        "many texts": b",".join([encoded("\u66f8" * 50)] * MOST_VALUES),
        "many objects": b",".join([b'{"a":1}'] * (MOST_VALUES // 2)),
        "all pieces": _of_all_pieces(None),
    }
    return (
        ("many keys", encoded({f"k{number}": "" for number in range(MOST_VALUES)})),
        ("long keys", encoded({f"{number:05}" + "k" * 150: 0 for number in range(MOST_VALUES)})),
        *((sort, b'{"a":[' + inside + b"]}") for sort, inside in lists.items()),
    )


def _largest_texts(schema: Mapping[str, Any], characters: int | None) -> Iterator[Sorted]:
    """Texts for a field. One that takes few texts is sent two that it refuses."""
    allowed: int | None = schema.get("maxLength", characters)
    if "enum" in schema or "pattern" in schema or "format" in schema:
        yield "digits", _long_text("digits", None)
        return
    if allowed is not None and allowed <= MANY_CHARACTERS:
        yield from ((sort, _long_text(sort, allowed)) for sort in PIECES)
    elif allowed is not None:
        yield "all pieces", _of_all_pieces(allowed)
    yield "as long as can be", _of_all_pieces(None)


class Schemas:
    """The schemas of an OpenAPI document, with their references followed."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._known: Mapping[str, Any] = document.get("components", {}).get("schemas", {})
        self._seen: set[tuple[str, str]] = set()

    def kinds(self, schema: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
        """The schema's alternatives: the name of each ('' for one without), and its schema. Null is left out."""
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return [(name, self._known[name])]
        if "anyOf" in schema:
            return [kind for one in schema["anyOf"] for kind in self.kinds(one) if kind[1].get("type") != "null"]
        return [("", schema)]

    def smallest(self, schema: Mapping[str, Any]) -> Any:
        """A value that the schema allows."""
        _, known = self.kinds(schema)[0]
        if "enum" in known or "const" in known:
            return known.get("const", known.get("enum", [None])[0])
        match known.get("type"):
            case "object":
                properties = known.get("properties", {})
                return {name: self.smallest(properties[name]) for name in known.get("required", [])}
            case "array":
                return [self.smallest(known["items"])] * known.get("minItems", 0)
            case "integer" | "number":
                return max(1, known.get("minimum", 1))
            case "boolean":
                return True
            case _:
                return "a"

    def largest(
        self, schema: Mapping[str, Any], characters: int | None = None, *, parents: tuple[str, ...] = ()
    ) -> Iterator[Sorted]:
        """Values of each sort for a field. `characters`: of a text, where the schema does not say it.

        Of an object that the document describes, each field in turn is large.
        """
        for name, known in self.kinds(schema):
            match known.get("type"):
                case "string":
                    yield from _largest_texts(known, characters)
                case "integer" | "number":
                    yield "long number", LONG_NUMBER.encode()
                case "array":
                    yield from self._largest_lists(known, parents)
                case "object" | None if known.get("properties"):
                    if name not in parents:
                        yield from self.largest_fields(known, self.smallest(known), parents=(*parents, name))
                case "boolean":
                    pass
                case _:
                    yield from largest_objects()

    def largest_fields(
        self, known: Mapping[str, Any], base: Mapping[str, Any], *, parents: tuple[str, ...] = ()
    ) -> Iterator[Sorted]:
        """The object `base`, with each field that the schema knows large in turn."""
        for name, of_field in known["properties"].items():
            known_already = (json.dumps(known["properties"]), name)  # the same fields of another route
            if known_already in self._seen:
                continue
            self._seen.add(known_already)
            for sort, fragment in self.largest(of_field, parents=parents):
                yield f"{name}: {sort}", an_object(base, name, fragment)

    def _largest_lists(self, known: Mapping[str, Any], parents: tuple[str, ...]) -> Iterator[Sorted]:
        most = known.get("maxItems", MOST_VALUES)
        smallest = self.smallest(known["items"])
        values = 1 + (len(cast("dict[str, Any]", smallest)) if isinstance(smallest, dict) else 0)
        yield "many items", encoded([smallest] * min(most, MOST_VALUES // values))
        if isinstance(smallest, str):
            yield "many others", encoded([f"{number}" for number in range(min(most, MOST_VALUES))])
        for sort, fragment in self.largest(known["items"], parents=parents):
            yield f"item with {sort}", b"[" + fragment + b"]"
