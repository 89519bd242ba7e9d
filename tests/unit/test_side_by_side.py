"""Tests in several processes: each is run once, whoever dies, and failures end the session as they end pytest's own."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.kit.expected_times import UNNAMED_S, ExpectedTimes, kept_times
from tests.kit.project.documents import ROOT
from tests.kit.side_by_side import middle, parts

TESTS = """
import os
import pathlib
import signal

import pytest

BEGAN = pathlib.Path(__file__).parent


@pytest.fixture(autouse=True)
def _notes(request):
    with open(BEGAN / f"began-{os.environ['HOLDFAST_TEST_PROCESS']}", "a") as began:
        print(request.node.nodeid, file=began)


@pytest.mark.parametrize("number", range(30))
def test_passes(number, capfd):
    os.write(1, b"caught by the test itself")
    assert capfd.readouterr().out == "caught by the test itself"


def test_is_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def test_ends_its_process():
    os._exit(3)


def test_fails():
    print("printed by " + "the test that fails")
    assert False
"""
MODULES = ("test_one.py", "test_two.py")
EACH = {f"test_passes[{number}]" for number in range(30)} | {"test_is_killed", "test_ends_its_process", "test_fails"}


def pytest_in(directory: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    for module in MODULES:
        (directory / module).write_text(TESTS)
    (directory / "pytest.ini").write_text("[pytest]\n")
    begin = [sys.executable, "-m", "pytest", "-p", "tests.kit.side_by_side", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*begin, "--rootdir", directory, "-c", directory / "pytest.ini", "--processes", "3", *options, directory],
        cwd=ROOT,
        env={"PATH": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def begun_in(directory: Path) -> "Counter[str]":
    """How often each test was begun, by any of the processes."""
    return Counter(line for file in directory.glob("began-*") for line in file.read_text().splitlines())


def test_tests_behind_a_process_that_died_are_run_by_another(tmp_path: Path) -> None:
    ran = pytest_in(tmp_path, "--junitxml", str(tmp_path / "report.xml"))
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert re.search(r"\b6 failed, 60 passed", ran.stdout)
    for module in MODULES:
        assert f"Its process ended with -9 in the middle of {module}::test_is_killed" in ran.stdout
        assert f"Its process ended with 3 in the middle of {module}::test_ends_its_process" in ran.stdout
    assert ran.stdout.count("printed by the test that fails") == 2
    assert begun_in(tmp_path) == Counter(f"{module}::{name}" for module in MODULES for name in EACH)
    assert (tmp_path / "report.xml").read_text().count("<testcase ") == 66


def test_the_first_failure_ends_the_session_when_it_should(tmp_path: Path) -> None:
    ran = pytest_in(tmp_path, "--exitfirst", "-k", "test_fails or test_passes")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert re.search(r"stopping after \d failures", ran.stdout)
    assert set(begun_in(tmp_path).values()) == {1}


def test_a_file_that_cannot_be_collected_ends_the_session(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name\n")
    ran = pytest_in(tmp_path)
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert "nothing_of_this_name" in ran.stdout
    assert not begun_in(tmp_path)


def test_one_process_is_pytest_itself(tmp_path: Path) -> None:
    (tmp_path / "test_alone.py").write_text(
        "import os\n\n\ndef test_alone():\n    assert 'HOLDFAST_TEST_PROCESS' not in os.environ\n"
    )
    ran = pytest_in(tmp_path, "-k", "test_alone")
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("seconds", "processes", "lengths"),
    [
        ([1.0] * 7, 3, [2, 3, 2]),
        ([1.0] * 3, 3, [1, 1, 1]),
        ([1.0], 1, [1]),
        ([0.1] * 100 + [10.0], 2, [100, 1]),
        ([10.0, *[0.1] * 100], 2, [1, 100]),
        ([30.0, 1.0, 1.0], 3, [0, 1, 2]),
    ],
)
def test_parts_have_every_item_once_and_take_equally_long(
    seconds: list[float], processes: int, lengths: list[int]
) -> None:
    made = parts(seconds, processes)
    assert [index for part in made for index in part] == list(range(len(seconds)))
    assert [len(part) for part in made] == lengths


@pytest.mark.parametrize(
    ("modules", "cut_at"),
    [("", 0), ("a", 0), ("ab", 1), ("aaaa", 2), ("aabb", 2), ("aaabb", 3), ("aaaab", 4), ("abbbb", 3), ("aabbbbcc", 6)],
)
def test_a_part_is_cut_where_a_module_begins(modules: str, cut_at: int) -> None:
    assert middle(modules, [1.0] * len(modules)) == cut_at


@pytest.mark.parametrize(
    ("modules", "seconds", "cut_at"), [("abc", [1, 1, 9], 2), ("abc", [9, 1, 1], 1), ("aaab", [9, 1, 1, 1], 3)]
)
def test_a_part_is_cut_by_its_time(modules: str, seconds: list[float], cut_at: int) -> None:
    assert middle(modules, seconds) == cut_at


def test_the_longest_tests_were_begun_last_and_ran_alone() -> None:
    expected = ExpectedTimes({"tests.a.test_short.test_x": 0.2, "tests.b.test_long.test_x": 30.0})
    names = ["test_x[1]", "test_x[2]", "test_trifle"]
    nodeids = [
        f"tests/{module}.py::{name}" for module in ("a/test_short", "b/test_long", "b/test_new") for name in names
    ]
    assert [expected.of(nodeid) for nodeid in nodeids[3:6]] == [30.0, 30.0, UNNAMED_S]
    assert expected.longest_first(nodeids, range(9)) == [6, 7, 8, 3, 4, 5, 0, 1, 2]
    assert expected.longest_first(nodeids, range(1, 5)) == [3, 4, 1, 2]


def test_the_kept_times_are_of_tests_that_are_named_so() -> None:
    expected = ExpectedTimes(kept_times())
    assert (
        expected.of("tests/unit/test_side_by_side.py::test_tests_behind_a_process_that_died_are_run_by_another") > 0.1
    )
