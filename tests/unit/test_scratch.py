"""What is removed when a tool's directory is cleaned up, and what is not."""

import os
from pathlib import Path

import pytest

from worker.tools.scratch import remove_tree, scratch_directory
from worker.tools.scratch_watch import MOST_ENTRIES, is_too_full


def put_a_link_in_its_place(directory: str, target: Path) -> None:
    Path(directory).rmdir()
    Path(directory).symlink_to(target)


async def test_cleaning_up_emptied_the_folder_that_a_link_in_the_directorys_place_led_to(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "kept").write_text("x")
    async with scratch_directory() as directory:
        put_a_link_in_its_place(directory, theirs)
    assert (theirs / "kept").exists()
    assert not is_link(directory)


def test_links_inside_are_removed_and_not_followed(tmp_path: Path) -> None:
    theirs, scratch = tmp_path / "theirs", tmp_path / "scratch"
    for folder in (theirs, scratch, scratch / "inner"):
        folder.mkdir()
    (theirs / "kept").write_text("x")
    (scratch / "link").symlink_to(theirs)
    (scratch / "inner" / "link").symlink_to(theirs / "kept")
    (scratch / "inner").chmod(0)
    remove_tree(scratch)
    assert (theirs / "kept").exists()
    assert not scratch.exists()


def is_link(path: str) -> bool:
    return Path(path).is_symlink()


@pytest.mark.parametrize("size", [0, 1])
def test_files_count_by_what_they_take_on_the_disk(tmp_path: Path, size: int) -> None:
    (tmp_path / "inner").mkdir()
    most = 1 << 20
    (tmp_path / "inner" / "file").write_bytes(b"x" * (most + 8192) * size)
    with (tmp_path / "inner" / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 30)
    assert is_too_full(str(tmp_path), most) == bool(size)


def test_empty_files_count_too(tmp_path: Path) -> None:
    for number in range(MOST_ENTRIES + 1):
        (tmp_path / str(number)).touch()
    assert is_too_full(str(tmp_path), 1 << 40)


def test_what_cannot_be_looked_through_counts_as_too_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(30):
        Path("d" * 200).mkdir()
        os.chdir("d" * 200)
    assert is_too_full(str(tmp_path), 1 << 40)
    os.chdir(tmp_path)
    remove_tree(tmp_path)
