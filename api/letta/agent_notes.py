"""What an agent was asked to be and is not here, so that whoever looks at it can see why it does not do that.

A request that says such a thing is answered with a `Warning` header, which clients drop. These sentences stay with the
agent, in every answer that shows it.
"""

from collections.abc import Iterator, Mapping

from shared.domain.agents import Agent
from shared.domain.model_providers import PROVIDERS, can_embed, split_handle

SLEEPTIME = "enable_sleeptime: no agent works while this one sleeps"


def notes_on(agent: Agent, environment: Mapping[str, str]) -> list[str]:
    """One sentence for each field of the agent that is kept and not acted on, with the field's name before it."""
    return list(_notes(agent, environment))


def _notes(agent: Agent, environment: Mapping[str, str]) -> Iterator[str]:
    if agent.extra.get("enable_sleeptime"):
        yield SLEEPTIME
    if agent.embedding is not None and not _can_be_asked(agent.embedding, environment):
        yield (
            f"embedding: this server cannot ask {agent.embedding!r}, so archival memory is searched by words; "
            "GET /v1/models/embedding lists the models that it can ask"
        )


def _can_be_asked(handle: str, environment: Mapping[str, str]) -> bool:
    return can_embed(handle) and PROVIDERS[split_handle(handle)[0]].is_configured(environment)
