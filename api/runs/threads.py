"""The history of an agent that a request means: one of its conversations, or its default one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import replace

from shared.domain.agents import Agent, ModelOptions
from shared.domain.conversations import Conversation
from shared.domain.errors import InvalidRequest
from shared.domain.ids import AgentId, ConversationId, ProjectId, ThreadId, is_id
from shared.sql.definitions.agents import AgentStore
from shared.sql.definitions.conversations import ConversationStore

DEFAULT = "default"
"""The name of an agent's default history where clients give a conversation's id."""


@dataclass(frozen=True)
class AgentThread:
    """One history of an agent. Without a conversation: the default one."""

    agent: Agent
    conversation: Conversation | None = None
    read_options: Callable[[], ModelOptions | None] = lambda: None

    @property
    def id(self) -> ThreadId:
        return ThreadId(self.conversation_id or self.agent.id)

    @property
    def conversation_id(self) -> ConversationId | None:
        return None if self.conversation is None else self.conversation.id

    @property
    def model(self) -> str | None:
        """The model that the conversation has instead of the agent's."""
        return None if self.conversation is None else self.conversation.model

    @property
    def model_options(self) -> ModelOptions | None:
        """How the model is asked in this conversation. None: as the agent says."""
        return self.read_options()


@dataclass(frozen=True, kw_only=True)
class AgentThreads:
    """Finds histories."""

    agents: AgentStore
    conversations: ConversationStore
    changed_by: Callable[[ModelOptions, Mapping[str, Any]], ModelOptions]
    """Options as a conversation's own settings change them. These are stored in the words of the dialect that made
    them. Raises `ValueError` for settings that it does not know."""

    async def find(self, project_id: ProjectId, name: str, agent_id: AgentId | None = None) -> AgentThread:
        """The history of this name: a conversation's id, an agent's id, or `default` with the agent's id beside it.

        Raises `NotFound`, or `InvalidRequest` when the agent of a default history is not named.
        """
        if name == DEFAULT and agent_id is None:
            raise InvalidRequest(
                "agent_id is missing: conversation 'default' is the default history of the agent named",
                field="agent_id",
            )
        if name == DEFAULT or is_id(name, "agent"):
            return AgentThread(await self.agents.get(project_id, AgentId(agent_id or name)))
        conversation = await self.conversations.get(project_id, ConversationId(name))
        agent = await self.agents.get(project_id, conversation.agent_id)
        return AgentThread(agent, conversation, partial(self._options, agent, conversation))

    def _options(self, agent: Agent, conversation: Conversation) -> ModelOptions | None:
        # The chosen window was that of another model.
        options = agent.options if conversation.model is None else replace(agent.options, context_window=None)
        options = self.changed_by(options, conversation.model_settings or {})
        if conversation.context_window_limit is not None:
            options = replace(options, context_window=conversation.context_window_limit)
        return None if options == agent.options else options
