"""Environments of packages: chosen, built once whoever asks, as a whole or not at all, and removed when unused."""

import asyncio
import os
import shutil
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from shared.domain.errors import InvalidRequest, Unavailable
from shared.domain.tools import PackageRoom, ToolPackages
from shared.packages.environments import PackageEnvironments
from tests.kit.certificates import Issued
from tests.kit.clocks import SettableClock
from tests.kit.environments import built, environments, unfinished
from tests.kit.package_index import PackageIndex, source_archive, wheel
from tests.kit.wait_until import wait_until

BUILDER = """
import asyncio, sys
from pathlib import Path
from shared.domain.tools import ToolPackages
from tests.kit.environments import environments
from tests.kit.package_index import PackageIndex

class Index(PackageIndex):
    url = sys.argv[2]

async def main():
    async with environments(Path(sys.argv[1]), Index()).folders(ToolPackages(["pure==2.0"], [])):
        pass

asyncio.run(main())
"""


@pytest.fixture
async def index() -> AsyncIterator[PackageIndex]:
    made = PackageIndex()
    made.put(wheel("pure", "1.0", {"pure.py": "VERSION = 1\n"}))
    made.put(wheel("pure", "2.0", {"pure.py": "VERSION = 2\n"}))
    made.put(wheel("needs_old", "1.0", {"needs_old/__init__.py": "import pure\n"}, requires=["pure<2"]))
    made.put(wheel("needs_new", "1.0", {"needs_new.py": ""}, requires=["pure>=2"]))
    made.put(wheel("elsewhere", "1.0", {"e.py": ""}, requires=["source @ http://127.0.0.1:9/source-1.0.tar.gz"]))
    made.put(wheel("of_another_system", "1.0", {"o.py": ""}, tag="cp27-cp27m-win_amd64"))
    made.put(wheel("large", "1.0", {"large.py": "#" * 3_000_000, "larger.py": "#" * 3_000_000}))
    made.put(wheel("huge", "1.0", {"huge.py": "#" * 40_000_000}))
    async with made.serving():
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (made := tmp_path / "packages").mkdir()
    return made


@pytest.fixture
def packages(folder: Path, index: PackageIndex) -> PackageEnvironments:
    return environments(folder, index)


async def chosen(packages: PackageEnvironments, *names: str, version: str = "") -> ToolPackages:
    found = await packages.chosen([{"name": name, "version": version} for name in names], None)
    assert found is not None
    return found


async def test_a_version_is_taken_as_it_is_said(packages: PackageEnvironments) -> None:
    assert (await chosen(packages, "pure", version="1.0")).pins == ["pure==1.0"]


async def test_the_newest_version_is_taken_if_none_is_said(packages: PackageEnvironments) -> None:
    assert await chosen(packages, "pure") == ToolPackages(["pure==2.0"], ["pure"])


