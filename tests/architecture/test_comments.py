"""Rules 15, 17 and 20: no type error is silenced, a silenced lint says why, and no note waits for somebody else."""

import re
import tokenize
from collections.abc import Iterator

from tests.kit.project.source_tree import Source, bench_sources, expect_none, product_sources, suite_sources

SILENCED_TYPE = re.compile(r"type:\s*ignore|pyright:\s*(ignore|basic|strict|report)")
SILENCED_LINT = re.compile(r"\bnoqa\b")
LINT_WITH_REASON = re.compile(r"#\s*noqa: [A-Z]+\d+(, ?[A-Z]+\d+)*\s+(#|-)\s*\S+")
NOTE = re.compile(r"\b(TO" r"DO|FIX" r"ME|XXX|HA" r"CK)\b")


def comments(source: Source, pattern: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """Those in which the pattern is found, with their lines."""
    if pattern.search(source.text) is None:  # so it is in most files, which need not be taken apart
        return
    for token in source.tokens:
        if token.type == tokenize.COMMENT and pattern.search(token.string):
            yield token.start[0], token.string


def silenced_types(source: Source) -> Iterator[str]:
    for line, _ in comments(source, SILENCED_TYPE):
        yield f"{source.path}:{line}: silences the type checker; give it the type instead"


def unexplained_lints(source: Source) -> Iterator[str]:
    for line, comment in comments(source, SILENCED_LINT):
        if not LINT_WITH_REASON.search(comment):
            yield f"{source.path}:{line}: write `# noqa: CODE - why it is right here`"


def notes(source: Source) -> Iterator[str]:
    for line, _ in comments(source, NOTE):
        yield f"{source.path}:{line}: do it, or open an issue"


def test_types_are_never_silenced() -> None:
    """No comment turns the type checker off in product code."""
    expect_none(finding for source in product_sources() for finding in silenced_types(source))


def test_silenced_lints_say_why() -> None:
    """A `noqa` names the rule and the reason."""
    sources = (*product_sources(), *suite_sources(), *bench_sources())
    expect_none(finding for source in sources for finding in unexplained_lints(source))


def test_no_note_to_self() -> None:
    """The code holds no to-do list."""
    sources = (*product_sources(), *suite_sources(), *bench_sources())
    expect_none(finding for source in sources for finding in notes(source))
