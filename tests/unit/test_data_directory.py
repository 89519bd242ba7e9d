"""The directory of `holdfast dev` is its user's alone."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from pydantic import SecretStr

from shared.domain.errors import Conflict, InvalidRequest
from shared.process.data_directory import DATABASE, KEYS, keys_of, only_process, own_keys
from shared.process.settings import Settings
from shared.secret_keys import new_key
from shared.sql.engine import Database


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    """The most open one that a user can have."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(directory: Path) -> dict[str, str]:
    found = {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in directory.iterdir()}
    return found | {".": oct(stat.S_IMODE(directory.stat().st_mode))}


async def written_database(path: Path) -> Database:
    """A database that is open, so that the files beside it are there."""
    database = Database(f"sqlite:///{path}")
    async with database.write() as connection:
        await connection.execute(sa.text("CREATE TABLE IF NOT EXISTS t (x)"))
    return database


async def test_everybody_on_the_machine_could_read_the_database_of_dev(tmp_path: Path) -> None:
    """Finding M9 of the security audit: the directory was 0755, the database 0644."""
    directory = tmp_path / "data"
    settings = Settings(data_dir=directory)
    with only_process(directory):
        own_keys(settings)
        database = await written_database(directory / DATABASE)
        assert modes(directory) == {
            ".": "0o700",
            "lock": "0o600",
            "encryption.key": "0o600",
            "holdfast.db": "0o600",
            "holdfast.db-wal": "0o600",
            "holdfast.db-shm": "0o600",
        }
        await database.aclose()


async def test_a_directory_that_others_could_read_is_closed(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir(mode=0o755)
    for name in (DATABASE, "holdfast.db-wal", "lock"):
        (directory / name).touch(mode=0o644)
    with only_process(directory):
        assert modes(directory) == {".": "0o700", "lock": "0o600", "holdfast.db": "0o600", "holdfast.db-wal": "0o600"}


@pytest.fixture
def shared_directory(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    (tmp_path / "notes.txt").touch(mode=0o644)
    return tmp_path


async def test_a_directory_with_other_things_in_it_stays_open_and_our_files_do_not(shared_directory: Path) -> None:
    tmp_path = shared_directory
    with only_process(tmp_path):
        database = await written_database(tmp_path / DATABASE)
        found = modes(tmp_path)
        await database.aclose()
    assert (found["."], found["notes.txt"], found[DATABASE]) == ("0o755", "0o644", "0o600")


async def test_a_database_of_production_on_sqlite_is_its_users_alone(tmp_path: Path) -> None:
    database = await written_database(tmp_path / "made" / "here.db")
    assert set(modes(tmp_path / "made").values()) == {"0o700", "0o600"}
    await database.aclose()


async def test_an_operators_choice_for_a_database_that_is_there_holds(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    path.touch(mode=0o640)
    database = await written_database(path)
    assert modes(tmp_path)["shared.db"] == "0o640"
    await database.aclose()


def test_one_process_at_a_time_has_it(tmp_path: Path) -> None:
    with only_process(tmp_path), pytest.raises(Conflict, match="another holdfast dev"), only_process(tmp_path):
        pass


def test_the_key_of_dev_is_made_once_and_kept(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    first = own_keys(settings).current
    assert first
    assert own_keys(settings).current == first
    assert (tmp_path / KEYS).read_text().startswith(f"{first}:")
    assert {path.name for path in tmp_path.iterdir()} == {KEYS}
    chosen = Settings(data_dir=tmp_path, encryption_key=SecretStr(new_key()))
    assert own_keys(chosen).current == chosen.encryption_key.get_secret_value().partition(":")[0]


def test_a_key_of_dev_that_is_damaged_is_not_replaced(tmp_path: Path) -> None:
    """A new one would make every secret unreadable without a word."""
    (tmp_path / KEYS).write_text("")
    with pytest.raises(InvalidRequest, match=r"encryption.key: no key is in"):
        own_keys(Settings(data_dir=tmp_path))


def test_the_keys_may_lie_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    one, two = new_key(), new_key()
    file.write_text(f"{one}\n{two}\n")
    assert keys_of(Settings(encryption_key_file=str(file))).current == one.partition(":")[0]
    with pytest.raises(InvalidRequest, match="are both set"):
        keys_of(Settings(encryption_key_file=str(file), encryption_key=SecretStr(one)))
    with pytest.raises(InvalidRequest, match=r"HOLDFAST_ENCRYPTION_KEY_FILE: cannot read .*: No such file"):
        keys_of(Settings(encryption_key_file=str(tmp_path / "nowhere")))
    assert not keys_of(Settings())
