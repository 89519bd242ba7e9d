"""Folders of tools that a dead worker has left, and those of workers that live."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from worker.tools.scratch import LOCK, PREFIX, remove_left_folders, worker_folder

HOLDS = """
import sys, time
from pathlib import Path
from worker.tools.scratch import worker_folder
with worker_folder(Path(sys.argv[1])) as folder:
    (folder / "run-1").mkdir()
    (folder / "run-1" / "kept").write_text("x" * 1000)
    print(folder, flush=True)
    time.sleep(600)
"""


def test_what_a_killed_worker_has_left_is_removed_and_a_living_ones_is_not(tmp_path: Path) -> None:
    with worker_folder(tmp_path) as own:
        process = subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout
        theirs = Path(process.stdout.readline().strip())
        assert remove_left_folders(tmp_path) == 0
        assert (theirs / "run-1" / "kept").exists()
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert remove_left_folders(tmp_path) == 1
        assert list(tmp_path.iterdir()) == [own]
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_workers_folder_stays(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    (tmp_path / f"{PREFIX}link").symlink_to(elsewhere)
    (tmp_path / f"{PREFIX}file").touch()
    assert remove_left_folders(tmp_path) == 0
    assert (elsewhere / "kept").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", f"{PREFIX}file", f"{PREFIX}link"]


def test_a_folder_that_somebody_removes_before_its_worker_has_locked_it_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remover has the lock of a folder that is a moment old: its worker takes another one."""
    taken: list[Path] = []
    original = os.open

    def open_late(path: Path, flags: int, mode: int = 0o777) -> int:
        if not taken and Path(path).name == LOCK:
            taken.append(Path(path).parent)
            descriptor = original(path, flags, mode)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        return original(path, flags, mode)

    monkeypatch.setattr(os, "open", open_late)
    with worker_folder(tmp_path) as folder:
        assert taken
        assert folder != taken[0]
