"""What a process needs in order to install packages for tools, and what it says at the start when it lacks it."""

import shutil
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from shared.domain.errors import InvalidRequest
from shared.packages import environments
from shared.packages.environments import package_rules, prepare, target_python
from shared.process.settings import Settings, wrong_values


def test_a_folder_is_made_for_its_user(tmp_path: Path) -> None:
    prepare(tmp_path / "cache" / "packages", for_other_user=False)
    assert (tmp_path / "cache" / "packages").stat().st_mode & 0o066 == 0


def test_a_folder_that_others_may_write_in_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(InvalidRequest, match=f"HOLDFAST_PACKAGE_DIR: others may write in {tmp_path}: chmod go-w"):
        prepare(tmp_path, for_other_user=False)


def test_a_folder_that_the_tools_user_cannot_reach_is_refused(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    prepare(closed / "packages", for_other_user=False)
    (closed / "packages").chmod(0o711)
    with pytest.raises(InvalidRequest, match=f"cannot reach {closed / 'packages'}, because {closed} is closed to it"):
        prepare(closed / "packages", for_other_user=True)


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequest, match="HOLDFAST_PACKAGE_DIR"):
        prepare(tmp_path / "file" / "packages", for_other_user=False)


def test_a_machine_without_the_installer_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_name: str, path: str = "") -> None:
        return None

    monkeypatch.setattr(shutil, "which", nothing)
    with pytest.raises(InvalidRequest, match=r"HOLDFAST_PACKAGE_INDEX: .* pip install uv"):
        environments.installer()


def test_a_python_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="HOLDFAST_TOOL_PYTHON: /nowhere/python cannot be asked"):
        target_python("/nowhere/python")


def test_an_interpreter_is_asked_for_what_packages_depend_on() -> None:
    """By its path or as this process's own, it is the same one."""
    by_link = Path(sys.executable).with_name("python")
    assert target_python(str(by_link)).tag == target_python("").tag
    assert sys.implementation.cache_tag in target_python("").tag


@pytest.mark.parametrize("url", ["simple", "file:///srv/wheels", "https://", "ftp://host/simple", "https://host/s?x=1"])
def test_an_index_that_is_no_url_of_one_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Settings(package_index=SecretStr(url))
    [line] = wrong_values(refused.value)
    assert line.startswith("HOLDFAST_PACKAGE_INDEX: it should be the URL of a package index, as https://packages.")


def test_an_index_is_not_shown_by_the_settings() -> None:
    settings = Settings(package_index=SecretStr("https://somebody:hidden@host/simple"))
    assert "hidden" not in repr(settings)
    assert package_rules(settings).index == "https://somebody:hidden@host/simple"
