"""Who asks: a bearer key stands for a project. Everything that a request may see is filtered by that project.

Here are the keys that the operator configures, in the environment or in a file. Those in the database are
`accepted_keys.py`'s.
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
from shared.domain.ids import ProjectId

DEFAULT_PROJECT = ProjectId("default")
ANYBODY = "anybody"
"""The key of those who need none."""

_SALT_OF_IDS = b"holdfast ids of configured keys"
_COST = 2**14
"""Of scrypt: some 50 ms and 16 MiB for each configured key, once, as a process starts."""

ENOUGH = 20
"""Characters of a configured key that nobody guesses. Shorter ones are taken, with a warning."""


@dataclass(frozen=True)
class Caller:
    """Who sends a request: a project, and which of its keys. The key's id is no secret, and is the same in every
    process."""

    project_id: ProjectId
    key_id: str
    scopes: Scopes
    key_name: str = ""


def may_see_secrets(caller: Caller) -> bool:
    """Whether the values of agents' secrets are shown to this caller: to administrators, and to everybody where no key
    is asked for, which is on one's own machine."""
    return caller.scopes.level is Level.ADMIN


def may_see_instructions(caller: Caller) -> bool:
    """Whether this caller is shown what the project has written into an agent: its instructions, and its tools' source.
    A key of single agents is not: it is for strangers."""
    return not caller.scopes.agents


EVERYBODY = Caller(DEFAULT_PROJECT, ANYBODY, EVERYTHING, ANYBODY)
"""The caller of a server that asks for no key."""


@dataclass(frozen=True)
class ConfiguredKey:
    """A key of the operator's, and where it stands: the setting, and the entry or the line."""

    secret: bytes
    caller: Caller
    place: str

    @property
    def is_guessable(self) -> bool:
        """Whether somebody may find the key by trying."""
        return len(self.secret) < ENOUGH


class ConfiguredKeys:
    """The keys in the environment and in the file. They may do everything in their project, and never expire."""

    def __init__(self, keys: Iterable[ConfiguredKey] = ()) -> None:
        self._keys = list(keys)
        places: dict[bytes, str] = {}
        for key in self._keys:
            if key.secret in places:
                raise InvalidRequest(f"{key.place}: this key is there twice, see {places[key.secret]}")
            places[key.secret] = key.place

    @classmethod
    def parse(cls, text: str, file: str = "") -> "ConfiguredKeys":
        """Reads `project=key,project=key`, and the lines of a file if there is one. A project may have several keys.

        Raises `InvalidRequest`, which names an entry or a line and never shows it.
        """
        return cls([*_of_list(text), *(_of_file(Path(file)) if file else ())])

    def __bool__(self) -> bool:
        return bool(self._keys)

    def find(self, secret: bytes) -> ConfiguredKey | None:
        """The key that was sent."""
        found = None
        # Every key is compared, whichever is right: the time that it takes tells nothing.
        for key in self._keys:
            if hmac.compare_digest(key.secret, secret):
                found = key
        return found

    def of_id(self, key_id: str) -> ConfiguredKey | None:
        """The key of this id."""
        return next((key for key in self._keys if key.caller.key_id == key_id), None)

    def warnings(self) -> list[str]:
        """What the operator should know at every start."""
        return [
            f"{key.place}: the key has {len(key.secret)} characters and may be guessed; take {ENOUGH} or more, for "
            "example from `openssl rand -hex 24`"
            for key in self._keys
            if key.is_guessable
        ]


def _of_list(text: str) -> list[ConfiguredKey]:
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    if text and not entries:
        # Two empty variables make such a list, `$KEY_A,$KEY_B`. Its author does not want a server without keys.
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
    # The entry itself is a secret: the message names its place.
    if not project or not key:
        raise InvalidRequest(f"{place}: write it as project=key")
    if not key.isascii() or not key.isprintable():
        # A header is bytes, and clients disagree about those of other characters.
        raise InvalidRequest(f"{place}: the key has a character that clients cannot send; take letters and digits")
    secret = key.encode()
    return ConfiguredKey(secret, Caller(ProjectId(project), _id_of(secret), EVERYTHING, place), place)


def _id_of(secret: bytes) -> str:
    """The key's id, the same in every process. Audit log, budgets and stream tokens name the key by it, so those see it
    who may not know the key. Finding a short key by its id costs as much for each try as making the id."""
    made = hashlib.scrypt(secret, salt=_SALT_OF_IDS, n=_COST, r=8, p=1, dklen=8)
    return f"configured-{made.hex()}"


# Where a request comes from: the connection's address, or what a proxy that the operator trusts says of it.


Network = IPv4Network | IPv6Network


def networks_of(text: str) -> list[Network]:
    """Reads a comma list of addresses and CIDRs. Raises `ValueError`."""
    return [ip_network(part, strict=False) for part in text.replace(",", " ").split()]


def client_address(scope: Mapping[str, Any], trusted: Sequence[Network]) -> str:
    """The address of whoever sends the request.

    `X-Forwarded-For` is read from its end, where the nearest proxy wrote: the first address that is no trusted proxy's
    is the client's. What stands before it, anybody may have written.
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


# Whose rows a request may see, below everything that its route asks for.
#
# Routes and services name the project in what they ask of the stores. This is the wall behind: the stores' database
# asks here, at each use, for whom the request acts, as its key has said, whatever the route has asked for. Work that is
# no request's has no project, and is refused: what the API does for all projects together, it does on a database of its
# own.


NOBODYS = "\x1f"
"""For a request of which its key may see nothing. No project has this name; an empty one would mean everybody's."""

_PROJECT: ContextVar[ProjectId | None] = ContextVar("project of the request", default=None)


def project_of_request() -> str:
    """The project for which the present task acts. Raises `LookupError` when it acts for none."""
    project_id = _PROJECT.get()
    if project_id is None:
        raise LookupError("no caller's project is known here: this is outside of a request, or before its key was read")
    return project_id or NOBODYS


def act_for(project_id: ProjectId | None) -> Token[ProjectId | None]:
    """Lets what follows in this task act for a project, or for none. With the token, `ContextVar.reset` undoes it."""
    return _PROJECT.set(project_id)


@contextmanager
def acting_for(project_id: ProjectId | None) -> Generator[None]:
    """`act_for` for the length of the block."""
    before = act_for(project_id)
    try:
        yield
    finally:
        _PROJECT.reset(before)
