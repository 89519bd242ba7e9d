"""The models of the configured providers and the agents of operators' own code, and the model that a handle stands
for."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass

from shared.concurrency import repeating
from shared.domain.code_agents import KnownVersion
from shared.domain.errors import InvalidRequest, Unavailable
from shared.domain.models import (
    BUILTIN_IS_OFF,
    CODE,
    DEFAULT_HANDLE,
    DEFAULT_LIMIT,
    MODELS,
    KnownModel,
    answer_limit_of,
    code_agent_of,
    code_handle,
    is_builtin,
    leaves_choice,
    offered,
    split_handle,
)
from shared.network.server_models import FoundModels
from shared.redis.process_presence import ProcessPresence
from shared.sql.definitions.code_agents import CodeAgentStore, KnownCodeAgent

# The agents of operators' own code, as an API process knows them. Their names are models' handles `code/<name>`.


LOOK_S = 2.0
"""Seconds until the API knows an agent that a worker has announced."""


class CodeAgentNames:
    """The agents that workers have announced, as of a moment ago."""

    def __init__(self, store: CodeAgentStore, presence: ProcessPresence) -> None:
        self._store = store
        self._presence = presence
        self.known: Sequence[KnownCodeAgent] = ()

    def watching(self) -> AbstractAsyncContextManager[None]:
        """Keeps the names current for as long as the block lasts, and knows them when it begins."""
        return repeating(self._look, every_s=LOOK_S, name="look for agents of own code", after_first=True)

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
        """The number of live workers with each version of an agent, by the agent's name and the version. Raises
        `Unavailable`."""
        live = await self._presence.workers()
        return Counter((one.name, one.version) for worker in live for one in worker.code_agents)

    async def _look(self) -> None:
        with suppress(Unavailable):  # then the earlier names stay
            self.known = await self._store.known()


# The models that a request may name.


@dataclass(frozen=True)
class OfferedModels:
    """The models that this process offers, and the model for a request that leaves the choice open."""

    environment: Mapping[str, str]
    """Environment variables, which configure the providers."""
    builtin: bool
    """Whether the built-in models are on."""
    code_agents: CodeAgentNames
    """The agents of workers' own code."""
    default: str = ""
    """The handle of `HOLDFAST_DEFAULT_MODEL`; empty: none is set."""

    def served(self, handle: str | None, *, field: str = "model") -> str | None:
        """The model that a request's handle stands for; None if the request names none. `field` is its place in the
        request.

        Raises `InvalidRequest` for a built-in model if those are off, for an agent of own code that no worker has ever
        had, and if there is no model to choose. A provider without a key is accepted: the key may come later, and only
        the workers have it.
        """
        meant = self._choice(handle, field) if handle is not None and leaves_choice(handle) else handle
        if meant is not None and is_builtin(meant) and not self.builtin:
            raise InvalidRequest(f"the model {meant!r} cannot be used. {BUILTIN_IS_OFF}", field=field)
        if meant is not None:
            self.code_agents.refuse_unknown(meant, field)
        return meant

    def needed(self, handle: str | None) -> str:
        """As `served`, for a new agent: it gets the default if its request names no model. Raises `InvalidRequest` if
        there is no default either."""
        meant = self.served(handle or self.default or None)
        if meant is None:
            raise InvalidRequest(
                f"model is required: give a handle <provider>/<model>, e.g. {DEFAULT_HANDLE!r}. HOLDFAST_DEFAULT_MODEL "
                "gives one to agents without",
                field="model",
            )
        return meant

    def listed(self, found: FoundModels) -> list[KnownModel]:
        """The models of every configured provider: those `found` on its server, else the well-known ones.

        The default is first, whatever its provider: clients without a configured model use the first model.
        """
        well_known = [
            model
            for model in MODELS
            if offered(model.provider, self.environment, builtin=self.builtin) and model.provider not in found.answered
        ]
        builtin = [model for model in well_known if is_builtin(model.handle)]
        known = [
            *(model for model in well_known if model not in builtin),
            *found.models,
            *builtin,
            *self.code_agents.listed(),
        ]
        if not self.default:
            return known
        limit = answer_limit_of(self.default) or DEFAULT_LIMIT
        first = next((model for model in known if model.handle == self.default), None)
        return [first or KnownModel(*split_handle(self.default), limit), *(model for model in known if model != first)]

    def _choice(self, asked: str, field: str) -> str:
        first = next(iter(self.listed(FoundModels())), None)
        if first is None:
            raise InvalidRequest(
                f"the model {asked!r} leaves the choice to the server, which knows no model: name one, or "
                "set HOLDFAST_DEFAULT_MODEL",
                field=field,
            )
        return first.handle
