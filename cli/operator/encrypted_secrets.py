"""What `holdfast secrets` does: makes keys, and encrypts what is stored with the newest one."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Mapping

import msgspec

from cli.operator.processes import production_database, told_to_end
from cli.operator.progress import shown_progress
from cli.printable import printable, printable_json
from shared.domain.errors import InvalidRequest
from shared.process.data_directory import keys_of
from shared.process.settings import Settings
from shared.secret_keys import PLAIN, SecretKeys, key_id_of, new_key
from shared.sql.definitions.tools import StoredSecrets, StoredSecretStore

BATCH = 100
TRIES = 3
"""Times that an agent is looked at that is changed at the same moment."""


def print_new_key() -> None:
    """Prints a key for HOLDFAST_ENCRYPTION_KEY."""
    print(new_key())


async def rotate_secrets(settings: Settings, *, dry_run: bool, as_json: bool) -> None:
    """Encrypts what is stored with the first key, and says which keys are in use. Raises `InvalidRequest`."""
    keys = keys_of(settings)
    if not keys:
        raise InvalidRequest("HOLDFAST_ENCRYPTION_KEY is not set: `holdfast secrets generate-key` prints a key")
    database = await production_database(settings)
    store, stop = StoredSecretStore(database), told_to_end()
    try:
        changed, unread = (0, False) if dry_run else await _rotate(store, keys, stop)
        in_use = await _keys_in_use(store)
    finally:
        await database.aclose()
    if as_json:
        told = {"dry_run": dry_run, "current": keys.current, "agents_changed": changed, "secrets_by_key": in_use}
        print(printable_json(msgspec.json.encode(told).decode()))
    else:
        _say(changed, in_use, keys, dry_run=dry_run)
    if unread or (in_use.keys() - {keys.current} and not dry_run):
        raise InvalidRequest(
            "not all secrets are encrypted with the first key. Run it again; where a secret cannot be read, configure "
            "the key that is named, or set the secret anew"
        )


def _say(changed: int, in_use: Mapping[str, int], keys: SecretKeys, *, dry_run: bool) -> None:
    if not dry_run:
        print(f"{changed:>12,} agents have secrets that were encrypted with the key {keys.current!r} now")
    for key_id, count in sorted(in_use.items()):
        print(f"{count:>12,} secrets are {_stored_with(key_id, keys)}", flush=True)


async def _rotate(store: StoredSecretStore, keys: SecretKeys, stop: asyncio.Event) -> tuple[int, bool]:
    """Encrypts secrets with the first key until there are no others, or until the process is asked to end. Gives the
    number of agents that were changed, and whether there were secrets that cannot be read."""
    changed, unread = 0, False
    with shown_progress("holdfast secrets rotate: {:,} agents so far") as progress:
        async for found in _all(store):
            is_changed, is_whole = await _rotate_one(store, keys, found)
            changed, unread = changed + is_changed, unread or not is_whole
            progress(changed)
            if stop.is_set():
                break
    if stop.is_set():
        print("holdfast secrets rotate: told to end; run it again for what is left", file=sys.stderr, flush=True)
    return changed, unread


async def _all(store: StoredSecretStore) -> AsyncGenerator[StoredSecrets]:
    after = 0
    while batch := await store.some(after, BATCH):
        for found in batch:
            yield found
        after = batch[-1].number


async def _rotate_one(store: StoredSecretStore, keys: SecretKeys, found: StoredSecrets) -> tuple[bool, bool]:
    """Whether something was encrypted anew, and whether everything could be read. An agent that is changed meanwhile is
    looked at again; servers that run encrypt what they write."""
    after, unreadable = keys.sealed_anew(found.agent_id, found.secrets)
    for error in unreadable:
        said = printable(f"holdfast secrets rotate: agent {found.agent_id}: {error.message}")
        print(said, file=sys.stderr, flush=True)
    if after == found.secrets:
        return False, not unreadable
    for _ in range(TRIES):
        if await store.replace(found, after):
            return True, not unreadable
        again = [one for one in await store.some(found.number - 1, 1) if one.agent_id == found.agent_id]
        if not again:
            return False, True
        [found] = again
        after, unreadable = keys.sealed_anew(found.agent_id, found.secrets)
    return False, not unreadable


async def _keys_in_use(store: StoredSecretStore) -> Counter[str]:
    """How many secrets are encrypted with each key, by its id."""
    in_use: Counter[str] = Counter()
    async for found in _all(store):
        in_use.update(key_id_of(value) for value in found.secrets.values() if value)
    return in_use


def _stored_with(key_id: str, keys: SecretKeys) -> str:
    if key_id == PLAIN:
        return "not encrypted"
    known = "" if keys.has(key_id) else ", which is not configured"
    return f"encrypted with the key {key_id!r}{known}"
