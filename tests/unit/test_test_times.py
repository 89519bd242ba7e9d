"""CI names the tests that became slower, on a machine of any speed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.project.documents import ROOT

USUAL = {"test_a": 1.0, "test_b[1]": 2.0, "test_b[2]": 4.0, "test_c": 0.6, "test_quick": 0.2}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The script in a checkout of its own, where it finds the tests and keeps its reference."""
    folder = tmp_path / ".ci"
    folder.mkdir()
    return Path(shutil.copy(ROOT / ".ci/test-times", folder))


def report(directory: Path, times: dict[str, float], skipped: str = "") -> Path:
    cases = [f'<testcase classname="tests.unit.test_x" name="{name}" time="{s}"/>' for name, s in times.items()]
    written = directory / "report.xml"
    written.write_text(f"<testsuites><testsuite>{''.join(cases)}{skipped}</testsuite></testsuites>")
    return written


def said(script: Path, word: str, times: dict[str, float], skipped: str = "") -> list[str]:
    command = [sys.executable, script, word, report(script.parent, times, skipped)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("pace", [0.25, 1.0, 10.0])
def test_only_what_became_slower_than_the_others_is_named(script: Path, pace: float) -> None:
    said(script, "keep", USUAL)
    now = {name: pace * seconds for name, seconds in USUAL.items()}
    assert said(script, "compare", now) == [f"test times: {pace:.2f} times the reference's, by the median of 3 tests"]
    [_, slower] = said(script, "compare", {**now, "test_b[1]": pace * 13 + 9})
    assert slower.startswith("  became slower: tests.unit.test_x.test_b: ")


def test_what_is_new_skipped_or_a_trifle_is_not_named(script: Path) -> None:
    said(script, "keep", USUAL)
    skipped = '<testcase classname="tests.unit.test_x" name="test_a" time="90"><skipped/></testcase>'
    now = {**USUAL, "test_new": 60.0, "test_quick": 1.9}
    assert len(said(script, "compare", now, skipped)) == 1


def test_a_run_without_a_reference_is_no_failure(script: Path) -> None:
    assert said(script, "compare", USUAL) == ["test times: the reference has none of these tests"]


def test_a_test_that_a_run_left_out_was_unknown_to_the_next_one(script: Path) -> None:
    file = script.parent.parent / "tests/unit/test_x.py"
    file.parent.mkdir(parents=True)
    file.write_text("def test_a() -> None: ...\ndef test_b() -> None: ...\n")
    said(script, "keep", {"test_a": 1.0, "test_gone": 3.0, "test_b[1]": 4.0})
    said(script, "keep", {"test_b[2]": 2.0})
    kept = json.loads((script.parent / "test-times.json").read_text())
    assert kept == {"tests.unit.test_x.test_a": 1.0, "tests.unit.test_x.test_b": 2.0}
