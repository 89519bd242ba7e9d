"""Environments of packages in a folder of a test."""

import sysconfig
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from shared.concurrency import Clock, SystemClock
from shared.domain.tools import PackageRoom, PackageRules
from shared.packages.bounded_program import remove_tree
from shared.packages.environments import PackageBuilder, PackageEnvironments, target_python
from tests.kit.package_index import PackageIndex

UV = str(Path(sysconfig.get_path("scripts")) / "uv")
"""The `uv` of the tests' own installation."""


def environments(
    folder: Path,
    index: PackageIndex | None,
    *,
    clock: Clock | None = None,
    uv: str = UV,
    python: str = "",
    **rules: Any,
) -> PackageEnvironments:
    """The environments of one process. Two with the same folder are like two processes of a machine. `index`: None for
    off."""
    chosen = PackageRules(
        index="" if index is None else index.url,
        folder=folder,
        room=PackageRoom(16 << 20, 1000),
        most_bytes_in_all=64 << 20,
        build_s=60.0,
        keep=timedelta(days=30),
    )
    chosen = msgspec.structs.replace(chosen, **rules)
    builder = PackageBuilder(chosen, uv, {})
    return PackageEnvironments(chosen, target_python(""), builder, clock or SystemClock())


def built(folder: Path) -> list[str]:
    """The names of the environments in the folder."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("work-"))


def unfinished(folder: Path) -> list[str]:
    """Returns the environments that are unfinished: a process builds them, or died while it did."""
    return sorted(path.name for path in folder.glob("work-*"))


def lose(folder: Path) -> None:
    """Removes the environments, as on a machine that has none of them yet."""
    for name in built(folder):
        remove_tree(folder / name)
    assert not built(folder)
