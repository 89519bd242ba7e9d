"""Callers: a bearer key stands for a project, and a request sees only that project's data.

This module reads the keys that the operator configures, in the environment or in a file. `accepted_keys.py` reads the
keys in the database.
"""

import hashlib
import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from shared.domain.api_keys import EVERYTHING, Level, Scopes
from shared.domain.errors import InvalidRequest
from shared.domain.ids import ProjectId, ThreadId

DEFAULT_PROJECT = ProjectId("default")
ANYBODY = "anybody"
"""The id and name of the key that callers without a key get."""

_SALT_OF_IDS = b"holdfast ids of configured keys"
_COST = 2**14
"""scrypt's cost: some 50 ms and 16 MiB for each configured key, once, when a process starts."""

ENOUGH = 20
"""A configured key with at least this many characters cannot be guessed. Shorter keys get a warning."""


class Credential(NamedTuple):
    """The key that identified a caller, by which `AcceptedKeys` can check whether it is still valid."""

    key_id: str
    proof: str | bytes
    """For a stored key the digest of its secret; for a token the secret that signed it. Empty for configured keys."""


@dataclass(frozen=True)
class Caller:
    """The sender of a request: a project, and one of its keys. The key's id is not secret, and is the same in every
    process."""

    project_id: ProjectId
    key_id: str
    scopes: Scopes
    key_name: str = ""
    thread_id: ThreadId | None = None
    """The only thread that the caller may see, if it is a page with a token of this key."""
    proof: str | bytes = field(default="", repr=False)
    """See `Credential`."""


def may_see_secrets(caller: Caller) -> bool:
    """Returns whether this caller may see the values of agents' secrets: administrators may, and so may all callers of
    a server without keys, which only its own machine reaches."""
    return caller.scopes.level is Level.ADMIN


def may_see_instructions(caller: Caller) -> bool:
    """Returns whether this caller may see an agent's instructions and its tools' source. A key of single agents may
    not, because it is for strangers."""
    return not caller.scopes.agents


ANONYMOUS = Caller(DEFAULT_PROJECT, ANYBODY, EVERYTHING, ANYBODY)
"""The caller of a server without keys."""


@dataclass(frozen=True)
class ConfiguredKey:
    """A key that the operator configured, and its place: the setting, and the entry or the line."""

    secret: bytes
    caller: Caller
    place: str

    @property
    def is_guessable(self) -> bool:
        """Whether an attacker could guess the key."""
        return len(self.secret) < ENOUGH


class ConfiguredKeys:
    """The keys in the environment and in the file. They permit everything in their project, and never expire."""

    def __init__(self, keys: Iterable[ConfiguredKey] = ()) -> None:
        self._keys = list(keys)
        places: dict[bytes, str] = {}
        for key in self._keys:
            if key.secret in places:
                raise InvalidRequest(f"{key.place}: {places[key.secret]} has the same key; remove one")
            places[key.secret] = key.place

    @classmethod
    def parse(cls, text: str, file: str = "") -> "ConfiguredKeys":
        """Parses `project=key,project=key`, and the lines of a file if one is given. A project may have several keys.

        Raises `InvalidRequest`, which names the entry or line but never shows it.
        """
        return cls([*_of_list(text), *(_of_file(Path(file)) if file else ())])

    def __bool__(self) -> bool:
        return bool(self._keys)

    def find(self, secret: bytes) -> ConfiguredKey | None:
        """Returns the key with this secret."""
        found = None
        # It always compares all keys, so that the time reveals nothing.
        for key in self._keys:
            if hmac.compare_digest(key.secret, secret):
                found = key
        return found

    def of_id(self, key_id: str) -> ConfiguredKey | None:
        """Returns the key with this id."""
        return next((key for key in self._keys if key.caller.key_id == key_id), None)

    def warnings(self) -> list[str]:
        """Returns a warning for each key that can be guessed. Processes log them at every start."""
        return [
            f"{key.place}: the key has {len(key.secret)} characters and may be guessed; use {ENOUGH} or more, for "
            "example from `openssl rand -hex 24`"
            for key in self._keys
            if key.is_guessable
        ]


def _of_list(text: str) -> list[ConfiguredKey]:
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    if text and not entries:
        # Two empty variables make such a list: `$KEY_A,$KEY_B`. The operator does not want a server without keys.
        raise InvalidRequest("HOLDFAST_API_KEYS is set, but no key is in it: write it as project=key")
    return [_key_of(entry, f"HOLDFAST_API_KEYS, entry {number}") for number, entry in enumerate(entries, start=1)]


def _of_file(path: Path) -> Iterator[ConfiguredKey]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidRequest(f"HOLDFAST_API_KEYS_FILE: {path} cannot be read: {reason}") from error
    is_empty = True
    for number, line in enumerate(lines, start=1):
        entry = line.strip()
        if entry and not entry.startswith("#"):
            is_empty = False
            yield _key_of(entry, f"HOLDFAST_API_KEYS_FILE, line {number}")
    if is_empty:
        raise InvalidRequest(f"HOLDFAST_API_KEYS_FILE is set, but no key is in {path}: write one project=key per line")


def _key_of(entry: str, place: str) -> ConfiguredKey:
    project, key = (part.strip() for part in entry.partition("=")[::2])
    # The entry is a secret, so the message names its place instead.
    if not project or not key:
        raise InvalidRequest(f"{place}: write it as project=key")
    if not key.isascii() or not key.isprintable():
        # Clients encode other characters in headers in different ways.
        raise InvalidRequest(f"{place}: the key has a character that clients cannot send; use letters and digits")
    secret = key.encode()
    return ConfiguredKey(secret, Caller(ProjectId(project), _id_of(secret), EVERYTHING, place), place)


def _id_of(secret: bytes) -> str:
    """Returns the key's id, equal in every process. Audit log, budgets and stream tokens show the id to people who must
    not learn the key. scrypt makes it expensive to guess a short key from its id."""
    made = hashlib.scrypt(secret, salt=_SALT_OF_IDS, n=_COST, r=8, p=1, dklen=8)
    return f"configured-{made.hex()}"
