"""`holdfast secrets`: makes keys, and encrypts what is stored with the newest one."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator

from api.commands.processes import AddCommand, production_database, told_to_end
from shared.domain.errors import InvalidRequest
from shared.process.data_directory import keys_of
from shared.process.settings import Settings
from shared.secret_keys import PLAIN, SecretKeys, key_id_of, new_key
from shared.sql.definitions.stored_secrets import StoredSecrets, StoredSecretStore

PROGRESS_S = 5.0
BATCH = 100
TRIES = 3
"""Times that an agent is looked at that is changed at the same moment."""


def add_secrets_commands(add: AddCommand) -> None:
    """Adds them to the parser, through its `add_parser`."""
    secrets = add("secrets", help="make a key for agents' secrets, or encrypt them with the newest one")
    commands = secrets.add_subparsers(required=True, metavar="command")
    making = commands.add_parser("generate-key", help="print a new key for HOLDFAST_ENCRYPTION_KEY")
    making.set_defaults(run=_run_generate_key)
    rotating = commands.add_parser("rotate", help="encrypt all secrets with the first key of HOLDFAST_ENCRYPTION_KEY")
    rotating.add_argument("--dry-run", action="store_true", help="say which keys are in use, and change nothing")
    rotating.set_defaults(run=_run_rotate)


async def _run_generate_key(_settings: Settings, _options: argparse.Namespace) -> None:
    print(new_key())


async def _run_rotate(settings: Settings, options: argparse.Namespace) -> None:
    keys = keys_of(settings)
    if not keys:
        raise InvalidRequest("HOLDFAST_ENCRYPTION_KEY is not set: `holdfast secrets generate-key` prints a key")
    database = await production_database(settings)
    store = StoredSecretStore(database)
    try:
        unread = False if options.dry_run else await _rotate(store, keys)
        others = await _say_keys_in_use(store, keys)
    finally:
        await database.aclose()
    if unread or (others and not options.dry_run):
        raise InvalidRequest(
            "not all secrets are encrypted with the first key. Run it again; where a secret cannot be read, configure "
            "the key that is named, or set the secret anew"
        )


async def _rotate(store: StoredSecretStore, keys: SecretKeys) -> bool:
    """Encrypts secrets with the first key until there are no others, or until the process is asked to end. Whether
    there were some that cannot be read."""
    stop, said_at = told_to_end(), time.monotonic()
    changed, unread = 0, False
    async for found in _all(store):
        is_changed, is_whole = await _rotate_one(store, keys, found)
        changed, unread = changed + is_changed, unread or not is_whole
        if stop.is_set():
            print("holdfast secrets rotate: told to end; run it again for what is left", file=sys.stderr, flush=True)
            break
        if time.monotonic() > said_at + PROGRESS_S:
            said_at = time.monotonic()
            print(f"holdfast secrets rotate: {changed:,} agents so far", file=sys.stderr, flush=True)
    print(f"{changed:>12,} agents have secrets that were encrypted with the key {keys.current!r} now", flush=True)
    return unread


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
        print(f"holdfast secrets rotate: agent {found.agent_id}: {error.message}", file=sys.stderr, flush=True)
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


async def _say_keys_in_use(store: StoredSecretStore, keys: SecretKeys) -> int:
    """Prints how many secrets each key has; how many the first one does not have."""
    in_use: Counter[str] = Counter()
    async for found in _all(store):
        in_use.update(key_id_of(value) for value in found.secrets.values() if value)
    for key_id, count in sorted(in_use.items()):
        print(f"{count:>12,} secrets are {_stored_with(key_id, keys)}", flush=True)
    return in_use.total() - in_use[keys.current]


def _stored_with(key_id: str, keys: SecretKeys) -> str:
    if key_id == PLAIN:
        return "not encrypted"
    known = "" if keys.has(key_id) else ", which is not configured"
    return f"encrypted with the key {key_id!r}{known}"
