"""Values that no ordinary client sends, for property tests, and the number of values that a test tries.

`make fuzz` sets HOLDFAST_FUZZ_EXAMPLES, by which the number is multiplied.
"""

import copy
import os
from typing import Any, cast

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

SLOW_OR_SHARED = [
    HealthCheck.function_scoped_fixture,
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.large_base_example,
]


def bounded(examples: int) -> settings:
    """This many examples, which differ each time except in CI."""
    return settings(
        max_examples=examples * int(os.environ.get("HOLDFAST_FUZZ_EXAMPLES", "1")),
        deadline=None,
        database=None,
        derandomize="HOLDFAST_FUZZ_EXAMPLES" not in os.environ,
        suppress_health_check=SLOW_OR_SHARED,
        phases=[Phase.explicit, Phase.generate],  # an example is small enough, and making it smaller takes minutes
    )


BAD_TEXTS = [
    "\0",
    "a\0b",
    "\x1b[31m",
    "\ud800",
    "\udfff\ud800",
    "\ufffe",
    "\u202e",
    "9" * 5_000,
    "-1",
    "1e999",
    "NaN",
    "[" * 2_000,
    "%00",
    "%",
    "'\"\\",
    "../..",
    "",
    " ",
    "x" * 9_000,
    "é" * 3_000,
    "٣",
]
"""Texts that break databases, parsers and converters of numbers."""

texts = st.one_of(
    st.sampled_from(BAD_TEXTS),
    st.text(st.characters(codec=None, categories=None), max_size=40),
    st.text(st.characters(codec="utf-8"), max_size=40),
)
numbers = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([2**31, 2**53, 2**63 - 1, 2**63, -(2**63) - 1, 10**400, 1e308, float("nan"), float("inf")]),
)
leaves = st.one_of(st.none(), st.booleans(), numbers, texts)
json_values = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=8,
)
"""Includes values that JSON cannot express: NaN, half characters, numbers of 400 digits."""


@st.composite
def mutated(draw: st.DrawFn, document: Any) -> Any:
    """The document with one to three places taken out, doubled, or replaced by anything."""
    changed = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(changed))
        if not places:
            return draw(json_values)
        parent, key = draw(st.sampled_from(places))
        match draw(st.sampled_from(["replace", "remove", "double"])):
            case "remove":
                del parent[key]
            case "double" if isinstance(key, int):
                parent.insert(key, copy.deepcopy(parent[key]))
            case _:
                parent[key] = draw(json_values)
    return changed


def _places(value: object) -> list[tuple[Any, Any]]:
    """Every place in the document, as the list or object that holds it and the key there."""
    found: list[tuple[Any, Any]] = []
    waiting: list[Any] = [value]
    while waiting:
        one = waiting.pop()
        keys: list[Any] = []
        if isinstance(one, dict):
            keys = list(cast("dict[str, Any]", one))
        elif isinstance(one, list):
            keys = list(range(len(cast("list[Any]", one))))
        inside = cast("Any", one)
        found.extend((inside, key) for key in keys)
        waiting.extend(inside[key] for key in keys)
    return found
