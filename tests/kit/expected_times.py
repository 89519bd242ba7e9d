"""The expected time of each test, by the run that `.ci/test-times.json` records."""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

REFERENCE = Path(__file__).parents[2] / ".ci/test-times.json"
UNNAMED_S = 0.05
"""The time of a test function that is not in the file, which leaves out tests of less than 0.1 s."""


def kept_times() -> Mapping[str, float]:
    """The seconds of the longest case of each test function, as the file has them."""
    return json.loads(REFERENCE.read_text()) if REFERENCE.exists() else {}


class ExpectedTimes:
    """The expected seconds of tests, which are named as pytest names them: `tests/unit/test_a.py::test_b[1]`."""

    def __init__(self, kept: Mapping[str, float]) -> None:
        self._kept = kept
        self._modules = {name.rpartition(".")[0] for name in kept}

    def of(self, nodeid: str) -> float:
        return self._kept.get(_name_in_report(nodeid), UNNAMED_S)

    def longest_first(self, nodeids: Sequence[str], part: Sequence[int]) -> list[int]:
        """The indexes in `part`, module by module: the one with the longest test comes first.

        So the remaining tests at the end are short, whichever process has them, and can be shared out. Modules that are
        not in the file come first, because their times are unknown.
        """

        def place(module: list[int]) -> tuple[bool, float]:
            known = _name_in_report(nodeids[module[0]]).rpartition(".")[0] in self._modules
            return known, -max(self.of(nodeids[index]) for index in module)

        modules = [list(found) for _, found in groupby(part, key=lambda index: nodeids[index].partition("::")[0])]
        return [index for module in sorted(modules, key=place) for index in module]


def _name_in_report(nodeid: str) -> str:
    """The name as in JUnit's format, followed by the function's name: `tests.unit.test_a.test_b`."""
    path, *names = nodeid.partition("[")[0].split("::")
    return ".".join([path.removesuffix(".py").replace("/", "."), *names])
