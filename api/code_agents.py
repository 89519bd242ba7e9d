"""What an API process knows of the agents of operators' own code: their names are models' handles `code/<name>`."""

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress

from shared.concurrency import repeating
from shared.domain.code_agents import KnownVersion
from shared.domain.errors import InvalidRequest, Unavailable
from shared.domain.models import CODE, DEFAULT_LIMIT, KnownModel, code_agent_of, code_handle
from shared.redis.process_presence import ProcessPresence
from shared.sql.definitions.code_agents import CodeAgentStore, KnownCodeAgent

LOOK_S = 2.0
"""Seconds until the API knows an agent that a worker has brought."""


class CodeAgentNames:
    """The agents that workers have shown, as of a moment ago."""

    def __init__(self, store: CodeAgentStore, presence: ProcessPresence) -> None:
        self._store = store
        self._presence = presence
        self.known: Sequence[KnownCodeAgent] = ()

    def watching(self) -> AbstractAsyncContextManager[None]:
        """Keeps them current for as long as the block lasts."""
        return repeating(self._look, every_s=LOOK_S, name="look for agents of own code")

    def refuse_unknown(self, handle: str, field: str) -> None:
        """Raises `InvalidRequest` for the handle of an agent that no worker has ever had."""
        name = code_agent_of(handle)
        names = [one.name for one in self.known]
        if name is None or name in names:
            return
        listed = ", ".join(map(code_handle, names))
        said = f"the workers have {listed}" if names else "no worker was started with agents"
        raise InvalidRequest(f"no worker has an agent for the model {handle[:120]!r}: {said}", field=field)

    def listed(self) -> list[KnownModel]:
        """The agents as models."""
        return [KnownModel(CODE, one.name, DEFAULT_LIMIT) for one in self.known]

    async def with_versions(self) -> list[tuple[KnownCodeAgent, list[KnownVersion]]]:
        """The agents by name, each with its versions, the newest first. Raises `Unavailable`."""
        known, versions = await self._store.known(), await self._store.versions()
        return [(one, [version for version in versions if version.name == one.name]) for one in known]

    async def workers(self) -> Counter[tuple[str, str]]:
        """How many live workers have each version of an agent, by the agent's name and the version. Raises
        `Unavailable`."""
        live = await self._presence.workers()
        return Counter((one.name, one.version) for worker in live for one in worker.code_agents)

    async def _look(self) -> None:
        with suppress(Unavailable):  # then it knows what it has known before
            self.known = await self._store.known()
