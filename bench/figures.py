"""The results of a measurement: figures with a name and a unit, the rounds of one figure, and the stored result."""

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

MODEL, RELAY, EMBEDDED, SERVICES = "model", "relay", "embedded", "services"
TITLES = {
    MODEL: "model, read plainly",
    RELAY: "bare relay",
    EMBEDDED: "`holdfast dev`",
    SERVICES: "`holdfast api` + `worker`",
}
"""The measured deployments in the order of the table's columns. The first two are floors."""

HIGHER_IS_BETTER = frozenset({"tokens/s", "runs/s", "entries/s"})


class Figure(NamedTuple):
    """One figure of one round. Its name is the same for every deployment."""

    name: str
    value: float
    unit: str


class Series(msgspec.Struct):
    """A figure's rounds."""

    unit: str
    rounds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def spread(self) -> float:
        """The difference of the highest and the lowest round. It is meaningless for one round."""
        return max(self.rounds) - min(self.rounds)

    @property
    def is_higher_better(self) -> bool:
        return self.unit in HIGHER_IS_BETTER


Columns = dict[str, dict[str, Series]]
"""By deployment: its figures by name."""


class Result(msgspec.Struct):
    """The result of one `make bench`."""

    machine: str
    date: str
    """ISO 8601, UTC."""
    revision: str
    """The source's commit, with a `+` if files were changed."""
    columns: Columns
    faults: list[str] = []
    """Streams in which tokens were lost or out of order."""

    def add(self, column: str, figures: Iterable[Figure]) -> None:
        """Adds one round of these figures."""
        series = self.columns.setdefault(column, {})
        for figure in figures:
            series.setdefault(figure.name, Series(figure.unit, [])).rounds.append(figure.value)

    def floor(self, name: str) -> float | None:
        """Returns the figure of the relay, or, without one, of the model itself."""
        for column in (RELAY, MODEL):
            if found := self.columns.get(column, {}).get(name):
                return found.median
        return None

    def names(self) -> list[str]:
        """Returns the names of all figures, each once. Those of the product are first."""
        shown = sorted(self.columns, key=[SERVICES, EMBEDDED, RELAY, MODEL].index)
        return list(dict.fromkeys(name for column in shown for name in self.columns[column]))


def read_result(path: Path) -> Result:
    """Reads a result. Raises `OSError`, and `ValueError` if the file holds anything else."""
    return msgspec.json.decode(path.read_bytes(), type=Result)


def write_result(result: Result, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")


def quantile(values: Iterable[float], share: float) -> float:
    """Returns the value below which `share` of all values are. Raises `ValueError` if there are none."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("nothing was measured")
    return ordered[round((len(ordered) - 1) * share)]


def median_and_slowest(name: str, seconds: Iterable[float]) -> list[Figure]:
    """Returns the median and the 99th percentile of times, in milliseconds."""
    ordered = sorted(seconds)
    return [Figure(f"{name}, p{percent}", quantile(ordered, percent / 100) * 1000, "ms") for percent in (50, 99)]


def shown(value: float, unit: str) -> str:
    """Formats a figure: three digits, or the whole number."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f} {unit}"
