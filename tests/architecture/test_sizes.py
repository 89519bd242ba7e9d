"""Rule 1: one file, one noun. A product file has at most 500 lines, a function fewer than 60, blocks nest 3 deep.

There is no list of exceptions: a file that grows past its limit holds two ideas.
"""

import ast
from collections.abc import Iterator

from tests.kit.project.source_tree import Source, bench_sources, expect_none, product_sources, suite_sources

PRODUCT_LINES = 500
TEST_LINES = 600
FUNCTION_LINES = 60
NESTING = 3


def long_files(source: Source, limit: int) -> Iterator[str]:
    lines = len(source.text.splitlines())
    if lines > limit:
        yield f"{source.path}:{limit}: {lines} lines, the limit is {limit}"


def long_functions(source: Source) -> Iterator[str]:
    for node in source.functions:
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines >= FUNCTION_LINES:
            yield source.at(node, f"{node.name} has {lines} lines, it must have fewer than {FUNCTION_LINES}")


def deep_blocks(source: Source) -> Iterator[str]:
    for node in source.functions:
        deepest = _depth(node.body)
        if deepest > NESTING:
            yield source.at(node, f"{node.name} nests {deepest} blocks, the limit is {NESTING}")


def _depth(body: list[ast.stmt]) -> int:
    return max((_depth_of(statement) for statement in body), default=0)


def _depth_of(statement: ast.stmt) -> int:
    """How deep a statement nests. `elif`, `else`, `except`, `finally` and `case` are on the level of their head."""
    match statement:
        case ast.If(body=body, orelse=[ast.If() as elif_branch]):
            return max(1 + _depth(body), _depth_of(elif_branch))
        case ast.Try(handlers=handlers) | ast.TryStar(handlers=handlers):
            inner = [*statement.body, *statement.orelse, *statement.finalbody]
            return 1 + _depth([*inner, *(line for handler in handlers for line in handler.body)])
        case ast.Match(cases=cases):
            return 1 + _depth([line for case in cases for line in case.body])
        case ast.If() | ast.For() | ast.AsyncFor() | ast.While():
            return 1 + _depth([*statement.body, *statement.orelse])
        case ast.With() | ast.AsyncWith():
            return 1 + _depth(statement.body)
        case _:
            return 0  # a function inside a function is counted by itself


def test_product_files_are_short() -> None:
    """No product file has more than 500 lines."""
    expect_none(finding for source in product_sources() for finding in long_files(source, PRODUCT_LINES))


def test_test_files_are_short() -> None:
    """No test or benchmark file has more than 600 lines."""
    sources = (*suite_sources(), *bench_sources())
    expect_none(finding for source in sources for finding in long_files(source, TEST_LINES))


def test_functions_are_short() -> None:
    """Every function, product and test, has fewer than 60 lines."""
    sources = (*product_sources(), *suite_sources())
    expect_none(finding for source in sources for finding in long_functions(source))


def test_blocks_do_not_nest_deeply() -> None:
    """In product code no block is inside more than two others of its function."""
    expect_none(finding for source in product_sources() for finding in deep_blocks(source))
