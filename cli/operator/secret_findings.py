"""What `holdfast doctor` finds about the keys for agents' secrets: whether each process reads what the others encrypt,
and whether what is stored can be read."""

from collections.abc import Iterator, Mapping, Sequence

from cli.operator.findings import Finding, doubtful, good, wrong
from shared.domain.errors import InvalidRequest
from shared.process.data_directory import keys_of
from shared.process.settings import Settings
from shared.redis.connection import Redis
from shared.redis.process_presence import ProcessPresence
from shared.secret_keys import NO_KEYS, SecretKeys, can_read
from shared.sql.definitions.stored_secrets import StoredSecretStore
from shared.sql.engine import Database

BATCH = 500

PLAIN_TEXT = "an API and its workers store the secrets of agents as plain text; `holdfast dev` makes a key of its own"

HERE = "this command"
"""Stands for the settings that `doctor` was started with."""

MAKE = "`holdfast secrets generate-key` prints a key"
SAME = "give the workers and the API processes the same HOLDFAST_ENCRYPTION_KEY, and restart the workers first"


def key_findings(settings: Settings) -> list[Finding]:
    """Whether there is a key, and it can be read."""
    subject = "encryption key"
    try:
        keys = keys_of(settings)
    except InvalidRequest as error:
        return [wrong(subject, error.message, MAKE)]
    if keys:
        return [good(subject, f"secrets are encrypted with {keys.current!r}")]
    return [doubtful(subject, PLAIN_TEXT, f"set HOLDFAST_ENCRYPTION_KEY; {MAKE}")]


async def stored_secret_findings(settings: Settings, database: Database) -> list[Finding]:
    """Whether the keys of these settings read every secret that is stored. Raises `Unavailable`."""
    subject, keys, after = "stored secrets", _keys(settings), 0
    store = StoredSecretStore(database)
    looked, problems = 0, list[str]()
    while batch := await store.some(after, BATCH):
        found = [keys.problem_with(one.agent_id, one.secrets) for one in batch]
        problems += [problem.reason for problem in found if problem is not None]
        looked, after = looked + len(batch), batch[-1].number
    if not problems:
        return [good(subject, f"those of {looked:,} agents can be read")]
    said = f"those of {len(problems):,} of {looked:,} agents cannot be read: {problems[0]}"
    return [wrong(subject, said, "HOLDFAST_ENCRYPTION_KEY needs the key that is named; docs/operations/secrets.md")]


async def shared_key_findings(settings: Settings, redis: Redis) -> list[Finding]:
    """Whether the processes that live have the same keys as one another, and as these settings. Raises
    `Unavailable`."""
    presence = ProcessPresence(redis)
    living = [*await presence.workers(), *await presence.api_processes()]
    shown = {one.name: one.secret_keys for one in living if one.secret_keys is not None}
    if not shown:
        return []
    subject = "encryption keys of processes"
    if apart := list(_unreadable(shown)):
        return [wrong(subject, apart[0] + (f", and {len(apart) - 1} more" if apart[1:] else ""), SAME)]
    here = {HERE: _keys(settings).fingerprints}
    if apart := list(_unreadable({**shown, **here})):
        fix = "start it with the HOLDFAST_ENCRYPTION_KEY of the processes"
        return [doubtful(subject, f"each of {len(shown)} reads what the others encrypt, but {apart[0]}", fix)]
    return [good(subject, f"each of {len(shown)} reads what the others encrypt")]


def _keys(settings: Settings) -> SecretKeys:
    try:
        return keys_of(settings)
    except InvalidRequest:
        return NO_KEYS  # which is a finding of its own


def _unreadable(processes: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for reader, keys in processes.items():
        for writer, others in processes.items():
            if not can_read(keys, others):
                yield f"{reader} does not have the key {others[0]} with which {writer} encrypts"
                break
