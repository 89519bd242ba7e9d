"""The implementation of `holdfast secrets`: makes keys, and re-encrypts stored secrets with the newest one."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from cli.operator.processes import production_database, stop_signal
from cli.operator.progress import shown_progress
from cli.printable import printable, printable_json
from shared.domain.errors import InvalidRequest
from shared.process.data_directory import keys_of
from shared.process.settings import Settings
from shared.secret_keys import PLAIN, SecretKeys, key_id_of, new_key
from shared.sql.definitions.mcp_servers import ServerSecretStore
from shared.sql.definitions.tools import StoredSecretStore
from shared.sql.runs.webhooks import EndpointSecretStore

BATCH = 100
TRIES = 3
"""Attempts for an owner that another process changes at the same time."""


class Stored(Protocol):
    """The secrets of one owner: an agent, a webhook endpoint, or an MCP server."""

    @property
    def number(self) -> int: ...
    @property
    def owner_id(self) -> str: ...
    @property
    def secrets(self) -> dict[str, str]: ...


Found = TypeVar("Found", bound=Stored)


class Store(Protocol[Found]):
    """The stored secrets of one kind of owner."""

    async def some(self, after: int, limit: int) -> Sequence[Found]: ...
    async def replace(self, before: Found, secrets: dict[str, str]) -> bool: ...


class Owners(NamedTuple, Generic[Found]):
    """One kind of owner: its name in messages, and its store."""

    noun: str
    nouns: str
    store: Store[Found]


class Rotated(NamedTuple):
    """How many owners were changed, and whether some secrets could not be decrypted."""

    changed: int = 0
    unread: bool = False


def print_new_key() -> None:
    """Prints a key for HOLDFAST_ENCRYPTION_KEY."""
    print(new_key())


async def rotate_secrets(settings: Settings, *, dry_run: bool, as_json: bool) -> None:
    """Re-encrypts stored secrets with the first key, and prints which keys are in use. Raises `InvalidRequest`."""
    keys = keys_of(settings)
    if not keys:
        raise InvalidRequest("HOLDFAST_ENCRYPTION_KEY is not set: `holdfast secrets generate-key` prints a key")
    database = await production_database(settings)
    agents = Owners("agent", "agents", StoredSecretStore(database))
    endpoints = Owners("webhook endpoint", "webhook endpoints", EndpointSecretStore(database))
    servers = Owners("MCP server", "MCP servers", ServerSecretStore(database))
    stop, of_agents, of_endpoints, of_servers = stop_signal(), Rotated(), Rotated(), Rotated()
    try:
        if not dry_run:
            of_agents = await _rotate(agents, keys, stop)
            of_endpoints = await _rotate(endpoints, keys, stop)
            of_servers = await _rotate(servers, keys, stop)
        in_use = await _keys_in_use(agents.store) + await _keys_in_use(endpoints.store)
        in_use += await _keys_in_use(servers.store)
    finally:
        await database.aclose()
    changed = {
        "agents": of_agents.changed,
        "webhook_endpoints": of_endpoints.changed,
        "mcp_servers": of_servers.changed,
    }
    if as_json:
        counts = {f"{nouns}_changed": count for nouns, count in changed.items()}
        report = {"dry_run": dry_run, "current": keys.current, **counts, "secrets_by_key": in_use}
        print(printable_json(msgspec.json.encode(report).decode()))
    else:
        _say(changed, in_use, keys, dry_run=dry_run)
    unread = of_agents.unread or of_endpoints.unread or of_servers.unread
    if unread or (in_use.keys() - {keys.current} and not dry_run):
        raise InvalidRequest(
            "not all secrets are encrypted with the first key. Run it again; for a secret that cannot be decrypted, "
            "add the named key to HOLDFAST_ENCRYPTION_KEY, or set the secret again"
        )


def _say(changed: Mapping[str, int], in_use: Mapping[str, int], keys: SecretKeys, *, dry_run: bool) -> None:
    if not dry_run:
        for nouns, count in changed.items():
            shown = nouns.replace("_", " ").replace("mcp", "MCP")
            print(f"{count:>12,} {shown} had secrets that are now encrypted with the key {keys.current!r}")
    for key_id, count in sorted(in_use.items()):
        print(f"{count:>12,} secrets are {_stored_with(key_id, keys)}", flush=True)


async def _rotate(owners: Owners[Found], keys: SecretKeys, stop: asyncio.Event) -> Rotated:
    """Re-encrypts secrets with the first key until all are, or until `stop` is set."""
    changed, unread = 0, False
    if stop.is_set():
        return Rotated()
    with shown_progress(f"holdfast secrets rotate: {{:,}} {owners.nouns} so far") as progress:
        async for found in _all(owners.store):
            is_changed, is_whole = await _rotate_one(owners, keys, found)
            changed, unread = changed + is_changed, unread or not is_whole
            progress(changed)
            if stop.is_set():
                break
    if stop.is_set():
        print("holdfast secrets rotate: interrupted; run it again for the rest", file=sys.stderr, flush=True)
    return Rotated(changed, unread)


async def _all(store: Store[Found]) -> AsyncGenerator[Found]:
    after = 0
    while batch := await store.some(after, BATCH):
        for found in batch:
            yield found
        after = batch[-1].number


async def _rotate_one(owners: Owners[Found], keys: SecretKeys, found: Found) -> tuple[bool, bool]:
    """Returns whether it re-encrypted a secret, and whether it could decrypt all of them. It reads an owner again that
    another process changed meanwhile; running servers encrypt what they write."""
    store = owners.store
    after, unreadable = keys.sealed_anew(found.owner_id, found.secrets)
    for error in unreadable:
        said = printable(f"holdfast secrets rotate: {owners.noun} {found.owner_id}: {error.message}")
        print(said, file=sys.stderr, flush=True)
    if after == found.secrets:
        return False, not unreadable
    for _ in range(TRIES):
        if await store.replace(found, after):
            return True, not unreadable
        again = [one for one in await store.some(found.number - 1, 1) if one.owner_id == found.owner_id]
        if not again:
            return False, True
        [found] = again
        after, unreadable = keys.sealed_anew(found.owner_id, found.secrets)
    return False, not unreadable


async def _keys_in_use(store: Store[Found]) -> Counter[str]:
    """Counts the secrets that are encrypted with each key, by the key's id."""
    in_use: Counter[str] = Counter()
    async for found in _all(store):
        in_use.update(key_id_of(value) for value in found.secrets.values() if value)
    return in_use


def _stored_with(key_id: str, keys: SecretKeys) -> str:
    if key_id == PLAIN:
        return "not encrypted"
    known = "" if keys.has(key_id) else ", which is not configured"
    return f"encrypted with the key {key_id!r}{known}"
