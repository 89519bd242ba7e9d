"""Callers: a bearer key stands for a project, and a request sees that project's data alone.

This module has the keys that the operator configures, in the environment or in a file. `accepted_keys.py` has those in
the database.
"""

import hashlib
import hmac
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any

from shared.domain.api_keys import EVERYTHING, Level, Scopes
from shared.domain.errors import InvalidRequest
from shared.domain.ids import ProjectId, ThreadId

DEFAULT_PROJECT = ProjectId("default")
ANYBODY = "anybody"
"""The id and name of the key of callers who need none."""

_SALT_OF_IDS = b"holdfast ids of configured keys"
_COST = 2**14
"""scrypt's cost: some 50 ms and 16 MiB for each configured key, once, when a process starts."""

ENOUGH = 20
"""Characters from which a configured key cannot be guessed. Shorter ones are accepted with a warning."""


@dataclass(frozen=True)
class Caller:
    """The sender of a request: a project, and one of its keys. The key's id is not secret, and is the same in every
    process."""

    project_id: ProjectId
    key_id: str
    scopes: Scopes
    key_name: str = ""
    thread_id: ThreadId | None = None
    """The only thread that the caller may see, which is then a page with a token of this key."""


def may_see_secrets(caller: Caller) -> bool:
    """Returns whether this caller may see the values of agents' secrets: administrators may, and so may everybody on a
    server without keys, which only its own machine reaches."""
    return caller.scopes.level is Level.ADMIN


def may_see_instructions(caller: Caller) -> bool:
    """Returns whether this caller may see an agent's instructions and its tools' source. A key of single agents may
    not, because it is for strangers."""
    return not caller.scopes.agents


EVERYBODY = Caller(DEFAULT_PROJECT, ANYBODY, EVERYTHING, ANYBODY)
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
        # It always compares every key, so that the time reveals nothing.
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
        # Two empty variables make such a list: `$KEY_A,$KEY_B`. Its author does not want a server without keys.
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
    """Returns the key's id, the same in every process. Audit log, budgets and stream tokens show it to people who must
    not learn the key. It is made with scrypt, so that guessing a short key from its id is expensive."""
    made = hashlib.scrypt(secret, salt=_SALT_OF_IDS, n=_COST, r=8, p=1, dklen=8)
    return f"configured-{made.hex()}"


Network = IPv4Network | IPv6Network


def networks_of(text: str) -> list[Network]:
    """Parses a comma-separated list of addresses and CIDRs. Raises `ValueError`."""
    return [ip_network(part, strict=False) for part in text.replace(",", " ").split()]


def client_address(scope: Mapping[str, Any], trusted: Sequence[Network]) -> str:
    """Returns the client's address: the connection's, or the one that a trusted proxy reports.

    `X-Forwarded-For` is read from its end, where the nearest proxy wrote. The first address that is not a trusted
    proxy's is the client's; anybody may have written the addresses before it.
    """
    client = scope.get("client")
    address: str = client[0] if client else ""
    if not trusted or not _is_among(address, trusted):
        return address
    said = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
    for part in reversed(",".join(said).split(",")):
        forwarded = part.strip()
        if not _is_address(forwarded):
            return address
        address = forwarded
        if not _is_among(address, trusted):
            return address
    return address


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _is_among(text: str, networks: Sequence[Network]) -> bool:
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks if network.version == address.version)


# The second wall between projects. Routes and services name the project in their queries. Independently of that, the
# stores' database asks here, at each use, for the project of the request's key. Work outside of requests has no project
# and is refused; work of the API for all projects uses another database object.


NOBODYS = "\x1f"
"""The tenant of a request whose key may see nothing. No project has this name; an empty name means all projects."""

_PROJECT: ContextVar[ProjectId | None] = ContextVar("project of the request", default=None)


def project_of_request() -> str:
    """Returns the project for which the current task acts. Raises `LookupError` if it acts for none."""
    project_id = _PROJECT.get()
    if project_id is None:
        raise LookupError("this task acts for no project: it is outside of a request, or before authentication")
    return project_id or NOBODYS


def act_for(project_id: ProjectId | None) -> Token[ProjectId | None]:
    """Makes the current task act for a project, or for none. `ContextVar.reset` with the token undoes it."""
    return _PROJECT.set(project_id)


@contextmanager
def acting_for(project_id: ProjectId | None) -> Generator[None]:
    """Applies `act_for` to a block."""
    before = act_for(project_id)
    try:
        yield
    finally:
        _PROJECT.reset(before)
