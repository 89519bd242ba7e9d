"""Conversations for clients of the Responses API."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from api.input_limits import InputLimits
from api.openai.response_items import MOST_WAITING, Arranged, answered, arranged, conversation_items, items_of, without
from api.openai.response_threads import ResponseThreads
from api.openai.responses_input import ResponseInput, read_input
from api.runs.cancel import CancelService
from shared.concurrency import Clock
from shared.domain.errors import InvalidRequest, NotFound
from shared.domain.ids import ConversationId, IdMaker, ProjectId, RunId, ThreadId
from shared.domain.messages import AssistantMessage, MessageBody, NewMessage, ToolReturns, UserMessage
from shared.domain.threads import Conversation
from shared.sql.definitions.conversations import ConversationStore
from shared.sql.history.messages import FIRST_TURN, MessageStore
from shared.sql.runs.approvals import ApprovalStore

AGENT_ID = "agent_id"
"""The metadata key that names a conversation's agent."""


@dataclass(frozen=True, kw_only=True)
class ConversationService:
    """Creates, reads, changes and deletes conversations."""

    conversations: ConversationStore
    messages: MessageStore
    approvals: ApprovalStore
    threads: ResponseThreads
    cancels: CancelService
    input_limits: InputLimits
    clock: Clock
    ids: IdMaker

    async def create(
        self, project_id: ProjectId, items: Sequence[Mapping[str, Any]], metadata: dict[str, str]
    ) -> Conversation:
        """Creates a conversation with these items. Raises `InvalidRequest`, and `UnknownModel` for its agent."""
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
        joined = self._joined(begun, await self._read(project_id, items))
        begun = replace(begun, waiting=joined.waiting)
        copies = {FIRST_TURN: joined.entering} if joined.entering else None
        return await self.conversations.create(begun, system_message_id=self.ids.message(), copies=copies)

    async def get(self, project_id: ProjectId, conversation_id: ConversationId) -> Conversation:
        """One conversation. Raises `NotFound`."""
        return await self.conversations.get(project_id, conversation_id)

    async def describe(
        self, project_id: ProjectId, conversation_id: ConversationId, metadata: dict[str, str]
    ) -> Conversation:
        """Changes a conversation's metadata; its agent stays. Raises `NotFound`."""

        def change(conversation: Conversation) -> Conversation:
            return replace(conversation, metadata=metadata)

        return await self.conversations.update(project_id, conversation_id, change, self.clock.now())

    async def delete(self, project_id: ProjectId, conversation_id: ConversationId) -> None:
        """Cancels a conversation's active runs, and deletes the conversation with its runs. Raises `NotFound`."""
        found = await self.conversations.get(project_id, conversation_id)
        await self.cancels.cancel_before_deletion(project_id, found.agent_id, ThreadId(conversation_id))
        await self.conversations.delete(project_id, conversation_id)

    async def items(self, project_id: ProjectId, conversation_id: ConversationId) -> list[dict[str, Any]]:
        """The items in its context, and the items that wait for outputs, oldest first. Raises `NotFound`."""
        conversation = await self.conversations.get(project_id, conversation_id)
        known = conversation_items(await self.messages.context(project_id, ThreadId(conversation_id)))
        return [*known, *_shown(conversation_id, conversation.waiting)]

    async def take_out(self, project_id: ProjectId, conversation_id: ConversationId, item_id: str) -> Conversation:
        """Removes an item from the conversation. Raises `NotFound`, and `InvalidRequest` for an item that belongs to a
        call in its context: calls and their results stay together."""
        conversation = await self.conversations.get(project_id, conversation_id)
        thread_id = ThreadId(conversation_id)
        if without(conversation.waiting, RunId(thread_id), item_id) is not None:
            return await self._take_out_of_waiting(project_id, conversation_id, item_id)
        for message in await self.messages.context(project_id, thread_id):
            if item_id not in [item["id"] for item in items_of(message.run_id or RunId(thread_id), message)]:
                continue
            is_text = isinstance(message.body, UserMessage) or (
                isinstance(message.body, AssistantMessage) and not message.body.tool_calls
            )
            if not is_text:
                raise InvalidRequest("calls and their results cannot be deleted separately", field="item_id")
            await self.messages.take_out(project_id, thread_id, message.id)
            return conversation
        raise NotFound(f"Item with id '{item_id[:100]}' not found in the conversation.")

    async def add(
        self, project_id: ProjectId, conversation_id: ConversationId, items: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Stores items after the last one. Returns them as list items. Raises `NotFound` and `InvalidRequest`."""
        await self.conversations.get(project_id, conversation_id)
        given = await self._read(project_id, items)
        asked = next(iter(await self.approvals.waiting_on_thread(project_id, ThreadId(conversation_id))), None)
        if asked is not None:
            raise InvalidRequest(
                f"the call {asked.tool_call_id} of {asked.tool_name} has no result yet: a response must bring it first",
                field="items",
            )
        added: list[dict[str, Any]] = []

        def join(conversation: Conversation) -> tuple[Conversation, Sequence[NewMessage]]:
            known = [item["id"] for item in _shown(conversation_id, conversation.waiting)]
            joined = self._joined(conversation, given)
            shown = _shown(conversation_id, [*joined.entering, *joined.waiting])
            added[:] = [item for item in shown if item["id"] not in known]
            return replace(conversation, waiting=joined.waiting), joined.entering

        await self.conversations.extend(project_id, conversation_id, join, self.clock.now())
        return added

    async def _take_out_of_waiting(
        self, project_id: ProjectId, conversation_id: ConversationId, item_id: str
    ) -> Conversation:
        def change(conversation: Conversation) -> tuple[Conversation, Sequence[NewMessage]]:
            left = without(conversation.waiting, RunId(conversation_id), item_id)
            found = arranged(conversation.waiting if left is None else left)
            return replace(conversation, waiting=found.waiting), found.entering

        return await self.conversations.extend(project_id, conversation_id, change, self.clock.now())

    async def _read(self, project_id: ProjectId, items: Sequence[Mapping[str, Any]]) -> ResponseInput:
        given = read_input(await self.threads.with_items(project_id, items), leaves_calls_open=True)
        if given.compacts:
            raise InvalidRequest(
                "items: send the compaction_trigger to a response: only a response compacts", field="items"
            )
        for text in given.texts():
            self.input_limits.refuse_long_text(text, "items")
        return given

    def _joined(self, conversation: Conversation, given: ResponseInput) -> Arranged:
        """The waiting items of the conversation, followed by the new ones. Raises `InvalidRequest`."""
        new = [self._message(body) for body in (*given.story, *given.said)]
        made = [self._message(ToolReturns([])) for _ in given.outputs]
        found = arranged(answered([*conversation.waiting, *new], given.outputs, made))
        if len(found.waiting) > MOST_WAITING:
            raise InvalidRequest(
                f"more than {MOST_WAITING} messages would wait for outputs of calls: send these outputs, "
                "or delete the calls",
                field="items",
            )
        return found

    def _message(self, body: MessageBody) -> NewMessage:
        return NewMessage(id=self.ids.message(), created_at=self.clock.now(), body=body)


def _shown(conversation_id: ConversationId, waiting: Sequence[NewMessage]) -> list[dict[str, Any]]:
    """Items of the conversation that belong to no run."""
    return [item for message in waiting for item in items_of(RunId(conversation_id), message)]
