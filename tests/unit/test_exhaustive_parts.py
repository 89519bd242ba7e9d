"""Every exhaustive case is in one of the parts that CI takes in turn, and each test has a case in every part."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.kit.exhaustive_parts import in_part
from tests.kit.project.documents import ROOT

CASES = {
    **{f"test_a.py::test_quick[{number}]": number > 1 for number in range(20)},
    **{f"test_a.py::test_in_all_alone[{number}]": True for number in range(10)},
    **{
        f"test_b.py::test_told_twice_{number}[{kind}]": kind == "sqlite"
        for number in range(40)
        for kind in ("pg", "sqlite")
    },
    "test_b.py::test_long": True,
}


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_a_case_that_no_part_had_was_run_by_nobody(parts: int) -> None:
    nodeids, exhaustive = list(CASES), list(CASES.values())
    found = [in_part(nodeids, exhaustive, number, parts) for number in range(1, parts + 1)]
    seen = Counter(nodeids[index] for part in found for index in part)
    assert set(seen) == set(nodeids)
    assert [name for name, count in seen.items() if count < parts and not CASES[name]] == []
    functions = {name.partition("[")[0] for name in nodeids}
    for part in found:
        assert {nodeids[index].partition("[")[0] for index in part} == functions
        assert sum(exhaustive[index] for index in part) <= sum(exhaustive) / parts * 1.5
    assert found == [in_part(nodeids, exhaustive, number, parts) for number in range(1, parts + 1)]


def test_a_test_of_minutes_was_in_every_part() -> None:
    nodeids, exhaustive = list(CASES), list(CASES.values())
    seldom = {"test_b.py::test_long", "test_a.py::test_in_all_alone", "test_a.py::test_quick"}
    found = [in_part(nodeids, exhaustive, number, 20, seldom) for number in range(1, 21)]
    seen = Counter(nodeids[index] for part in found for index in part)
    assert seen["test_b.py::test_long"] == 1
    assert {seen[f"test_a.py::test_in_all_alone[{number}]"] for number in range(10)} == {1}
    assert seen["test_a.py::test_quick[0]"] == 20


@pytest.mark.parametrize(("part", "passed"), [("1/1", 6), ("1/3", 4), ("2/3", 4), ("3/3", 4)])
def test_the_option_leaves_out_the_cases_of_other_parts(tmp_path: Path, part: str, passed: int) -> None:
    done = _pytest_in(tmp_path, part)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{passed} passed" in done.stdout


@pytest.mark.parametrize("part", ["0/3", "4/3", "3", "a/b"])
def test_a_part_that_is_none_is_refused(tmp_path: Path, part: str) -> None:
    done = _pytest_in(tmp_path, part)
    assert done.returncode != 0
    assert "--exhaustive" in done.stderr


def _pytest_in(directory: Path, part: str) -> "subprocess.CompletedProcess[str]":
    (directory / "test_some.py").write_text(
        "import pytest\n\n\n"
        "def test_quick():\n    pass\n\n\n"
        "@pytest.mark.parametrize('n', [0, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (1, 2, 3))])\n"
        "def test_with_cases(n):\n    pass\n\n\n"
        "@pytest.mark.exhaustive\ndef test_long():\n    pass\n"
    )
    (directory / "pytest.ini").write_text("[pytest]\nmarkers = exhaustive\n")
    options = ["-p", "tests.kit.exhaustive_parts", "-p", "no:cacheprovider", "--exhaustive", part]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--rootdir", directory, "-c", directory / "pytest.ini", directory],
        cwd=ROOT,
        env={"PATH": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
