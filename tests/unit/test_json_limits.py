"""What a JSON document may hold: sound ones are looked through quickly, and what is wrong with others is found."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.json_limits import (
    HALF_CHARACTER,
    HAS_NUL,
    MAX_DEPTH,
    MAX_VALUES,
    NOT_FINITE,
    TOO_DEEP,
    TOO_LARGE,
    TOO_MANY,
    JsonFlaw,
    flaw_of,
    flaw_of_document,
)
from tests.kit.hostile_values import bounded

FLAWS: list[tuple[Any, str]] = [
    ("a\0", HAS_NUL),
    ({"a\0": 1}, HAS_NUL),
    ("\ud800", HALF_CHARACTER),
    ({"\udfff": 1}, HALF_CHARACTER),
    (2**63, TOO_LARGE),
    (-(2**63) - 1, TOO_LARGE),
    (float("nan"), NOT_FINITE),
    (float("-inf"), NOT_FINITE),
]
SOUND: list[Any] = ["", "a", "\U0001f600", "\\u0000", True, None, 0, 2**63 - 1, -(2**63), 1.5, 1e308, [], {}]


def nested(value: Any, levels: int) -> Any:
    for number in range(levels):
        value = [value] if number % 2 else {"a": value}
    return value


@pytest.mark.parametrize(("value", "text"), FLAWS, ids=[ascii(value) for value, _ in FLAWS])
@pytest.mark.parametrize("levels", [0, 1, 2, 90])
def test_a_flaw_is_found_among_sound_values(value: Any, text: str, levels: int) -> None:
    flaw = flaw_of({"before": SOUND, "here": nested([*SOUND, value, *SOUND], levels), "behind": SOUND})
    assert flaw is not None
    assert flaw.text == text
    assert flaw.place[0] == "here"


@bounded(200)
@given(
    st.recursive(st.sampled_from(SOUND), lambda inside: st.lists(inside) | st.dictionaries(st.text("ab\u00e9"), inside))
)
def test_a_sound_value_has_no_flaw(value: Any) -> None:
    assert flaw_of(value) is None
    assert flaw_of_document(json.dumps(value).encode()) is None


def test_values_and_levels_are_counted_to_the_last() -> None:
    assert flaw_of([0] * (MAX_VALUES - 1)) is None
    assert flaw_of([0] * MAX_VALUES) == JsonFlaw((), TOO_MANY)
    assert flaw_of({str(number): 0 for number in range(MAX_VALUES)}) == JsonFlaw((), TOO_MANY)
    assert flaw_of([[[0]] * (MAX_VALUES // 2)]) == JsonFlaw((), TOO_MANY)
    assert flaw_of(nested(0, MAX_DEPTH)) is None
    too_deep = flaw_of({"a": nested(0, MAX_DEPTH)})
    assert too_deep is not None
    assert too_deep.text == TOO_DEEP


@pytest.mark.parametrize(
    "document",
    [
        b'{"a": "' + b"," * 200_000 + b'"}',
        b'{"a": "' + b'\\",' * 200_000 + b'"}',
        b'{"a": "' + b"\\\\," * 200_000 + b'"}',
        b'{"a": "[[[\\\\", "b": "' + b"{" * 200_000 + b'\\\\\\""}',
        json.dumps([",,,"] * 90_000).encode(),
    ],
    ids=["commas", "behind escaped quotes", "behind backslashes", "braces", "in many texts"],
)
def test_commas_in_texts_are_no_values(document: bytes) -> None:
    json.loads(document)
    assert flaw_of_document(document) is None


@pytest.mark.parametrize("piece", [b'"",', b'"\\\\",', b"0,", b"[],", b"{},", b'",",'])
def test_many_short_texts_took_half_a_second_to_be_counted(piece: bytes) -> None:
    document = b"[" + piece * (MAX_VALUES * 3) + b"0]"
    assert flaw_of_document(document) == JsonFlaw((), TOO_MANY)


@pytest.mark.parametrize("behind", ["]", "", ",", "x"])
def test_long_numbers_were_read_before_they_were_refused(behind: str) -> None:
    """The time to read an integer grows with the square of its length: 3,600 of them took three seconds."""
    for digits in ("9" * 4300, "-" + "9" * 4300, "9" * 1_000_000):
        flaw = flaw_of_document(f"[1,{digits}{behind}".encode())
        assert flaw is not None
        assert flaw.text == TOO_LARGE
    assert flaw_of_document(f'[1,"{"9" * 4300}"{behind}'.encode()) is None
    assert flaw_of_document(f"[0.{'9' * 4300}{behind}".encode()) is None
