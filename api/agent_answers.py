"""Answers that show agents or list messages. They read the parts of an agent's state, the calls that wait for
decisions, and pages of a history or of a run."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from api.access.callers import Caller, may_see_instructions, may_see_secrets
from api.event_stream import CHARACTERS_OF_A_VALUE
from api.letta.agents import PENDING_APPROVAL, SECRETS, ShownSecret, wire_agent, without_instructions
from api.letta.messages import is_shown, parts_of, types_for_strangers, wire_approval_request, wire_messages
from shared.concurrency import beside
from shared.domain.agents import Agent
from shared.domain.approvals import waiting_calls
from shared.domain.errors import UnreadableSecret
from shared.domain.ids import AgentId, MessageId, ThreadId
from shared.domain.messages import Message
from shared.domain.runs import Run
from shared.secret_keys import SecretKeys
from shared.sql.access.audit import AuditLog
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.agents import AgentDetails
from shared.sql.history.message_lists import MessageFilter, MessageLists
from shared.sql.history.messages import MessageStore
from shared.sql.paging import Page
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.run_store import RunStore


@dataclass(frozen=True, kw_only=True)
class AgentAnswers:
    """Agents as JSON of Letta's wire."""

    editor: AgentEditor
    environment: Mapping[str, str]
    """The process's environment variables: which model providers are configured."""
    audit: AuditLog
    secret_keys: SecretKeys
    approvals: ApprovalStore
    messages: MessageStore

    async def all(
        self, agents: Sequence[Agent], include: Sequence[str] | None = None, caller: Caller | None = None
    ) -> list[dict[str, Any]]:
        """The states of the agents. A thousand agents take as many queries as one.

        They include secrets if `include` asks for them: with values if the caller may see those, else with names only.
        """
        return await self._answers(await self.editor.details(agents), include, caller)

    async def one(
        self, agent: Agent, include: Sequence[str] | None = None, caller: Caller | None = None
    ) -> dict[str, Any]:
        """The state of one agent."""
        [answer] = await self.all([agent], include, caller)
        return answer

    async def changed(self, agent: Agent, include: Sequence[str] | None, caller: Caller) -> dict[str, Any]:
        """The state of an agent that was just changed, in the form of `new`."""
        [details] = await self.editor.details([agent])
        return await self.new(details, include, caller)

    async def new(self, details: AgentDetails, include: Sequence[str] | None, caller: Caller) -> dict[str, Any]:
        """The state of a new agent. The wire always includes its secrets; their values are there only if `include` asks
        for them."""
        with_values = SECRETS in (include or ())
        [answer] = await self._answers([details], [SECRETS, *(include or ())], caller if with_values else None)
        return answer

    def shown_secrets(self, agent: Agent, *, with_values: bool) -> list[ShownSecret]:
        """The agent's secrets. A secret that cannot be decrypted has no value here; the others keep theirs."""
        stored = agent.tool_environment
        if not with_values:
            return [ShownSecret(name) for name in stored]
        return [self._opened(agent.id, name, value) for name, value in stored.items()]

    async def _answers(
        self, some: Sequence[AgentDetails], include: Sequence[str] | None, caller: Caller | None
    ) -> list[dict[str, Any]]:
        wanted, agents = include or (), [details.agent for details in some]
        waiting = await self._waiting(agents) if PENDING_APPROVAL in wanted else {}
        with_values = caller is not None and may_see_secrets(caller)
        if with_values and SECRETS in wanted:
            await self._record_who_is_shown(agents)
        shows_instructions = caller is None or may_see_instructions(caller)

        def shown() -> list[dict[str, Any]]:
            states = [
                wire_agent(
                    details,
                    self.environment,
                    secrets=self.shown_secrets(details.agent, with_values=with_values) if SECRETS in wanted else (),
                    pending_approval=waiting.get(ThreadId(details.agent.id)),
                )
                for details in some
            ]
            return states if shows_instructions else [without_instructions(state) for state in states]

        return await beside(shown, sum(map(_size_of, some)))

    async def _record_who_is_shown(self, agents: Sequence[Agent]) -> None:
        """Records in the audit log whose values the answer contains. Raises `Unavailable`; the answer must not contain
        them then."""
        with_secrets = [agent for agent in agents if agent.tool_environment]
        if with_secrets:
            shown = [agent.id for agent in with_secrets]
            await self.audit.add(with_secrets[0].project_id, "secrets.shown", *shown)

    def _opened(self, agent_id: AgentId, name: str, stored: str) -> ShownSecret:
        try:
            return ShownSecret(name, self.secret_keys.open(agent_id, name, stored))
        except UnreadableSecret as error:
            return ShownSecret(name, description=error.message)

    async def _waiting(self, agents: Sequence[Agent]) -> dict[ThreadId, dict[str, Any] | None]:
        """The wire's message for the approval request that waits in each agent's default history. All agents belong to
        one project."""
        if not agents:
            return {}
        project_id = agents[0].project_id
        asked = await self.approvals.waiting_on_threads(project_id, [ThreadId(agent.id) for agent in agents])
        if not asked:
            return {}
        waiting = {thread_id: names for thread_id, some in asked.items() if (names := waiting_calls(some)) is not None}
        found = await self.messages.find(project_id, [names.message_id for names in waiting.values()])
        shown: dict[ThreadId, dict[str, Any] | None] = {}
        for message in found:
            thread_id = ThreadId(AgentId(message.agent_id))
            shown[thread_id] = wire_approval_request(message, waiting[thread_id].tool_call_ids)
        return shown


