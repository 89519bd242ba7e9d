"""Rule 16: a file's name says what it does, in full words. A name that fits anything attracts everything.

A class is a service, a value or a state, and its name says which. A gerund says none of it.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from tests.kit.project.source_tree import (
    Source,
    bench_sources,
    expect_none,
    product_sources,
    suite_sources,
)

BANNED = re.compile(r"(util|helper|manager|handler)s?|base|common|misc|stuff|core|impl|new|old|tmp|v\d+")

NOUNS = {
    "Setting": "a value that somebody chooses",
    "Finding": "what somebody found who looked",
    "Listing": "the pages of what is stored",
    "Embedding": "the vector of a text, as providers call it",
    "Reasoning": "what a model thinks before it answers, as Letta calls it",
    "Thinking": "the same, as Anthropic calls it",
    "Timing": "when the parts of something were",
}
"""Words that end like a gerund and name a thing."""
LAST_WORD = re.compile(r"[A-Z][a-z0-9]*$")


WIRE_TERMS = frozenset({"base_tools"})
"""Names of Letta's wire, which programs and documents use."""


def gerunds(source: Source) -> Iterator[str]:
    for node in source.nodes:
        last = LAST_WORD.search(node.name) if isinstance(node, ast.ClassDef) else None
        if last and last[0].endswith("ing") and last[0] not in NOUNS:
            yield source.at(node, f"{last.string} does not say whether it is a service, a value or a state")


def vague_names(path: str) -> Iterator[str]:
    for part in PurePosixPath(path.removesuffix(".py")).parts:
        for word in [] if part in WIRE_TERMS else part.lower().split("_"):
            if BANNED.fullmatch(word):
                yield f"{path}:1: {word!r} says nothing; name the file or folder after what it does"


def test_names_say_what_a_file_does() -> None:
    """No file or folder is called utils, helpers, manager, handler, base, common, v2 or the like."""
    sources = (*product_sources(), *suite_sources(), *bench_sources())
    expect_none(finding for source in sources for finding in vague_names(source.path))


def test_classes_are_named_for_what_they_are() -> None:
    """No class of the product is called by a gerund; nouns that look like one are listed."""
    expect_none(finding for source in product_sources() for finding in gerunds(source))
