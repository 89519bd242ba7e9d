"""Clients in environments of their own, which are made once for each list of versions and kept inside of .venv.

They need other versions of what Holdfast needs, or another language. Where they cannot be installed, because the
machine has no network, tests skip and say why; in CI they fail.
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
INSTALLED = Path(sys.prefix) / "clients"
INSTALL_S = 300
"""Seconds after which installing one client is given up."""


def python_with(name: str) -> Path:
    """A Python that has what `programs/NAME.txt` lists, and nothing else."""
    requirements = PROGRAMS / f"{name}.txt"

    def install(folder: Path) -> None:
        uv = Path(sys.executable).with_name("uv")
        _run([uv, "venv", "--quiet", "--python", sys.executable, folder], folder.parent)
        python = folder / "bin/python"
        _run([uv, "pip", "install", "--quiet", "--no-deps", "--python", python, "-r", requirements], folder.parent)

    return _made(name, [requirements], install) / "bin/python"


def beside_node_modules(program: str) -> Path:
    """A copy of `programs/PROGRAM` for Node.js, beside the packages that `programs/package-lock.json` lists."""
    copy = _node_modules("node", PROGRAMS) / program
    made = copy.with_suffix(f".{os.getpid()}{copy.suffix}")
    shutil.copy(PROGRAMS / program, made)
    return made.replace(copy)


def program_of_package(name: str, program: str) -> Path:
    """A program that a package of npm brings; `programs/NAME` lists the package with what it needs."""
    return _node_modules(name, PROGRAMS / name) / "node_modules" / program


def _node_modules(name: str, listed: Path) -> Path:
    sources = [listed / file for file in ("package.json", "package-lock.json")]
    npm = shutil.which("npm")
    if npm is None:
        _missing("there is no npm on this machine")

    def install(folder: Path) -> None:
        folder.mkdir()
        for source in sources:
            shutil.copy(source, folder)
        # `ci` takes what the lock says or fails.
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
