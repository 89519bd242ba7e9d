"""What the commands leave out is what the documents say, and who watches a run of the tests sees failures at once."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.cases import cases_in_make_test, spread
from tests.kit.project.documents import ROOT
from tests.kit.tiers import IN_ALL_ALONE

NAMED_TEST = re.compile(r"`(?P<file>tests/[\w/]+\.py)(?:::(?P<test>\w+))?`(?P<alone> \(`make test-all`\))?")

FAILING = """
import os
import pathlib
import time

import pytest


@pytest.fixture
def broken_before():
    raise RuntimeError


@pytest.fixture
def broken_afterwards():
    yield
    raise RuntimeError


def test_that_fails():
    assert False


def test_that_cannot_begin(broken_before):
    pass


def test_that_leaves_something(broken_afterwards):
    pass


def test_that_passes():
    pass


@pytest.mark.skip(reason="as it should")
def test_that_is_skipped():
    pass


@pytest.mark.xfail(reason="as it should")
def test_that_may_fail():
    assert False


def test_that_hangs_until_the_failures_were_read():
    end = time.monotonic() + 300  # its reader may have been killed
    while not pathlib.Path(os.environ["GO"]).exists() and time.monotonic() < end:
        time.sleep(0.01)
"""
FAILS_ONCE = """
TRIES = []


def test_that_fails_once():
    TRIES.append(1)
    assert len(TRIES) > 1, "what was wrong at the first try"


def test_that_passes():
    pass
"""
FAILURES = {
    "FAILED test_some.py::test_that_fails (call)",
    "FAILED test_some.py::test_that_cannot_begin (setup)",
    "FAILED test_some.py::test_that_leaves_something (teardown)",
}


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_suite_that_was_stopped_had_named_no_failure(tmp_path: Path, processes: str) -> None:
    """Each failure has its line while another test is still at work, in one process and beside others."""
    (tmp_path / "test_some.py").write_text(FAILING)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    go = tmp_path / "go"
    plugins = ["tests.kit.tiers", "tests.kit.side_by_side", "no:cacheprovider"]
    options = [*(f"-p{plugin}" for plugin in plugins), "--processes", processes, "--tb=no"]
    running = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, "--rootdir", tmp_path, "-c", tmp_path / "pytest.ini", tmp_path],
        cwd=ROOT,
        env={"PATH": "", "GO": str(go), "PYTHONUNBUFFERED": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    with running as process:
        assert process.stdout is not None
        shown: set[str] = set()
        try:
            for line in process.stdout:
                shown.add(line.strip())
                if shown >= FAILURES:
                    break
        finally:
            go.touch()  # only now can the last test end
        rest = process.stdout.read()
    assert shown >= FAILURES, rest
    outcomes = {line for line in shown if line.partition(" ")[0] in ("FAILED", "ERROR", "SKIPPED", "PASSED", "XFAILED")}
    assert outcomes == FAILURES
    assert "1 failed" in rest


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_test_that_passed_at_its_second_try_had_hidden_why_it_had_failed(tmp_path: Path, processes: str) -> None:
    """CI tries a failure once more and names the test. The name alone told nobody what to mend."""
    (tmp_path / "test_some.py").write_text(FAILS_ONCE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    plugins = ["tests.kit.tiers", "tests.kit.side_by_side", "pytest_rerunfailures", "no:cacheprovider"]
    options = [*(f"-p{plugin}" for plugin in plugins), "--processes", processes, "--reruns", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--rootdir", tmp_path, "-c", tmp_path / "pytest.ini", tmp_path],
        cwd=ROOT,
        env={"PATH": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "RERUN test_some.py::test_that_fails_once (call)" in done.stdout
    assert "AssertionError: what was wrong at the first try" in done.stdout


def test_guarantees_say_which_of_their_tests_make_test_leaves_out(request: pytest.FixtureRequest) -> None:
    """A test of which `make test` runs no case has that said behind its name, and no other has.

    Compared with the marks of what this session has collected, which in `make test` and `make test-all` is everything.
    """
    collected = request.config.stash[IN_ALL_ALONE]
    wrong = list[str]()
    for named in NAMED_TEST.finditer((ROOT / "docs/guarantees.md").read_text(encoding="utf-8")):
        prefix = f"{named['file']}::{named['test'] or ''}"
        cases = [
            alone
            for name, alone in collected.items()
            if name == prefix or (not named["test"] and name.startswith(prefix))
        ]
        if cases and all(cases) != bool(named["alone"]):
            wrong.append(named[0])
    assert wrong == []


def test_no_test_is_left_out_by_a_name_that_it_no_longer_has(request: pytest.FixtureRequest) -> None:
    """Compared, like the above, with what this session has collected."""
    listed, collected = cases_in_make_test(), request.config.stash[IN_ALL_ALONE]
    files = {name.split("::")[0] for name in collected}
    unknown = [
        name
        for file, tests in listed.items()
        for test in tests
        if f"tests/{file}" in files and (name := f"tests/{file}::{test}") not in collected
    ]
    missing = [file for file in listed if not (ROOT / "tests" / file).exists()]
    assert (unknown, missing) == ([], [])


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 40, 51])
def test_as_many_cases_are_kept_as_were_asked_for(count: int) -> None:
    for wanted in range(count + 3):
        kept = spread(count, wanted)
        assert len(kept) == min(wanted, count)
        assert kept <= set(range(count))
        if 4 <= 2 * wanted <= count:
            assert {number % 2 for number in kept} == {0, 1}
