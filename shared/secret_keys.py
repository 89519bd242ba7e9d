"""Encrypts stored secrets of agents, webhook endpoints and MCP servers: AES-256-GCM, bound to the owner's id and the
secret's name.

A value that is copied to another owner or another name cannot be decrypted there. A stored text names its key, so
several keys can be in use during a rotation. A reader of the database, or of a dump, learns no secret, but sees the
names and the lengths of values.
"""

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from shared.domain.agents import SEALED, is_sealed
from shared.domain.errors import InvalidRequest, UnreadableSecret

PLAIN = ""
"""The key id of values that are not encrypted."""

_FORMAT = "1"
_KEY_BYTES = 32
_NONCE_BYTES = 12
_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class StoredSecrets(NamedTuple):
    """The secrets of one owner as they are stored: of an agent, a webhook endpoint, or an MCP server."""

    number: int
    """Owners of one kind are numbered in the order of their creation."""
    owner_id: str
    secrets: dict[str, str]
    text: str = ""
    """The text of the row that contains the secrets, if they are a part of one."""
    project_id: str = ""


class SecretKeys:
    """The keys by id, each of 32 bytes. The first one encrypts, and all of them decrypt. Without keys, values are
    stored unencrypted."""

    def __init__(self, keys: Mapping[str, bytes], random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self._random_bytes = random_bytes
        self.fingerprints = [_fingerprint(key_id, key) for key_id, key in keys.items()]
        """Processes compare their keys by these, the encrypting key first. A fingerprint of a random key of 32 bytes
        reveals nothing about it."""
        self.current = next(iter(keys), PLAIN)
        """The id of the key that encrypts."""

    @classmethod
    def parse(cls, text: str, source: str) -> "SecretKeys":
        """Parses `id:base64,id:base64`; lines may replace commas. Raises `InvalidRequest`, which names `source` and the
        entry's place in it, and no key."""
        keys: dict[str, bytes] = {}
        entries = [entry for entry in re.split(r"[,\s]+", text) if entry]
        if text and not entries:
            raise InvalidRequest(f"{source} is set, but no key is in it: `holdfast secrets generate-key` prints one")
        for position, entry in enumerate(entries, start=1):
            key_id, _, encoded = entry.partition(":")
            key = _decoded(encoded)
            if _KEY_ID.fullmatch(key_id) is None or len(key) != _KEY_BYTES:
                raise InvalidRequest(
                    f"{source}, entry {position}: write it as id:key, with base64 of 32 bytes as the key; "
                    "`holdfast secrets generate-key` prints one"
                )
            if key_id in keys:
                raise InvalidRequest(f"{source}, entry {position}: the key id {key_id!r} is there twice")
            keys[key_id] = key
        return cls(keys)

    def __bool__(self) -> bool:
        return bool(self._ciphers)

    def has(self, key_id: str) -> bool:
        """Whether there is a key with this id."""
        return key_id in self._ciphers

    def seal(self, owner_id: str, name: str, value: str) -> str:
        """The stored form of a value. An encrypted or empty value stays unchanged."""
        if not self or not value or is_sealed(value):
            return value
        nonce = self._random_bytes(_NONCE_BYTES)
        bound = _bound_to(self.current, owner_id, name)
        sealed = self._ciphers[self.current].encrypt(nonce, value.encode(), bound)
        return f"{SEALED}{_FORMAT}:{self.current}:{base64.b64encode(nonce + sealed).decode()}"

    def open(self, owner_id: str, name: str, stored: str) -> str:
        """The value of a stored text. Raises `UnreadableSecret`."""
        if not is_sealed(stored):
            return stored
        key_id = key_id_of(stored)
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise UnreadableSecret(name, f"it is encrypted with the key {key_id!r}, which is not configured")
        content = _decoded(stored.removeprefix(f"{SEALED}{_FORMAT}:{key_id}:"))
        try:
            return cipher.decrypt(
                content[:_NONCE_BYTES], content[_NONCE_BYTES:], _bound_to(key_id, owner_id, name)
            ).decode()
        except (InvalidTag, ValueError) as error:
            said = f"the key {key_id!r} is not the one that it was encrypted with, or the stored text was changed"
            raise UnreadableSecret(name, said) from error

    def problem_with(self, owner_id: str, stored: Mapping[str, str]) -> UnreadableSecret | None:
        """Why one of an owner's secrets cannot be decrypted; None if all can."""
        try:
            self.open_all(owner_id, stored)
        except UnreadableSecret as error:
            return error
        return None

    def open_all(self, owner_id: str, stored: Mapping[str, str]) -> dict[str, str]:
        """The values of all secrets of an owner. Raises `UnreadableSecret`."""
        return {name: self.open(owner_id, name, value) for name, value in stored.items()}

    def seal_all(self, owner_id: str, values: Mapping[str, str]) -> dict[str, str]:
        """The stored forms of all secrets of an owner."""
        return {name: self.seal(owner_id, name, value) for name, value in values.items()}

    def sealed_anew(self, owner_id: str, stored: Mapping[str, str]) -> "SealedAnew":
        """The same secrets, encrypted with the first key as far as they can be decrypted."""
        after: dict[str, str] = {}
        unreadable: list[UnreadableSecret] = []
        for name, value in stored.items():
            after[name] = value
            if not value or key_id_of(value) == self.current:
                continue
            try:
                after[name] = self.seal(owner_id, name, self.open(owner_id, name, value))
            except UnreadableSecret as error:
                unreadable.append(error)
        return SealedAnew(after, unreadable)


class SealedAnew(NamedTuple):
    """The result of encrypting an owner's secrets again."""

    after: dict[str, str]
    unreadable: list[UnreadableSecret]


NO_KEYS = SecretKeys({})


def key_id_of(stored: str) -> str:
    """The id of the key that encrypts a stored value; `PLAIN` if none does."""
    if not is_sealed(stored):
        return PLAIN
    return stored.removeprefix(SEALED).partition(":")[2].partition(":")[0]


def can_read(reader: Sequence[str], writer: Sequence[str]) -> bool:
    """Whether a process with the fingerprints `reader` can decrypt secrets of one with the fingerprints `writer`."""
    return not writer or writer[0] in reader


def _fingerprint(key_id: str, key: bytes) -> str:
    """`id:` and twelve hexadecimal digits, which differ for two keys of one id."""
    return f"{key_id}:{hashlib.sha256(b'holdfast key fingerprint' + key).hexdigest()[:12]}"


def new_key(random_bytes: Callable[[int], bytes] = os.urandom) -> str:
    """A key with a new id, in the setting's form."""
    return f"k{random_bytes(4).hex()}:{base64.b64encode(random_bytes(_KEY_BYTES)).decode()}"


def _bound_to(key_id: str, owner_id: str, name: str) -> bytes:
    # None of the three can contain NUL: ids have none, and names with one are refused before they are stored. The first
    # word is older than endpoints' secrets, and stored values are bound to it.
    return "\0".join(("holdfast agent secret", _FORMAT, key_id, owner_id, name)).encode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        return b""