def _size_of(details: AgentDetails) -> int:
    """Roughly what it costs to render an agent, in characters of JSON: tools are hashed and secrets are decrypted."""
    agent, sources = details.agent, sum(len(tool.source_code) for tool in details.tools)
    parts = 2 + len(details.tools) + len(details.blocks) + len(agent.tool_environment)
    return CHARACTERS_OF_A_PART * parts + sources // HASHED_AT_ONCE


CHARACTERS_OF_A_PART = 1000
HASHED_AT_ONCE = 10
"""Hashing is this many times faster per character than making JSON."""


def types_for(caller: Caller, asked: Collection[str] | None) -> list[str] | None:
    """The types of messages that this caller may see, out of those that the request names. None: all."""
    if may_see_instructions(caller):
        return None if asked is None else list(asked)
    return types_for_strangers(asked)


@dataclass(frozen=True, kw_only=True)
class MessageAnswers:
    """Pages of messages as JSON of Letta's wire."""

    lists: MessageLists
    runs: RunStore

    async def page(
        self, of: MessageFilter, page: Page, types: Collection[str] | None, *, turned: bool = False
    ) -> list[dict[str, Any]]:
        """The wire's messages of a page, oldest first; with `turned`, in the order that the request names.

        The cursors are ids of messages: `after` means newer and `before` older, in either order. The page is full when
        it has as many messages as its limit of which a part is of the types.
        """

        def is_wanted(message: Message) -> bool:
            return types is None or is_shown(message, types)

        found = await self.lists.page(
            of,
            limit=page.limit,
            before=None if page.before is None else MessageId(page.before),
            after=None if page.after is None else MessageId(page.after),
            order="asc" if page.ascending else "desc",
            is_wanted=is_wanted,
        )
        return await wire_messages_beside(found[::-1] if turned and not page.ascending else found, types)

    async def of_run(self, run: Run, page: Page, caller: Caller) -> list[dict[str, Any]]:
        """The wire's messages of one page of a run's own messages, oldest first, of the types that its submission asked
        for.

        A run that is still queued has added no messages. The page then shows its input, with the ids that the messages
        will have. A run that asks a model a single question never adds messages, so its page shows the question.
        """
        types = types_for(caller, run.options.shown_types)
        if run.turn is not None and run.options.generation is None:
            return await self.page(MessageFilter(run.project_id, run_id=run.id), page, types)
        waiting = await self.runs.waiting_input(run)
        places = {message.id: place for place, message in enumerate(waiting)}
        begin = 0 if page.after is None else places.get(MessageId(page.after), -1) + 1
        end = len(waiting) if page.before is None else places.get(MessageId(page.before), len(waiting))
        wanted = [message for message in waiting[begin:end] if types is None or is_shown(message, types)]
        found = wanted[: page.limit] if page.ascending else wanted[-page.limit :]
        return await wire_messages_beside(found, types)


async def wire_messages_beside(messages: Sequence[Message], types: Collection[str] | None) -> list[dict[str, Any]]:
    """`wire_messages` for many messages. A thread renders a long list."""
    return await beside(partial(wire_messages, messages, types), CHARACTERS_OF_A_VALUE * parts_of(messages))
