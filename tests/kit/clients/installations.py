"""Clients in environments of their own, which are made once for each list of versions and kept inside of .venv.

They need other versions of Holdfast's dependencies, or another language. If they cannot be installed, because the
machine has no network, tests are skipped with the reason; in CI they fail.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

PROGRAMS = Path(__file__).with_name("programs")
EXAMPLES = Path(__file__).parents[3] / "examples"
INSTALLED = Path(sys.prefix) / "clients"
INSTALL_S = 300
"""Seconds after which installing one client is given up."""


def python_with(name: str) -> Path:
    """Returns a Python that has the packages of `programs/NAME.txt` and nothing else."""
    return python_of(PROGRAMS / f"{name}.txt")


def python_of(requirements: Path) -> Path:
    """Returns a Python that has the packages of the file and nothing else. Files have different names."""

    def install(folder: Path) -> None:
        uv = Path(sys.executable).with_name("uv")
        _run([uv, "venv", "--quiet", "--python", sys.executable, folder], folder.parent)
        python = folder / "bin/python"
        _run([uv, "pip", "install", "--quiet", "--no-deps", "--python", python, "-r", requirements], folder.parent)

    return _made(requirements.stem, [requirements], install) / "bin/python"


def beside_node_modules(program: str, name: str | None = None) -> Path:
    """A copy of `programs/PROGRAM` for Node.js, beside the packages that `programs/package-lock.json` lists; with a
    name, of `programs/NAME/PROGRAM` beside those of `programs/NAME`."""
    listed = PROGRAMS if name is None else PROGRAMS / name
    copy = _node_modules(name or "node", listed) / program
    made = copy.with_suffix(f".{os.getpid()}{copy.suffix}")
    shutil.copy(listed / program, made)
    return made.replace(copy)


def program_of_package(name: str, program: str) -> Path:
    """Returns a program of an npm package. `programs/NAME` lists the package and its dependencies."""
    return _node_modules(name, PROGRAMS / name) / "node_modules" / program


def built_example(name: str) -> Path:
    """A copy of `examples/NAME` with its packages, and with its page built in `dist`."""
    source = EXAMPLES / name
    files = sorted(path for path in [*source.glob("*"), *source.glob("src/*")] if path.is_file())

    def build(folder: Path) -> None:
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("node_modules", "dist"))
        (folder / "node_modules").symlink_to(_node_modules(f"packages-{name}", source) / "node_modules")
        subprocess.run(["npm", "run", "--silent", "build"], cwd=folder, check=True, timeout=INSTALL_S)

    return _made(f"example-{name}", files, build)


def _node_modules(name: str, listed: Path) -> Path:
    sources = [listed / file for file in ("package.json", "package-lock.json")]
    npm = shutil.which("npm")
    if npm is None:
        _missing("there is no npm on this machine")

    def install(folder: Path) -> None:
        folder.mkdir()
        for source in sources:
            shutil.copy(source, folder)
        # `ci` installs exactly the versions of the lock file, or fails.
        _run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], folder)

    return _made(name, sources, install)


def _made(name: str, sources: list[Path], install: Callable[[Path], None]) -> Path:
    """The folder of an installation. Another process of the tests may make it at the same time: one of them waits."""
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    folder = INSTALLED / f"{name}-{digest}"
    finished = folder / "installed"
    INSTALLED.mkdir(exist_ok=True)
    with (INSTALLED / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            for former in INSTALLED.glob(f"{name}-*"):
                shutil.rmtree(former)
            install(folder)
            finished.touch()
    return folder


def _run(command: list[str | Path], directory: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        _missing(f"{command[0]} has not ended after {INSTALL_S} s")
    if done.returncode:
        _missing(f"a client of the API could not be installed: {(done.stderr or done.stdout)[-1000:]}")


def _missing(reason: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}. CI runs every test.", pytrace=False)
    pytest.skip(reason)
