"""Whether a worker can decrypt the secrets of agents. With another key, or none, it fails each run that needs one.

Such a worker continues with the runs that need none, but it is not ready: a rollout without the key stops at the first
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
"""The newest agents, whose secrets are tried: a few milliseconds. `holdfast doctor` tries those of all agents."""

FIX = "give every worker and API process the same HOLDFAST_ENCRYPTION_KEY"


class ReadableSecrets:
    """Checks stored secrets, and the keys with which API processes encrypt."""

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
        # Redis has the encrypting keys. While it is away, the stored secrets were still checked.
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
