"""docker-compose.init.sh makes passwords and keys once, and never loses one that is there."""

import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from api.access.callers import ConfiguredKeys
from shared.secret_keys import SecretKeys, new_key
from tests.kit.project.source_tree import ROOT


class Deployment:
    """A folder with the script in it, as a checkout has it."""

    def __init__(self, folder: Path) -> None:
        shutil.copy(ROOT / "docker-compose.init.sh", folder)
        self.variables = folder / ".env"
        self.api_keys = folder / "secrets/api_keys"
        self.encryption_key = folder / "secrets/encryption_key"
        self._folder = folder

    def make(self) -> None:
        command = ["sh", str(self._folder / "docker-compose.init.sh")]
        subprocess.run(command, cwd="/", check=True, timeout=60, capture_output=True)

    def settings(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.variables.read_text().splitlines())

    def files(self) -> dict[str, str]:
        return {str(path): path.read_text() for path in self._folder.rglob("*") if path.is_file()}


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path)


def test_what_is_made_is_what_the_servers_read(deployment: Deployment) -> None:
    deployment.make()
    passwords = deployment.settings()
    assert set(passwords) == {"POSTGRES_PASSWORD", "POSTGRES_SERVER_PASSWORD"}
    assert all(len(password) == 48 and password.isalnum() for password in passwords.values())
    assert len(set(passwords.values())) == 2
    keys = ConfiguredKeys.parse("", str(deployment.api_keys))
    assert keys
    assert keys.warnings() == []
    assert SecretKeys.parse(deployment.encryption_key.read_text(), "a test").current == "k1"


def test_others_on_the_machine_read_none_of_it(deployment: Deployment) -> None:
    deployment.make()
    assert stat.S_IMODE(deployment.variables.stat().st_mode) == 0o600
    assert stat.S_IMODE(deployment.api_keys.parent.stat().st_mode) == 0o700
    # The user of the container reads them behind a mount of each file.
    assert {stat.S_IMODE(path.stat().st_mode) for path in deployment.api_keys.parent.iterdir()} == {0o644}


def test_a_second_run_changed_a_password(deployment: Deployment) -> None:
    deployment.make()
    made = deployment.files()
    deployment.make()
    assert deployment.files() == made


def test_two_deployments_had_the_same_password(tmp_path: Path) -> None:
    made: list[dict[str, str]] = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        deployment = Deployment(tmp_path / name)
        deployment.make()
        made.append(deployment.settings() | {"api_keys": deployment.api_keys.read_text()})
    assert not set(made[0].values()) & set(made[1].values())


@pytest.mark.parametrize("quote", ["", '"', "'"])
@pytest.mark.parametrize("end", ["\n", ""])
def test_the_keys_that_an_operator_had_written_were_lost(deployment: Deployment, quote: str, end: str) -> None:
    """They were in `.env`. Without the second one the secrets of all agents cannot be read."""
    encrypting = f"{new_key()},old:{new_key().partition(':')[2]}"
    deployment.variables.write_text(
        f"HOLDFAST_API_KEYS={quote}default={'a' * 24},team={'b' * 24}{quote}\n"
        f"HOLDFAST_ENCRYPTION_KEY={quote}{encrypting}{quote}\n"
        f"HOLDFAST_LOG_LEVEL=DEBUG{end}"
    )
    deployment.make()
    assert deployment.api_keys.read_text() == f"default={'a' * 24}\nteam={'b' * 24}\n"
    assert deployment.encryption_key.read_text().split() == encrypting.split(",")
    settings = deployment.settings()
    assert settings.pop("HOLDFAST_LOG_LEVEL") == "DEBUG"
    assert set(settings) == {"POSTGRES_PASSWORD", "POSTGRES_SERVER_PASSWORD"}


def test_a_key_that_was_added_later_is_left_for_the_server_to_judge(deployment: Deployment) -> None:
    """The script moves what has no file yet. It never guesses which of two keys is the right one."""
    deployment.make()
    kept = deployment.encryption_key.read_text()
    with deployment.variables.open("a") as file:
        file.write(f"HOLDFAST_ENCRYPTION_KEY={new_key()}\n")
    deployment.make()
    assert deployment.encryption_key.read_text() == kept
    assert "HOLDFAST_ENCRYPTION_KEY" in deployment.settings()
