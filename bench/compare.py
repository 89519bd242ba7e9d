"""Compares two results, and finds the differences that are more than noise.

Differences between the rounds of one result are noise. So a figure has changed if its medians differ by more than the
spreads of both results together. With fewer than two rounds on a side this cannot be decided.
"""

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from bench.figures import TITLES, Result, Series, shown


class Verdict(Enum):
    """The kinds of differences. Their values are the table's texts."""

    NOISE = "within the noise"
    BETTER = "better"
    WORSE = "WORSE"
    UNKNOWN = "one round: unknown"


class Change(NamedTuple):
    """One figure in two results."""

    column: str
    name: str
    old: Series
    new: Series

    @property
    def ratio(self) -> float | None:
        """The new median divided by the old one; None if the old one is 0."""
        return self.new.median / self.old.median if self.old.median else None

    @property
    def verdict(self) -> Verdict:
        if min(len(self.old.rounds), len(self.new.rounds)) < 2:
            return Verdict.UNKNOWN
        difference = self.new.median - self.old.median
        if abs(difference) <= self.old.spread + self.new.spread:
            return Verdict.NOISE
        return Verdict.BETTER if (difference > 0) == self.new.is_higher_better else Verdict.WORSE


def changes(old: Result, new: Result) -> Iterator[Change]:
    """Yields the change of every figure that both results have."""
    for column in TITLES:
        before, after = old.columns.get(column, {}), new.columns.get(column, {})
        for name in after:
            if name in before:
                yield Change(column, name, before[name], after[name])


def comparison(old: Result, new: Result) -> str:
    """Renders the changes as a table in Markdown."""
    lines = [f"old: {old.revision}, {old.date}, {old.machine}", f"new: {new.revision}, {new.date}, {new.machine}", ""]
    lines += ["| | figure | old | new | new / old | |", "|---|---|---|---|---|---|"]
    for change in changes(old, new):
        ratio = "" if change.ratio is None else f"{change.ratio:.2f}"
        medians = f"{shown(change.old.median, change.old.unit)} | {shown(change.new.median, change.new.unit)}"
        lines.append(f"| {change.column} | {change.name} | {medians} | {ratio} | {change.verdict.value} |")
    return "\n".join(lines)


def regressions(old: Result, new: Result) -> list[str]:
    """Returns the figures that are worse by more than the noise."""
    return [f"{one.column}: {one.name}" for one in changes(old, new) if one.verdict is Verdict.WORSE]
