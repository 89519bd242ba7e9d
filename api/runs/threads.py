"""The history of an agent that a request means: one of its conversations, or its default one."""

from dataclasses import dataclass

from msgspec.structs import replace

from api.letta.model_settings import ModelSettingsFields, changed_options
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
        conversation = self.conversation
        if conversation is None:
            return None
        options = options_for(self.agent.options, conversation.model, conversation.model_settings)
        window = conversation.context_window_limit
        changed = options if window is None else replace(options, context_window=window)
        return None if changed == self.agent.options else changed


@dataclass(frozen=True, kw_only=True)
class AgentThreads:
    """Finds histories."""

    agents: AgentStore
    conversations: ConversationStore

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
        return AgentThread(await self.agents.get(project_id, conversation.agent_id), conversation)


def options_for(options: ModelOptions, model: str | None, settings: dict[str, object] | None) -> ModelOptions:
    """The options for a model that takes the place of the agent's, with settings of its own."""
    if model is not None:
        # The chosen window was that of another model.
        options = replace(options, context_window=None)
    return changed_options(options, ModelSettingsFields.model_validate(settings or {}).options())
