"""The Python that tools run in, and the part of the machine's files that it needs."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

LOOK_S = 120.0
"""Longer than a machine stands still: otherwise a worker that starts meanwhile would do without the program."""
OLDEST = (3, 11)
SYSTEM_FILES = (
    *("/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/lib", "/lib64", "/nix/store"),
    *("/etc/ld.so.cache", "/etc/localtime", "/etc/ssl/openssl.cnf"),
)
"""Libraries, time zones, and the files of the dynamic loader. No files of the machine's owner."""
LOOK = (
    "import sys, sysconfig; "
    "print('\\n'.join(['.'.join(map(str, sys.version_info[:2])), sys.executable, sysconfig.get_path('stdlib'), "
    "sysconfig.get_path('platstdlib'), sysconfig.get_config_var('LIBDIR') or '']))"
)


def answer_of(*command: str) -> str:
    """Returns the output of a program. Raises `OSError` or `SubprocessError`."""
    return subprocess.run(  # noqa: S603 - the operator's own choice, or the system's
        command, capture_output=True, text=True, timeout=LOOK_S, check=True, env={}
    ).stdout


class Interpreter(msgspec.Struct, frozen=True):
    """One Python, by its real path."""

    executable: str
    libraries: tuple[str, ...]

    @property
    def readable(self) -> list[str]:
        """The files and folders that a tool may read, without links and repetitions."""
        wanted = [Path(path) for path in (*SYSTEM_FILES, *self.libraries) if path]
        found: list[str] = []
        for path in sorted({str(path.resolve()) for path in wanted if path.exists()}):
            if not any(path.startswith(f"{above}/") for above in found):
                found.append(path)
        return found


def own_interpreter() -> Interpreter:
    """Returns the worker's own Python, without its installed packages."""
    paths = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), sysconfig.get_config_var("LIBDIR") or "")
    return Interpreter(os.path.realpath(sys.executable), paths)


def described(lines: Sequence[str]) -> Interpreter:
    """Parses a Python's answer to `LOOK`. Raises `ValueError` if it is too old, or not a Python."""
    version, executable, *libraries = lines
    if tuple(map(int, version.split("."))) < OLDEST:
        raise ValueError(f"it is Python {version}; tools need {OLDEST[0]}.{OLDEST[1]} or newer")
    return Interpreter(str(Path(executable).resolve()), tuple(libraries))


# The Node.js that runs JavaScript calls, and the part of the machine's files that it needs.


HARNESS = Path(__file__).parent / "guest" / "child_javascript.js"
OLDEST_NODE = 18
BESIDE = "/usr/share/nodejs"
"""The folder in which some distributions keep parts of Node.js itself."""
NODE_LOOK = (
    "console.log(JSON.stringify({version: process.versions.node, executable: process.execPath, "
    "libraries: process.report.getReport().sharedObjects}))"
)


class NodeProgram(msgspec.Struct, frozen=True):
    """One Node.js, by its real path."""

    executable: str
    version: str
    libraries: tuple[str, ...]
    """All files that it loads at its start, including the dynamic loader."""

    @property
    def files(self) -> list[str]:
        """The files and folders that a call reads, without repetitions."""
        beside = [BESIDE] if Path(BESIDE).is_dir() else []
        return sorted({self.executable, *self.libraries, *beside})

    def for_child(self) -> dict[str, Any]:
        """The frame for `child_node.py`: `{"executable", "harness", "readable", "executable_files"}`."""
        loaders = [path for path in self.libraries if Path(path).name.startswith("ld")]
        return {
            "executable": self.executable,
            "harness": HARNESS.read_text(encoding="utf-8"),
            "readable": self.files,
            "executable_files": [self.executable, *loaders],
        }


class _Answer(msgspec.Struct):
    version: str
    executable: str
    libraries: list[str]


def described_node(answer: str) -> NodeProgram:
    """Parses the answer of a Node.js to `NODE_LOOK`. Raises `ValueError` if it is too old, or not a Node.js."""
    said = msgspec.json.decode(answer, type=_Answer)
    if int(said.version.partition(".")[0]) < OLDEST_NODE:
        raise ValueError(f"it is Node.js {said.version}; tools need {OLDEST_NODE} or newer")
    libraries = {str(Path(path).resolve()) for path in said.libraries if path.startswith("/")}
    return NodeProgram(str(Path(said.executable).resolve()), said.version, tuple(sorted(libraries)))
