"""Packages behind every kind of walls: a tool imports them, and nothing of them runs before it does."""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from shared.domain.tools import ToolPackages
from tests.kit.environments import environments, lose
from tests.kit.package_index import PackageIndex, wheel
from tests.kit.sandboxes import EVERY_SANDBOX, sandbox_of
from tests.kit.tools import tool_call

MARKS = """
import builtins, os
builtins.SITE_RAN = getattr(builtins, "SITE_RAN", []) + [__name__]
try:
    open({mark!r}, "w")
except OSError:
    pass
"""
LOOKS = """
    def tool():
        import builtins, json, sys
        import inert
        return [getattr(builtins, "SITE_RAN", []), json.__file__ == inert.__file__, "loads" in dir(json), inert.VALUE]
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that every user can reach, as the tools of a worker that is root need it."""
    made = Path(tempfile.mkdtemp(prefix="holdfast-test-packages-"))
    made.chmod(0o711)
    yield made
    for inner, _, _ in os.walk(made):
        Path(inner).chmod(0o700)
    shutil.rmtree(made)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "ran"


@pytest.fixture
async def index(mark: Path) -> AsyncIterator[PackageIndex]:
    marks = MARKS.format(mark=str(mark))
    files = {
        "inert.py": "VALUE = 7\n",
        "inert.pth": f"import os; open({str(mark)!r}, 'w')\n",
        "sitecustomize.py": marks,
        "usercustomize.py": marks,
        "json.py": marks,
        "typing.py": marks,
    }
    async with PackageIndex().put(wheel("inert", "1.0", files)).serving() as made:
        yield made


def has_run(mark: Path) -> bool:
    return mark.exists()


@pytest.mark.parametrize("sandbox", EVERY_SANDBOX)
async def test_only_what_a_tool_imports_of_its_packages_is_run(
    sandbox: str, folder: Path, index: PackageIndex, mark: Path
) -> None:
    """No `.pth` file, no `sitecustomize`, and nothing in the place of a module of Python's: not by who installs the
    packages, which no walls surround, and not in the call."""
    packages = environments(folder, index)
    async with sandbox_of(sandbox) as calls, packages.folders(ToolPackages(["inert==1.0"], ["inert"])) as folders:
        is_run_by_installer = has_run(mark)
        outcome = await calls.call(msgspec.structs.replace(tool_call(LOOKS), folders=folders))
    assert (outcome.status, outcome.text) == ("success", "[[], false, true, 7]"), outcome
    assert not is_run_by_installer
    assert not has_run(mark)


@pytest.mark.parametrize("sandbox", EVERY_SANDBOX)
async def test_a_call_without_packages_sees_none_of_anothers(sandbox: str, folder: Path, index: PackageIndex) -> None:
    packages = environments(folder, index)
    async with sandbox_of(sandbox) as calls, packages.folders(ToolPackages(["inert==1.0"], ["inert"])) as folders:
        call = tool_call(LOOKS)
        assert (await calls.call(msgspec.structs.replace(call, folders=folders))).status == "success"
        outcome = await calls.call(call)
    assert outcome.text == "Error executing function tool: ModuleNotFoundError: No module named 'inert'"


@pytest.mark.parametrize("sandbox", EVERY_SANDBOX)
async def test_packages_that_were_installed_again_were_not_seen_by_a_process_that_had_seen_the_first_ones(
    sandbox: str, folder: Path, index: PackageIndex
) -> None:
    packages, pins = environments(folder, index), ToolPackages(["inert==1.0"], ["inert"])
    async with sandbox_of(sandbox) as calls:
        for _ in range(2):
            async with packages.folders(pins) as folders:
                outcome = await calls.call(msgspec.structs.replace(tool_call(LOOKS), folders=folders))
            assert outcome.status == "success", outcome
            lose(folder)
