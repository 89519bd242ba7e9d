"""Whether a worker can read the secrets of agents: with another key, or none, it fails each run that needs one.

A worker goes on with the runs that need none, but it is not ready: a rollout that forgot the key stops with the first
new worker, while the old ones still work.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import structlog

from shared.concurrency import repeating
from shared.domain.errors import Unavailable
from shared.process.context import ProcessContext
from shared.redis.process_presence import ProcessPresence
from shared.secret_keys import SecretKeys, can_read
from shared.sql.definitions.tools import StoredSecretStore

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LOOK_EVERY_S = 15.0

AGENTS_AT_MOST = 1000
"""Agents, the newest, whose secrets are tried: a few milliseconds. `holdfast doctor` tries those of all."""

FIX = "give every worker and API process the same HOLDFAST_ENCRYPTION_KEY"


class ReadableSecrets:
    """Looks at what is stored, and at the keys that API processes say they encrypt with."""

    def __init__(self, keys: SecretKeys, store: StoredSecretStore, presence: ProcessPresence) -> None:
        self._keys = keys
        self._store = store
        self._presence = presence
        self.problem = "not looked at yet"
        """Why secrets cannot be read, and the fix; empty if the last check found no problem."""

    async def look(self) -> None:
        """Checks, and logs a new problem. Raises `Unavailable`."""
        found = await self._stored() or await self._encrypted_next()
        if found and found != self.problem:
            log.warning("secrets_cannot_be_read", reason=found)
        self.problem = found

    async def _stored(self) -> str:
        for agent in await self._store.newest(AGENTS_AT_MOST):
            if (problem := self._keys.problem_with(agent.owner_id, agent.secrets)) is not None:
                return f"an agent's secret cannot be read: {problem.reason}; {FIX}"
        return ""

    async def _encrypted_next(self) -> str:
        # Redis tells who encrypts now. While it is away, what is stored has been looked at all the same.
        with suppress(Unavailable):
            for api in await self._presence.api_processes():
                if not can_read(self._keys.fingerprints, keys := api.secret_keys or []):
                    return f"the API encrypts secrets with a key that is not here, {keys[0]}; {FIX}"
        return ""


@asynccontextmanager
async def readable_secrets(process: ProcessContext) -> AsyncGenerator[ReadableSecrets]:
    """Checks repeatedly within the block."""
    found = ReadableSecrets(process.secret_keys, StoredSecretStore(process.database), ProcessPresence(process.redis))
    async with repeating(found.look, every_s=LOOK_EVERY_S, name="try to read secrets"):
        yield found
