"""Runs a part of the cases that are marked `exhaustive`: `pytest --exhaustive 2/10`.

The parts are of the same size, and all of them together are every case. Of each test function at least one case runs in
each part, unless a case of it takes longer than `SELDOM_S`. CI runs one part for each commit and takes them in turn;
`make test-all` runs every case.
"""

import random
from collections.abc import Iterable, Sequence, Set

import pytest

from tests.kit.expected_times import ExpectedTimes, kept_times

SELDOM_S = 30.0
"""If all cases of a test function are exhaustive and take longer than this, some parts have no case of it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--exhaustive",
        type=_part,
        metavar="N/M",
        help="of the cases marked exhaustive, run the Nth of M parts, and at least one case of each test function",
    )


def _part(value: str) -> tuple[int, int]:
    number, _, parts = value.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise ValueError(value)
    return int(number), int(parts)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Runs after the marks are set, and after `-m` and `-k` have removed tests."""
    part: tuple[int, int] | None = config.option.exhaustive
    if part is None:
        return
    exhaustive = [item.get_closest_marker("exhaustive") is not None for item in items]
    nodeids, expected = [item.nodeid for item in items], ExpectedTimes(kept_times())
    seldom = {name for nodeid in nodeids if expected.of(name := function_of(nodeid)) > SELDOM_S}
    kept = in_part(nodeids, exhaustive, *part, seldom)
    config.hook.pytest_deselected(items=[item for index, item in enumerate(items) if index not in kept])
    items[:] = [item for index, item in enumerate(items) if index in kept]


def function_of(nodeid: str) -> str:
    """The test function of a case."""
    return nodeid.partition("[")[0]


def in_part(
    nodeids: Sequence[str],
    exhaustive: Sequence[bool],
    number: int,
    parts: int,
    seldom: Set[str] = frozenset(),
) -> set[int]:
    """The indexes of the tests in part `number` (from 1): those that are not exhaustive are in every part, and at least
    one case of each test function which is not among `seldom`."""
    functions: dict[str, list[int]] = {}
    for index, nodeid in enumerate(nodeids):
        functions.setdefault(function_of(nodeid), []).append(index)
    kept = {index for index, further in enumerate(exhaustive) if not further}
    for name, cases in functions.items():
        further = [index for index in cases if exhaustive[index]]
        kept |= _of_function(
            name, further, number, parts, at_least_one=name not in seldom and len(further) == len(cases)
        )
    return kept


def _of_function(name: str, cases: Iterable[int], number: int, parts: int, *, at_least_one: bool) -> set[int]:
    """Neighbours often differ in one parameter only, so the cases are shuffled, always in the same way. The part of the
    first case depends on the function, because many functions have a single case."""
    chance = random.Random(name)
    shuffled = list(cases)
    chance.shuffle(shuffled)
    offset = number + chance.randrange(parts)
    chosen = {index for place, index in enumerate(shuffled) if (place + offset) % parts == 0}
    if at_least_one and not chosen:
        chosen = {shuffled[number % len(shuffled)]}
    return chosen
