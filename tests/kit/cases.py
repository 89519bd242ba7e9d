"""Marks the cases `exhaustive` that `further_cases.toml` excludes from `make test`."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

LISTED = Path(__file__).with_name("further_cases.toml")


def cases_in_make_test() -> Mapping[str, Mapping[str, int]]:
    """The number of cases that `make test` runs of each listed test, by file below `tests` and by name."""
    return tomllib.loads(LISTED.read_text(encoding="utf-8"))


def mark_further_cases(items: Iterable[pytest.Function]) -> None:
    """Marks the other cases `exhaustive`."""
    listed = cases_in_make_test()
    cases: dict[tuple[str, str], list[pytest.Function]] = {}
    for item in items:
        file, name = f"{item.path.parent.name}/{item.path.name}", item.originalname
        if name in listed.get(file, {}) and item.get_closest_marker("exhaustive") is None:
            cases.setdefault((file, name), []).append(item)
    for (file, name), found in cases.items():
        kept = spread(len(found), listed[file][name])
        for number, item in enumerate(found):
            if number not in kept:
                item.add_marker(pytest.mark.exhaustive)


def spread(count: int, wanted: int) -> set[int]:
    """The numbers of `wanted` among `count` cases, or of all if there are no more. Where it leaves out half of them,
    even and odd ones in turn: of two databases or two tiers of walls both are among them."""
    if 2 * wanted > count:
        return set(range(min(wanted, count)))
    places = [number * count // wanted for number in range(wanted)]
    return {place + (place + number) % 2 for number, place in enumerate(places)}
