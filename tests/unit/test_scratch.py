"""What is removed when a tool's directory is cleaned up, and what is not."""

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from shared.domain.ids import RunId
from tests.kit.tools import tool_call
from tests.kit.wait_until import after, wait_until
from worker.tools.scratch import MOST_ENTRIES, MOST_REMOVALS, ToolFolders, is_too_full, remove_tree

DEEP = 300


def put_a_link_in_its_place(directory: str, target: Path) -> None:
    Path(directory).rmdir()
    Path(directory).symlink_to(target)


async def test_cleaning_up_emptied_the_folder_that_a_link_in_the_directorys_place_led_to(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "kept").write_text("x")
    folders = ToolFolders(tmp_path)
    async with folders.of_call() as directory:
        put_a_link_in_its_place(directory, theirs)
    await folders.aclose()
    assert (theirs / "kept").exists()
    assert not is_link(directory)


async def test_a_cancel_during_the_removal_left_the_folder_of_the_run(tmp_path: Path) -> None:
    invocation = msgspec.structs.replace(tool_call("def tool(): ..."), run_id=RunId("run-1"))
    folders, made, may_go_on = ToolFolders(tmp_path), list[Path](), threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    in_front = loop.run_in_executor(None, may_go_on.wait, 60)

    async def use() -> None:
        async with folders.of_run(RunId("run-1")):
            made.extend(filter(None, [folders.of_invocation(invocation)]))

    async with asyncio.TaskGroup() as group:
        using = group.create_task(use())
        await wait_until(lambda: made, description="the folder to be made")
        for _ in range(2):
            await after()
            using.cancel()
        await after()
        may_go_on.set()
        await asyncio.wait([using, in_front])
    assert using.cancelled()
    assert not made[0].exists()


def test_links_inside_are_removed_and_not_followed(tmp_path: Path) -> None:
    theirs, own = tmp_path / "theirs", tmp_path / "scratch"
    for folder in (theirs, own, own / "inner"):
        folder.mkdir()
    (theirs / "kept").write_text("x")
    (own / "link").symlink_to(theirs)
    (own / "inner" / "link").symlink_to(theirs / "kept")
    (own / "inner").chmod(0)
    remove_tree(own)
    assert (theirs / "kept").exists()
    assert not own.exists()


@pytest.mark.parametrize("name", ["d", "d" * 200])
def test_a_nested_folder_cost_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    top = tmp_path / "scratch"
    top.mkdir()
    monkeypatch.chdir(top)
    for _ in range(DEEP):
        Path("file").touch()
        Path(name).mkdir()
        os.chdir(name)
    Path("file").touch()
    os.chdir(tmp_path)
    opened, descriptors = list[str](), set[int]()
    function = os.open

    def noted(path: str | Path, flags: int, dir_fd: int | None = None) -> int:
        opened.append(str(path))
        descriptor = function(path, flags, dir_fd=dir_fd)
        descriptors.add(descriptor)
        return descriptor

    monkeypatch.setattr(os, "open", noted)
    remove_tree(top)
    assert not top.exists()
    assert set(opened) == {str(top), name, ".."}
    assert len(opened) == 1 + 2 * DEEP
    assert len(descriptors) <= 3


async def test_nested_folders_held_the_place_of_their_call_until_they_were_removed(tmp_path: Path) -> None:
    """Three thousand of them took ten seconds, beyond the call's limit of time."""
    folders, may_go_on, left = ToolFolders(tmp_path), threading.Event(), list[Path]()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    in_front = loop.run_in_executor(None, may_go_on.wait, 60)

    async def call() -> None:
        async with folders.of_call() as directory:
            left.append(Path(directory))
            (left[-1] / "inner").mkdir()

    for _ in range(MOST_REMOVALS):
        await call()
    assert all(folder.exists() for folder in left)
    async with asyncio.TaskGroup() as group:
        last = group.create_task(call())
        for _ in range(5):
            await after()
        assert not last.done(), "tools leave no more than can be removed"
        may_go_on.set()
        await in_front
    await folders.aclose()
    assert not any(folder.exists() for folder in left)


def test_folders_that_nobody_may_enter_or_write_are_removed(tmp_path: Path) -> None:
    top = tmp_path / "scratch"
    for mode in (0, 0o100, 0o400, 0o500):
        inner = top / f"of-{mode:o}" / "inner"
        inner.mkdir(parents=True)
        (inner / "file").touch()
        inner.chmod(mode)
        inner.parent.chmod(mode)
    top.chmod(0)
    remove_tree(top)
    assert not top.exists()


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
