"""Finds the conversations that pages name."""

import re
from dataclasses import dataclass, replace

from api.runs.command import DEFAULT, AgentThread, AgentThreads
from api.runs.thread_projection import Thread
from shared.concurrency import Clock
from shared.domain.agents import Agent
from shared.domain.errors import InvalidRequest, NotFound
from shared.domain.ids import AgentId, ConversationId, IdMaker, ProjectId, ThreadId, is_id
from shared.domain.threads import Conversation
from shared.sql.definitions.conversations import ConversationStore, opening
from shared.sql.runs.run_store import ANYWHERE, Place

LONGEST_NAME = 200
"""Characters of a conversation's name."""

_UNSTORABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
"""Control characters, and lone surrogates, which UTF-8 does not have."""


@dataclass(frozen=True, kw_only=True)
class PageThread:
    """A history of an agent, under a page's name for it."""

    agent: Agent
    name: str
    """A conversation's id, `default`, or the page's own name for a conversation."""
    history: AgentThread | None
    """None: the conversation is created with its first message."""

    @property
    def id(self) -> ThreadId | None:
        """The thread. None: it does not exist yet."""
        return None if self.history is None else self.history.id

    @property
    def conversation(self) -> Conversation | None:
        """None: it does not exist yet, or the thread is the agent's default history."""
        return None if self.history is None else self.history.conversation

    @property
    def conversation_id(self) -> ConversationId | None:
        return None if self.conversation is None else self.conversation.id

    @property
    def streamed(self) -> Thread | None:
        """The thread for `ThreadStreams`. None: it does not exist yet, so there is nothing to stream."""
        return None if self.id is None else Thread(self.agent.project_id, self.agent.id, self.id)


@dataclass(frozen=True, kw_only=True)
class PageThreads:
    """Finds and creates conversations by name. A name means one conversation of its agent in all dialects."""

    threads: AgentThreads
    conversations: ConversationStore
    clock: Clock
    ids: IdMaker

    async def find(self, project_id: ProjectId, agent_id: AgentId, name: str, *, only: ThreadId | None) -> PageThread:
        """Returns the thread that a page names: by a `conv-…` id, `default`, or any text of 1 to 200 characters, which
        is the name of a conversation of this agent, whether or not it exists.

        `only` is the one thread that the caller may see (`OnlyThreadDep`); None: all threads of the project. Raises
        `NotFound` for an unknown agent, an id of no conversation of this agent, and any thread other than `only`; and
        `InvalidRequest` for a text that cannot be a name.
        """
        if not 0 < len(name) <= LONGEST_NAME or _UNSTORABLE.search(name):
            raise InvalidRequest(
                f"a conversation's name has 1 to {LONGEST_NAME} characters without control characters", field="name"
            )
        thread = await self._find(project_id, agent_id, name)
        if only is not None and thread.id != only:
            raise NotFound(f"Conversation {name!r} not found")
        return thread

    async def made(self, thread: PageThread) -> PageThread:
        """Returns the thread with its conversation, and creates that if it does not exist. Several processes that
        create the same name at once get one conversation. Raises `NotFound` if the agent was deleted."""
        if thread.history is not None:
            return thread
        stored = await self.conversations.ensure(self._new(thread), system_message_id=self.ids.message())
        return replace(thread, history=self.threads.of(thread.agent, stored))

    def opened(self, thread: PageThread) -> tuple[PageThread, Place]:
        """Returns the thread with its conversation, and the place for a submitted run. A new conversation is stored
        together with the run."""
        if thread.history is not None:
            return thread, ANYWHERE
        new = self._new(thread)
        place = Place(opens=opening(new, thread.agent, self.ids.message()))
        return replace(thread, history=self.threads.of(thread.agent, new)), place

    def _new(self, thread: PageThread) -> Conversation:
        now = self.clock.now()
        return Conversation(
            id=self.ids.conversation(),
            project_id=thread.agent.project_id,
            agent_id=thread.agent.id,
            name=thread.name,
            created_at=now,
            updated_at=now,
        )

    async def _find(self, project_id: ProjectId, agent_id: AgentId, name: str) -> PageThread:
        if name == DEFAULT:
            agent = await self.threads.agents.without_links(project_id, agent_id)
            return PageThread(agent=agent, name=name, history=AgentThread(agent))
        if is_id(name, "conv"):
            agent, found = await self.conversations.of_agent(project_id, agent_id, ConversationId(name))
        else:
            agent, found = await self.conversations.named(project_id, agent_id, name)
        return PageThread(agent=agent, name=name, history=None if found is None else self.threads.of(agent, found))
