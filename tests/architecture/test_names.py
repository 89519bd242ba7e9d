"""Rule 16: a file's name says what it does, in full words. A name that fits anything attracts everything."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from tests.kit.project.source_tree import bench_sources, expect_none, product_sources, suite_sources

BANNED = re.compile(r"(util|helper|manager|handler)s?|base|common|misc|stuff|core|impl|new|old|tmp|v\d+")


def vague_names(path: str) -> Iterator[str]:
    for part in PurePosixPath(path.removesuffix(".py")).parts:
        for word in part.lower().split("_"):
            if BANNED.fullmatch(word):
                yield f"{path}:1: {word!r} says nothing; name the file or folder after what it does"


def test_names_say_what_a_file_does() -> None:
    """No file or folder is called utils, helpers, manager, handler, base, common, v2 or the like."""
    sources = (*product_sources(), *suite_sources(), *bench_sources())
    expect_none(finding for source in sources for finding in vague_names(source.path))
