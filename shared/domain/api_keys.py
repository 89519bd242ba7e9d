"""API keys that are stored: what a secret looks like, what its key may do, and when it ends.

A secret is 256 random bits, which an attacker cannot guess, so its plain SHA-256 is as safe as a slow hash. Only the
hash is stored. A checksum tells a mistyped or cut-off secret from an unknown one without a look-up, and scanners for
leaked secrets recognise the prefix.
"""

import hashlib
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

import msgspec

from shared.domain.errors import InvalidRequest
from shared.domain.ids import AgentId, KeyId, ProjectId, is_id

PREFIX = "holdfast_"
SECRET_BYTES = 32
SHOWN = len(PREFIX) + 4
"""Characters of a secret that people see and recognise it by: 24 of its 256 bits."""

DEFAULT_GRACE_S = 24 * 3600
LONGEST_GRACE_S = 30 * 24 * 3600
"""The most seconds for which a rotated key's old secret stays valid."""

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_BODY = 43
"""Digits for 256 bits."""
_CHECK = 6
"""Digits that a CRC-32 needs."""


class Secret(NamedTuple):
    """A new secret. `text` is shown once; the other fields are stored."""

    text: str
    digest: str
    prefix: str


def new_secret(random: bytes) -> Secret:
    """The secret of `SECRET_BYTES` random bytes."""
    body = _written(int.from_bytes(random), _BODY)
    text = f"{PREFIX}{body}{_checksum(body)}"
    return Secret(text, digest_of(text.encode()), text[:SHOWN])


def digest_of(secret: bytes) -> str:
    """The digest that is stored instead of a secret."""
    return hashlib.sha256(secret).hexdigest()


def is_well_formed(secret: bytes) -> bool:
    """Whether the text has the form of a secret."""
    text = secret.decode("latin-1")
    body = text[len(PREFIX) : len(PREFIX) + _BODY]
    return text == f"{PREFIX}{body}{_checksum(body)}" and len(body) == _BODY


def _checksum(body: str) -> str:
    return _written(zlib.crc32(body.encode("latin-1")), _CHECK)


def _written(number: int, length: int) -> str:
    digits: list[str] = []
    for _ in range(length):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))


class Level(StrEnum):
    """A level of access. Each level includes those before it."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


_ORDER = list(Level)
_AGENT = "agent"

MOST_AGENTS = 100
"""The most agents of one key."""


@dataclass(frozen=True)
class Scopes:
    """A key's level of access and its agents. Without agents: all agents of its project."""

    level: Level
    agents: frozenset[AgentId] = frozenset()

    @classmethod
    def parse(cls, texts: Collection[str]) -> "Scopes":
        """Reads `admin`, `write`, `read` and `agent:<id>`. Raises `InvalidRequest`."""
        levels = [level for level in _ORDER if level in texts]
        agents: list[AgentId] = []
        for text in texts:
            noun, _, agent = text.partition(":")
            if noun == _AGENT and is_id(agent, _AGENT):
                agents.append(AgentId(agent))
            elif text not in _ORDER:
                raise InvalidRequest(f"unknown scope {text[:100]!r}: there are admin, write, read and agent:<agent id>")
        if not levels:
            raise InvalidRequest("scopes must name read, write or admin; agent:<agent id> narrows read or write")
        if agents and levels[-1] is Level.ADMIN:
            raise InvalidRequest("a key of single agents has the scope read or write, never admin")
        if len(agents) > MOST_AGENTS:
            raise InvalidRequest(f"a key may name {MOST_AGENTS} agents")
        return cls(levels[-1], frozenset(agents))

    def texts(self) -> list[str]:
        """The scopes as they are stored and shown."""
        return [self.level.value, *sorted(f"{_AGENT}:{agent}" for agent in self.agents)]

    def include(self, needed: Level) -> bool:
        """Whether the key's level includes `needed`."""
        return _ORDER.index(self.level) >= _ORDER.index(needed)


EVERYTHING = Scopes(Level.ADMIN)


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A stored key, without its secret."""

    id: KeyId
    project_id: ProjectId
    name: str
    scopes: Sequence[str]
    prefix: str
    """The beginning of its newest secret."""
    created_at: datetime
    created_by: str
    """The id of the key that created it, or another name of its creator."""
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    rotated_at: datetime | None = None
    revoked_at: datetime | None = None

    def is_valid(self, now: datetime) -> bool:
        """Whether the key still authenticates."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


MOST_NAME = 200


def check_new_key(name: str, expires_at: datetime | None, now: datetime) -> None:
    """Raises `InvalidRequest` for an invalid name, and for an expiry in the past."""
    if not name.strip() or len(name) > MOST_NAME or not name.isprintable():
        raise InvalidRequest(f"a key needs a name of up to {MOST_NAME} printable characters: say who will use it")
    if expires_at is not None and expires_at <= now:
        raise InvalidRequest("expires_at is in the past")
