"""`make dev` installs what runs, and all else the developers' tools. One sees it grow, and why it failed."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.kit.project.source_tree import ROOT

BEFORE_ANYTHING = ("pyproject.toml", "setup.py", "constraints.txt")
DEVELOPERS = "-e '.[dev]'"
RUNS = "-e '.[google]' letta-client"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder in which make would install, with what an installation depends on, all of it old."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in BEFORE_ANYTHING:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1, 1))
    return tmp_path


def installs(checkout: Path, target: str) -> list[str]:
    """What `make` would have pip install for a target."""
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=checkout, capture_output=True, text=True, check=True, timeout=60
    )
    return re.findall(r"\.ci/install -c constraints\.txt (.+)$", done.stdout, re.MULTILINE)


def touch(checkout: Path, *names: str) -> None:
    for name in names:
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).touch()


def test_somebody_who_wants_to_see_a_server_got_a_browser_and_a_type_checker(checkout: Path) -> None:
    assert installs(checkout, "dev") == [RUNS]


@pytest.mark.parametrize("target", ["test", "test-all", "test-fast", "lint", "check", "format", "bench"])
def test_developers_get_their_tools(checkout: Path, target: str) -> None:
    assert installs(checkout, target) == [DEVELOPERS]
    touch(checkout, ".venv/.runs")
    assert installs(checkout, target) == [DEVELOPERS]
    touch(checkout, ".venv/.installed")
    assert installs(checkout, target) == []


@pytest.mark.parametrize("stamps", [(".venv/.runs",), (".venv/.installed",), (".venv/.runs", ".venv/.installed")])
def test_what_is_installed_is_not_installed_again(checkout: Path, stamps: tuple[str, ...]) -> None:
    touch(checkout, *stamps)
    assert installs(checkout, "dev") == []


@pytest.mark.parametrize("changed", BEFORE_ANYTHING)
def test_a_changed_dependency_is_installed_into_what_is_there(checkout: Path, changed: str) -> None:
    touch(checkout, ".venv/.runs")
    os.utime(checkout / ".venv/.runs", (2, 2))
    os.utime(checkout / changed, (3, 3))
    assert installs(checkout, "dev") == [RUNS]
    touch(checkout, ".venv/.installed")
    os.utime(checkout / ".venv/.installed", (2, 2))
    assert installs(checkout, "dev") == [DEVELOPERS]


def pip_install(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / ".ci/install", "--no-index", "--no-deps", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_an_installation_shows_how_far_it_is(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "one-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("one.py", "")
        wheel.writestr("one-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: one\nVersion: 1.0\n")
        wheel.writestr("one-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("one-1.0.dist-info/RECORD", "one.py,,\n")
    done = pip_install("--target", str(tmp_path / "target"), wheel.filename or "")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ +\d+ s  1 packages to unpack$", done.stderr, re.MULTILINE)
    assert re.search(r"^ +\d+ s  \d+ packages are installed$", done.stderr, re.MULTILINE)
    assert (tmp_path / "target/one.py").exists()


def test_an_installation_that_fails_says_why(tmp_path: Path) -> None:
    done = pip_install("--target", str(tmp_path / "target"), "no-package-of-anybody==1")
    assert done.returncode != 0
    assert "No matching distribution found for no-package-of-anybody==1" in done.stderr
