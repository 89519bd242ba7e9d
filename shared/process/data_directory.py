"""The directory of `holdfast dev`: one process at a time uses it, and only its user can read it.

It contains a database with messages and secrets, and the key that encrypts the secrets. So new files are private to the
user, whatever the umask is, and existing files that other users could read are made private.

The embedded Redis lives in its process, so a lock on the directory keeps a second process out: it would not see the
first one's data.
"""

import fcntl
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import structlog

from shared.domain.errors import Conflict, InvalidRequest
from shared.process.settings import Settings
from shared.secret_keys import SecretKeys, new_key

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

DATABASE, LOCK, KEYS, NEW_KEYS = "holdfast.db", "lock", "encryption.key", "encryption.new"
_OURS = frozenset({DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", f"{DATABASE}-journal", LOCK, KEYS, NEW_KEYS})

OWNER_ONLY_FILE, OWNER_ONLY_FOLDER = 0o600, 0o700


@contextmanager
def only_process(data_dir: Path) -> Generator[None]:
    """Locks the directory for the block and makes it private to the user. Raises `Conflict` if another process has it,
    and `InvalidRequest` if it is not writable."""
    with _lock_of(data_dir) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Conflict(
                f"another holdfast dev uses {data_dir}: the embedded Redis lives in one process only. Stop it, choose "
                "another --data-dir, or run holdfast api and holdfast worker with a Redis"
            ) from error
        yield


def _lock_of(data_dir: Path) -> TextIO:
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=OWNER_ONLY_FOLDER)
        _make_private(data_dir)
        return _private_file(data_dir / LOCK)
    except OSError as error:
        raise InvalidRequest(
            f"{data_dir} (--data-dir, HOLDFAST_DATA_DIR) cannot be written: {error.strerror}; choose another folder"
        ) from error


def keys_of(settings: Settings) -> SecretKeys:
    """The keys for agents' secrets in the settings. Raises `InvalidRequest`."""
    given = settings.encryption_key.get_secret_value()
    path = settings.encryption_key_file
    if not path:
        return SecretKeys.parse(given, "HOLDFAST_ENCRYPTION_KEY")
    if given:
        raise InvalidRequest("HOLDFAST_ENCRYPTION_KEY and HOLDFAST_ENCRYPTION_KEY_FILE are both set: unset one of them")
    return _keys_in(Path(path), "HOLDFAST_ENCRYPTION_KEY_FILE")


def own_keys(settings: Settings) -> SecretKeys:
    """The keys for agents' secrets on one machine: those of the settings, or a key that is generated once and stored in
    the directory. The caller must hold the directory's lock. Raises `InvalidRequest`."""
    if configured := keys_of(settings):
        return configured
    path = settings.data_dir / KEYS
    if not path.exists():
        # Written completely before it is renamed: a truncated key would make every secret unreadable.
        making = settings.data_dir / NEW_KEYS
        with _private_file(making) as file:
            file.write(f"{new_key()}\n")
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        making.replace(path)
    os.close(_open_private(path))
    return _keys_in(path, str(path))


def _keys_in(path: Path, source: str) -> SecretKeys:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InvalidRequest(f"{source}: cannot read {path}: {reason}") from error
    keys = SecretKeys.parse(text, source)
    if not keys:
        raise InvalidRequest(f"{source}: no key is in {path}: `holdfast secrets generate-key` prints one")
    return keys


def _make_private(data_dir: Path) -> None:
    """Makes the directory and our files in it private. A directory with other files may be shared on purpose, like the
    user's home, so it stays unchanged."""
    names = {entry.name for entry in data_dir.iterdir()}
    with suppress(PermissionError):  # another user owns it and decides who may read it
        for name in names & _OURS:
            (data_dir / name).chmod(OWNER_ONLY_FILE)
        if names <= _OURS:
            data_dir.chmod(OWNER_ONLY_FOLDER)
        elif stat.S_IMODE(data_dir.stat().st_mode) & 0o077:
            log.warning("data_directory_left_open", directory=str(data_dir), because="other things lie in it")


def _open_private(path: Path) -> int:
    """A descriptor of the file, which is created if it is missing. Only its user can read it, whatever the umask is."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY_FILE)
    with suppress(PermissionError):
        os.fchmod(descriptor, OWNER_ONLY_FILE)
    return descriptor


def _private_file(path: Path) -> TextIO:
    return os.fdopen(_open_private(path), "r+")