async def test_what_a_package_needs_comes_along(packages: PackageEnvironments, folder: Path) -> None:
    assert await chosen(packages, "needs-old") == ToolPackages(["needs-old==1.0", "pure==1.0"], ["needs_old", "pure"])
    [name] = built(folder)
    [build] = (folder / name).iterdir()
    assert (build / "pure.py").read_text() == "VERSION = 1\n"


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("nothing",), "nothing was not found in the package registry"),
        (("needs-old", "needs-new"), "are incompatible"),
        (("of-another-system",), "has no wheels with a matching Python implementation tag"),
        (("elsewhere",), "`source` was included as a URL dependency"),
    ],
)
async def test_what_cannot_be_had_is_refused_with_the_reason(
    packages: PackageEnvironments, folder: Path, names: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await chosen(packages, *names)
    assert reason in refused.value.message
    assert refused.value.message.startswith("pip_requirements: ")
    assert "\n" not in refused.value.message
    assert (built(folder), unfinished(folder)) == ([], [])


async def test_a_version_that_is_not_there_is_refused(packages: PackageEnvironments) -> None:
    with pytest.raises(InvalidRequest, match="there is no version of pure==9"):
        await chosen(packages, "pure", version="9")


async def test_a_package_without_a_wheel_is_refused_and_its_setup_is_not_run(
    packages: PackageEnvironments, index: PackageIndex, tmp_path: Path
) -> None:
    mark = tmp_path / "setup was run"
    index.put(source_archive("source", "1.0", f"open({str(mark)!r}, 'w')"))
    with pytest.raises(InvalidRequest, match="Wheels are required for `source`"):
        await chosen(packages, "source")
    assert not mark.exists()


async def test_the_index_and_its_password_are_in_no_answer(packages: PackageEnvironments, index: PackageIndex) -> None:
    said: list[str] = []
    for status in (401, 403, 500):
        index.status = status
        with pytest.raises((InvalidRequest, Unavailable)) as refused:
            await chosen(packages, "pure")
        said.append(refused.value.message)
    assert ["401" in said[0], "403" in said[1], "does not answer" in said[2]] == [True, True, True]
    assert not [text for text in said if "hidden" in text or "127.0.0.1" in text or "://" in text]


async def test_an_index_with_a_certificate_of_the_operators_own_is_trusted_if_that_is_named(
    folder: Path, tmp_path: Path
) -> None:
    issued = Issued.of(tmp_path, "127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(issued.certificate, issued.key)
    async with PackageIndex().put(wheel("pure", "1.0", {"pure.py": ""})).serving(tls) as index:
        with pytest.raises(Unavailable, match="certificate"):
            await chosen(environments(folder, index), "pure")
        assert (await chosen(environments(folder, index, ca_file=issued.authority), "pure")).pins == ["pure==1.0"]


async def test_packages_that_are_too_large_are_refused_and_nothing_is_left(folder: Path, index: PackageIndex) -> None:
    """One file that is, and files that are together."""
    packages = environments(folder, index, room=PackageRoom(4 << 20, 1000))
    for name in ("huge", "large"):
        with pytest.raises(InvalidRequest, match=r"take more than 4 MB \(HOLDFAST_PACKAGE_MB\)"):
            await chosen(packages, name)
    assert (built(folder), unfinished(folder)) == ([], [])


@pytest.mark.parametrize("layout", ["{}.py", "{}/__init__.py", "data/{}.txt", "{}/{}/{}/{}"])
async def test_a_package_of_very_many_empty_files_was_worked_at_until_its_time_was_over(
    folder: Path, index: PackageIndex, layout: str
) -> None:
    """Bytes were counted, and empty files have none."""
    index.put(wheel("crowd", "1.0", {layout.replace("{}", f"m{number}"): "" for number in range(400)}))
    with pytest.raises(InvalidRequest, match=r"more than 300 files \(HOLDFAST_PACKAGE_FILES\)"):
        await chosen(environments(folder, index, room=PackageRoom(4 << 20, 300)), "crowd")
    assert (built(folder), unfinished(folder)) == ([], [])
    await chosen(environments(folder, index, room=PackageRoom(16 << 20, 2000)), "crowd")
    assert len(built(folder)) == 1


async def test_an_environment_is_for_reading_alone(packages: PackageEnvironments, folder: Path) -> None:
    await chosen(packages, "needs-old")
    [name] = built(folder)
    paths = [folder / name, *(folder / name).rglob("*")]
    assert {oct(path.stat().st_mode & 0o777) for path in paths if path.is_dir()} == {"0o555"}
    assert {oct(path.stat().st_mode & 0o7777) for path in paths if path.is_file()} == {"0o444"}


async def test_two_that_want_the_same_build_it_once(folder: Path, index: PackageIndex) -> None:
    """As two processes do: each has descriptors and locks of its own."""
    first, second = environments(folder, index), environments(folder, index)
    pins = ToolPackages(["pure==2.0"], ["pure"])

    async def use(packages: PackageEnvironments) -> tuple[str, ...]:
        async with packages.folders(pins) as found:
            return found

    index.answers.clear()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(use(packages), name="a builder") for packages in (first, second)]
        await wait_until(lambda: index.asked["/simple/pure/"], description="the first builder to ask the index")
        index.answers.set()
    assert tasks[0].result() == tasks[1].result()
    assert index.asked["/simple/pure/"] == 1
    assert len(built(folder)) == 1


async def test_a_build_that_hangs_is_ended_and_nothing_is_left(folder: Path, index: PackageIndex) -> None:
    index.answers.clear()
    packages = environments(folder, index, build_s=0.5)
    with pytest.raises(InvalidRequest, match=r"not installed within 0.5 s \(HOLDFAST_PACKAGE_BUILD_S\)"):
        await chosen(packages, "pure")
    assert (built(folder), unfinished(folder), builders(folder)) == ([], [], [])


async def test_a_build_that_is_cancelled_is_ended_and_nothing_is_left(folder: Path, index: PackageIndex) -> None:
    index.answers.clear()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(chosen(environments(folder, index), "pure"), name="a builder")
        await wait_until(lambda: index.asked["/simple/pure/"], description="the builder to ask the index")
        assert len(builders(folder)) == 1
        task.cancel()
        await asyncio.wait([task])
    assert (built(folder), unfinished(folder), builders(folder)) == ([], [], [])


async def test_what_a_killed_builder_leaves_is_removed_by_the_next_one(folder: Path, index: PackageIndex) -> None:
    """Its installer dies with it, whatever it waits for."""
    index.answers.clear()
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", BUILDER, str(folder), index.url)
    await wait_until(lambda: index.asked["/simple/pure/"], description="the builder to ask the index")
    [left] = unfinished(folder)
    killed.send_signal(signal.SIGKILL)
    await killed.wait()
    await wait_until(lambda: not builders(folder), description="the installer of the killed builder to be dead")
    assert unfinished(folder) == [left]
    index.answers.set()

    async with environments(folder, index).folders(ToolPackages(["pure==2.0"], ["pure"])) as [found]:
        assert (Path(found) / "pure.py").read_text() == "VERSION = 2\n"
    assert (built(folder), unfinished(folder)) == ([Path(found).parent.name], [])


async def test_an_environment_that_is_there_needs_no_index(folder: Path, index: PackageIndex) -> None:
    pins = await chosen(environments(folder, index), "pure")
    asked = index.asked.total()
    async with environments(folder, index).folders(pins) as [found], environments(folder, None).folders(pins) as [same]:
        assert found == same
    assert index.asked.total() == asked


async def test_one_that_is_not_there_is_named_where_there_is_no_index(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="HOLDFAST_PACKAGE_INDEX"):
        async with environments(folder, None).folders(ToolPackages(["pure==2.0"], ["pure"])):
            pass


async def test_a_folder_that_is_gone_is_unavailable(tmp_path: Path, index: PackageIndex) -> None:
    with pytest.raises(Unavailable, match="HOLDFAST_PACKAGE_DIR"):
        await chosen(environments(tmp_path / "gone", index), "pure")


async def test_what_nobody_has_used_for_long_is_removed_but_not_under_its_user(
    folder: Path, index: PackageIndex
) -> None:
    clock = SettableClock()
    packages = environments(folder, index, clock=clock, keep=timedelta(days=2))
    old, new = [await chosen(packages, "pure", version=version) for version in ("1.0", "2.0")]
    clock.advance(days=3)
    async with packages.folders(new) as [kept]:
        pass
    async with packages.folders(old) as [in_use]:
        os.utime(f"{Path(in_use).parent}.lock", (0, 0))
        await packages.tidy()
        assert built(folder) == sorted([Path(kept).parent.name, Path(in_use).parent.name])
    await packages.tidy()
    assert built(folder) == [Path(kept).parent.name]
    async with packages.folders(old) as [again]:
        assert Path(again).parent == Path(in_use).parent
        assert (Path(again) / "pure.py").exists()


async def test_who_is_killed_while_it_removes_leaves_no_part_in_the_place_of_the_whole(
    folder: Path, index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SettableClock()
    packages = environments(folder, index, clock=clock, keep=timedelta(days=2))
    pins = await chosen(packages, "pure")
    clock.advance(days=3)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(shutil, "rmtree", killed)
        await packages.tidy()
    assert (built(folder), len(unfinished(folder))) == ([], 1)
    async with packages.folders(pins) as [found]:
        assert (Path(found) / "pure.py").exists()
    assert unfinished(folder) == []


async def test_the_room_for_all_goes_to_those_that_were_used_last(folder: Path, index: PackageIndex) -> None:
    clock = SettableClock()
    packages = environments(folder, index, clock=clock, most_bytes_in_all=1)
    for version in ("1.0", "2.0"):
        await chosen(packages, "pure", version=version)
        clock.advance(minutes=1)
    assert len(built(folder)) == 1  # there was no room for the first one, and the second is what somebody needs
    async with packages.folders(ToolPackages(["pure==2.0"], ["pure"])) as [found]:
        assert built(folder) == [Path(found).parent.name]


def builders(folder: Path) -> list[int]:
    """The installers that work in the folder."""
    found = psutil.process_iter(["name", "cmdline"])
    return [one.pid for one in found if one.info["name"] == "uv" and str(folder) in " ".join(one.info["cmdline"] or ())]
