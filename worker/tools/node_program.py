"""The Node.js that JavaScript calls become, and the part of the machine's files that it needs."""

from pathlib import Path
from typing import Any

import msgspec

HARNESS = Path(__file__).parent / "inside" / "child_javascript.js"
OLDEST = 18
BESIDE = "/usr/share/nodejs"
"""Where some distributions keep parts of Node.js itself."""
LOOK = (
    "console.log(JSON.stringify({version: process.versions.node, executable: process.execPath, "
    "libraries: process.report.getReport().sharedObjects}))"
)


class NodeProgram(msgspec.Struct, frozen=True):
    """One Node.js, by its real path."""

    executable: str
    version: str
    libraries: tuple[str, ...]
    """All files that it loads when it starts, its loader among them."""

    @property
    def files(self) -> list[str]:
        """The files and folders that a call reads, without repetitions."""
        beside = [BESIDE] if Path(BESIDE).is_dir() else []
        return sorted({self.executable, *self.libraries, *beside})

    def for_child(self) -> dict[str, Any]:
        """What `child_node.py` is told: `{"executable", "harness", "readable", "executable_files"}`."""
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


def described(answer: str) -> NodeProgram:
    """What a Node.js answered to `LOOK`. Raises `ValueError` when it is too old, or no Node.js."""
    said = msgspec.json.decode(answer, type=_Answer)
    if int(said.version.partition(".")[0]) < OLDEST:
        raise ValueError(f"it is Node.js {said.version}; tools need {OLDEST} or newer")
    libraries = {str(Path(path).resolve()) for path in said.libraries if path.startswith("/")}
    return NodeProgram(str(Path(said.executable).resolve()), said.version, tuple(sorted(libraries)))
