"""Conversations for clients of the Responses API."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from api.input_limits import InputLimits
from api.openai.response_items_list import conversation_items, items_of
from api.openai.response_threads import ResponseThreads
from api.openai.responses_input import read_input
from shared.concurrency import Clock
from shared.domain.conversations import Conversation
from shared.domain.errors import InvalidRequest, NotFound
from shared.domain.ids import ConversationId, IdMaker, ProjectId, RunId, ThreadId
from shared.domain.messages import AssistantMessage, NewMessage, UserMessage
from shared.sql.definitions.conversations import ConversationStore
from shared.sql.history.messages import FIRST_TURN, MessageStore
from shared.sql.runs.approvals import ApprovalStore

AGENT_ID = "agent_id"
"""The pair of a conversation's metadata that names its agent."""


@dataclass(frozen=True, kw_only=True)
class ConversationService:
    """Begins, reads, changes and deletes conversations."""

    conversations: ConversationStore
    messages: MessageStore
    approvals: ApprovalStore
    threads: ResponseThreads
    input_limits: InputLimits
    clock: Clock
    ids: IdMaker

    async def create(
        self, project_id: ProjectId, items: Sequence[Mapping[str, Any]], metadata: dict[str, str]
    ) -> Conversation:
        """Begins a conversation with these items. Raises `InvalidRequest`, and `UnknownModel` for its agent."""
        agent = await self.threads.agent_of_conversation(project_id, metadata.get(AGENT_ID))
        now = self.clock.now()
        begun = Conversation(
            id=self.ids.conversation(),
            project_id=project_id,
            agent_id=agent.id,
            metadata=metadata,
            created_at=now,
            updated_at=now,
        )
        copies = {FIRST_TURN: await self._read(project_id, items)} if items else None
        return await self.conversations.create(begun, system_message_id=self.ids.message(), copies=copies)

    async def get(self, project_id: ProjectId, conversation_id: ConversationId) -> Conversation:
        """One conversation. Raises `NotFound`."""
        return await self.conversations.get(project_id, conversation_id)

    async def describe(
        self, project_id: ProjectId, conversation_id: ConversationId, metadata: dict[str, str]
    ) -> Conversation:
        """Changes a conversation's pairs; its agent stays. Raises `NotFound`."""

        def change(conversation: Conversation) -> Conversation:
            return replace(conversation, metadata=metadata)

        return await self.conversations.update(project_id, conversation_id, change, self.clock.now())

    async def delete(self, project_id: ProjectId, conversation_id: ConversationId) -> None:
        """Deletes a conversation with its runs. Raises `NotFound`."""
        await self.conversations.delete(project_id, conversation_id)

    async def items(self, project_id: ProjectId, conversation_id: ConversationId) -> list[dict[str, Any]]:
        """The items in its context, oldest first. Raises `NotFound`."""
        await self.conversations.get(project_id, conversation_id)
        return conversation_items(await self.messages.context(project_id, ThreadId(conversation_id)))

    async def take_out(self, project_id: ProjectId, conversation_id: ConversationId, item_id: str) -> Conversation:
        """Takes an item out of the conversation's context. Raises `NotFound`, and `InvalidRequest` for one that belongs
        to a call: calls and their results stay together."""
        conversation = await self.conversations.get(project_id, conversation_id)
        thread_id = ThreadId(conversation_id)
        for message in await self.messages.context(project_id, thread_id):
            if item_id not in [item["id"] for item in items_of(message.run_id or RunId(thread_id), message)]:
                continue
            is_text = isinstance(message.body, UserMessage) or (
                isinstance(message.body, AssistantMessage) and not message.body.tool_calls
            )
            if not is_text:
                raise InvalidRequest("calls and their results cannot be deleted one by one", field="item_id")
            await self.messages.take_out(project_id, thread_id, message.id)
            return conversation
        raise NotFound(f"Item with id '{item_id[:100]}' not found in the conversation.")

    async def add(
        self, project_id: ProjectId, conversation_id: ConversationId, items: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Stores items behind the last one; the items as they are listed. Raises `NotFound` and `InvalidRequest`."""
        conversation = await self.conversations.get(project_id, conversation_id)
        new = await self._read(project_id, items)
        waiting = await self.approvals.waiting_on_thread(project_id, ThreadId(conversation_id))
        if waiting:
            asked = waiting[0]
            raise InvalidRequest(
                f"the call {asked.tool_call_id} of {asked.tool_name} is open: a response has to answer it first",
                field="items",
            )
        await self.messages.append(project_id, conversation.agent_id, new, conversation_id=conversation_id)
        return [item for message in new for item in items_of(RunId(conversation_id), message)]

    async def _read(self, project_id: ProjectId, items: Sequence[Mapping[str, Any]]) -> list[NewMessage]:
        given = read_input(await self.threads.with_items(project_id, items))
        if given.answers_calls:
            raise InvalidRequest("items: results need the calls that they are of, before them", field="items")
        if given.compacts:
            raise InvalidRequest("items: only a response compacts, so it takes the compaction_trigger", field="items")
        self.input_limits.refuse_long_messages(given.texts())
        now = self.clock.now()
        return [NewMessage(id=self.ids.message(), created_at=now, body=body) for body in (*given.story, *given.said)]
