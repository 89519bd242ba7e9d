"""Finds the place where a response continues: a new thread, the end of the previous response, or a conversation."""

import dataclasses
import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple
from uuid import UUID

from msgspec.structs import replace

from api.offered_models import OfferedModels
from api.openai.response_fold import AGAIN
from api.openai.response_items import approval_item_id, call_item_id, conversation_items, first_open_call, items_of
from api.openai.response_object import conversation_id_of, message_id_of, response_id, run_id_of
from api.openai.responses_input import ResponseInput, decisions_on, no_request, reference_of
from api.openai.responses_request import ResponseRequest
from api.runs.command import AgentThreads, ReadDecisions
from shared.concurrency import Clock
from shared.domain.agents import Agent, ModelOptions
from shared.domain.approvals import Approval, ReopenedTurn
from shared.domain.errors import InvalidRequest, NotFound, UnknownModel, UnknownPrevious
from shared.domain.ids import AgentId, ConversationId, IdMaker, MessageId, ProjectId, RunId, ThreadId, is_id
from shared.domain.lifecycle import TERMINAL, RunStatus
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    Decision,
    Message,
    MessageBody,
    NewMessage,
    SystemMessage,
    ToolCall,
    ToolReturn,
    ToolReturns,
    UserMessage,
)
from shared.domain.models import split_handle
from shared.domain.runs import Run
from shared.domain.settling import PARKED, open_calls
from shared.domain.threads import copy_of
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.history.messages import MessageStore
from shared.sql.paging import Page
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.run_store import ANYWHERE, Place, RunStore

USUAL_PROVIDER = "openai"
"""The provider of a model whose name has none."""

_OF_OPENAI = re.compile(r"(?:gpt|chatgpt|codex|o\d|ft:|computer-use)", re.IGNORECASE)
"""The beginnings of the names of OpenAI's models."""

UNASKED_MODEL = "openai/gpt-5-mini"
"""The hidden agent's own model. It is never used: each response names its own."""

HIDDEN_NAME = "Responses of plain models"

_NAMES = "name an agent (agent-…) or <provider>/<model>"


class ResponseThread(NamedTuple):
    """The place where a response continues, and its decisions there."""

    agent: Agent
    model: str | None
    """The handle that the request names in place of the agent's own model."""
    is_plain: bool
    """Whether the request addresses only a model: the agent is the project's hidden one, without memory and tools."""
    options: ModelOptions
    """Values for the model options that the request omits."""
    conversation_id: ConversationId | None = None
    thread: ThreadId | None = None
    place: Place = ANYWHERE
    decisions: ReadDecisions | None = None


@dataclass(frozen=True, kw_only=True)
class ResponseThreads:
    """Finds threads. Errors are `InvalidRequest`, `UnknownModel`, `UnknownPrevious` and `NotFound`."""

    agents: AgentEditor
    threads: AgentThreads
    models: OfferedModels
    runs: RunStore
    messages: MessageStore
    approvals: ApprovalStore
    clock: Clock
    ids: IdMaker

    async def find(
        self, project_id: ProjectId, request: ResponseRequest, given: ResponseInput, *, forks: bool
    ) -> ResponseThread:
        """The place where the request's response continues. `forks`: another response has already continued from the
        previous response."""
        if request.previous_response_id is not None:
            return await self._behind(project_id, request, given, forks=forks)
        if request.conversation_name is not None:
            return await self._in_conversation(project_id, request, given)
        if given.answers_calls:
            raise InvalidRequest(_nothing_asked(given), field="input")
        if request.model is None:
            raise InvalidRequest("model is required: an agent's id, or <provider>/<model>", field="model")
        found = await self.of_model(project_id, request.model)
        return found._replace(place=Place(begins=True, history=self._new(given.story)))

    async def without_repetition(
        self, project_id: ProjectId, request: ResponseRequest, given: ResponseInput
    ) -> tuple[ResponseRequest, ResponseInput]:
        """The request and its input, without the items that the client repeats of the turn that waits for answers."""
        if request.conversation_name is not None and given.outputs:
            named = ThreadId(conversation_id_of(request.conversation_name) or "")
            return request, _news(given, await self.messages.context(project_id, named))
        return await self._at_question(project_id, request, given)

    async def _at_question(
        self, project_id: ProjectId, request: ResponseRequest, given: ResponseInput
    ) -> tuple[ResponseRequest, ResponseInput]:
        """If the input repeats and decides an approval request: the request, continuing that response, and its input
        after the approval request. Both are unchanged if the request names its place, or if none of the agent's newest
        calls waits for these decisions."""
        named, agent_id = request.previous_response_id or request.conversation_name, request.model or ""
        if named or given.since_asked is None or not is_id(agent_id, "agent"):
            return request, given
        waiting = await self.approvals.of_project(project_id, Page(limit=100), agent_id=AgentId(agent_id))
        asking = [one.run_id for one in waiting if approval_item_id(one.run_id, one.tool_call_id) in given.verdicts]
        if not asking:
            return request, given
        behind = request.model_copy(update={"previous_response_id": response_id(asking[0])})
        waits = {one.tool_call_id for one in waiting if one.run_id == asking[0] and one.client_side}
        # The outputs of the client's functions are history to a reader of the items alone, as their calls are repeated.
        repeated = [one for body in given.story if isinstance(body, ToolReturns) for one in body.returns]
        outputs = given.outputs | {
            one.tool_call_id: Decision(one.tool_call_id, "tool", tool_return=one.text, parts=one.parts, is_plain=True)
            for one in repeated
            if one.tool_call_id.rstrip(AGAIN) in waits
        }
        return behind, dataclasses.replace(given, story=[], said=given.since_asked, outputs=outputs)

    async def history_of(self, project_id: ProjectId, thread: ResponseThread) -> list[Message]:
        """The messages in the context of an existing thread; empty for a new one."""
        name = thread.thread or thread.conversation_id
        return [] if name is None else await self.messages.context(project_id, ThreadId(name))

    async def with_items(
        self, project_id: ProjectId, given: str | Sequence[Mapping[str, Any]] | None
    ) -> str | Sequence[Mapping[str, Any]] | None:
        """The input with each item id replaced by the item. Raises `NotFound` for an unknown id."""
        if given is None or isinstance(given, str) or not any(map(reference_of, given)):
            return given
        known = await self._items_named_in(project_id, given)
        items: list[Mapping[str, Any]] = []
        taken: set[str] = set()
        for item in given:
            named = reference_of(item)
            if named is None:
                items.append(item)
                continue
            found = known.get(named)
            if found is None:
                raise NotFound(
                    f"Item with id '{named[:100]}' not found. Send the item itself, or name its response with "
                    "previous_response_id."
                )
            # A message may consist of several items.
            if found["id"] not in taken:
                taken.add(found["id"])
                items.append(found)
        return items

    async def _items_named_in(
        self, project_id: ProjectId, given: Sequence[Mapping[str, Any]]
    ) -> dict[str, Mapping[str, Any]]:
        """The items of the messages to which the input refers, by each of their possible ids. The id of a call does not
        contain its place: calls are found by their outputs, and in the threads of the other named items."""
        named = [one for item in given if (one := reference_of(item)) is not None]
        named_by = defaultdict[MessageId | None, list[str]](list)
        for one in dict.fromkeys(named):
            named_by[message_id_of(one)].append(one)
        call_ids = [item["call_id"] for item in given if isinstance(item.get("call_id"), str)]
        asked = await self.approvals.of_calls(project_id, call_ids) if call_ids else []
        wanted = {one for one in (*named_by, *(one.message_id for one in asked)) if one is not None}
        # An approval request is ignored at any place.
        items: dict[str, Mapping[str, Any]] = {
            one: {"type": "mcp_approval_request", "id": one} for one in named if one.startswith("mcpr_")
        }
        found = await self.messages.find(project_id, wanted) if wanted else []
        for message in found:
            own = {item["id"]: item for item in items_of(message.run_id or RunId(message.thread_id), message)}
            items |= own
            for one in named_by[message.id]:
                kind, _, rest = one.partition("_")
                base = f"{kind}_{rest.partition('_')[0]}"
                items.setdefault(one, {"type": "reasoning", "id": one} if kind == "rs" else own.get(base, {}))
        for thread_id in {message.thread_id for message in found} if any(one not in items for one in named) else ():
            items = _named_items(await self.messages.list_of_thread(project_id, thread_id)) | items
        return {item_id: item for item_id, item in items.items() if item}

    async def of_model(self, project_id: ProjectId, model: str) -> ResponseThread:
        """The agent that `model` names, or the project's hidden agent with that model."""
        if is_id(model, "agent"):
            try:
                agent = await self.agents.without_links(project_id, AgentId(model))
            except NotFound as error:
                raise UnknownModel(model, _NAMES) from error
            return ResponseThread(agent, None, is_plain=False, options=agent.options)
        handle = self.handle(model)
        return ResponseThread(await self._hidden(project_id, handle), handle, is_plain=True, options=ModelOptions())

    async def agent_of_conversation(self, project_id: ProjectId, agent_id: str | None) -> Agent:
        """The agent of a new conversation: the agent that the request names, else the project's hidden agent."""
        if agent_id is None:
            return await self._hidden(project_id, self.models.default or UNASKED_MODEL)
        if not is_id(agent_id, "agent"):
            raise InvalidRequest(
                f"metadata.agent_id is {agent_id[:100]!r}, which is no agent's id", field="metadata.agent_id"
            )
        return (await self.of_model(project_id, agent_id)).agent

    def handle(self, model: str) -> str:
        """The full name of a model that a request names without an agent. Raises `UnknownModel`, `InvalidRequest`."""
        if "/" not in model and not _OF_OPENAI.match(model):
            raise UnknownModel(model, _NAMES)
        named = model if "/" in model else f"{USUAL_PROVIDER}/{model}"
        handle = self.models.served(named) or named
        try:
            split_handle(handle)
        except ValueError as error:
            raise UnknownModel(model, f"{error}; {_NAMES}") from error
        return handle

    async def _hidden(self, project_id: ProjectId, handle: str) -> Agent:
        agent_id = hidden_agent_id(project_id)
        try:
            return await self.agents.without_links(project_id, agent_id)
        except NotFound:
            now = self.clock.now()
            agent = Agent(
                id=agent_id,
                project_id=project_id,
                name=HIDDEN_NAME,
                model=handle,
                system="",
                extra={"hidden": True},
                created_at=now,
                updated_at=now,
            )
            return await self.agents.ensure(agent, system_message_id=self.ids.message())

    async def _in_conversation(
        self, project_id: ProjectId, request: ResponseRequest, given: ResponseInput
    ) -> ResponseThread:
        named = conversation_id_of(request.conversation_name or "")
        if named is None:
            raise InvalidRequest("conversation must be the id of a conversation, conv_…", field="conversation")
        thread = await self.threads.find(project_id, named)
        open_call = first_open_call(thread.conversation.waiting if thread.conversation else [])
        if open_call is not None:
            raise InvalidRequest(
                f"No tool output found for function call {open_call.id}: it is an item of the conversation; add its "
                "output to the items, or delete it",
                field="conversation",
            )
        if given.story:
            raise InvalidRequest(
                "the conversation stores its own history: send new items only, not earlier answers", field="input"
            )
        found = self._with_model(thread.agent, project_id, request.model)
        waiting = await self.approvals.waiting_on_thread(project_id, thread.id)
        if thread.model_options is not None and not found.is_plain:
            found = found._replace(options=thread.model_options)
        return found._replace(
            model=found.model or thread.model or (thread.agent.model if found.is_plain else None),
            conversation_id=thread.conversation_id,
            decisions=_decisions(given, waiting),
        )

    def _with_model(self, agent: Agent, project_id: ProjectId, model: str | None) -> ResponseThread:
        """The agent of an existing thread, with the model that the request names."""
        is_plain = agent.id == hidden_agent_id(project_id)
        options = ModelOptions() if is_plain else agent.options
        if model is None or model == agent.id:
            return ResponseThread(agent, None, is_plain=is_plain, options=options)
        if is_id(model, "agent"):
            raise InvalidRequest(
                f"model is {model}, but the history belongs to {agent.id}. Create a conversation for another agent "
                'with metadata={"agent_id": …}',
                field="model",
            )
        # The stored window belongs to another model.
        return ResponseThread(agent, self.handle(model), is_plain, replace(options, context_window=None))

    async def _behind(
        self, project_id: ProjectId, request: ResponseRequest, given: ResponseInput, *, forks: bool
    ) -> ResponseThread:
        parent = await self._parent(project_id, request.previous_response_id or "")
        agent = await self.agents.without_links(project_id, parent.agent_id)
        found = self._with_model(agent, project_id, request.model)
        if found.is_plain and found.model is None:
            found = found._replace(model=parent.options.override_model)
        is_parked = parent.status is RunStatus.AWAITING_APPROVAL
        forks = forks or bool(given.story) or (parent.stop_reason == PARKED.stop_reason and not is_parked)
        if forks:
            return found._replace(place=await self._branch(parent, given))
        found = found._replace(
            conversation_id=parent.conversation_id,
            thread=None if parent.conversation_id is not None else parent.thread_id,
        )
        if is_parked:
            return found._replace(decisions=_decisions(given, await self.approvals.of_run(parent)))
        if given.answers_calls:
            raise InvalidRequest(_nothing_asked(given), field="input")
        return found._replace(place=Place(after=parent.id))

    async def _parent(self, project_id: ProjectId, named: str) -> Run:
        run_id = run_id_of(named)
        try:
            parent = None if run_id is None else await self.runs.get(project_id, run_id)
        except NotFound:
            parent = None
        if parent is None or not parent.can_be_followed:
            raise UnknownPrevious(f"Previous response with id '{named[:100]}' not found.")
        if parent.status not in TERMINAL and parent.status is not RunStatus.AWAITING_APPROVAL:
            raise UnknownPrevious(
                f"Previous response with id '{named[:100]}' has not ended: wait for it, or cancel it."
            )
        return parent

    async def _branch(self, parent: Run, given: ResponseInput) -> Place:
        """A new thread with a copy of the parent's, up to the parent's last message, and the messages that the request
        repeats after it. If the parent waits for decisions, the branch continues with the request's own answers."""
        history = _up_to(await self.messages.context(parent.project_id, parent.thread_id), parent)
        said = [message for message in history if not isinstance(message.body, SystemMessage)]
        if open_calls(history) is None:
            if given.answers_calls:
                raise InvalidRequest(_nothing_asked(given), field="input")
            copies = [copy_of(message, self.ids) for message in said]
            return Place(begins=True, history=[*copies, *self._new(given.story)])
        if given.story:
            raise InvalidRequest(
                "the previous response waits for answers to its calls: send those, not earlier answers", field="input"
            )
        asked = await self.approvals.of_run(parent)
        decided = {one.tool_call_id: one for one in decisions_on(given, asked)}
        self._refuse_expired(asked)
        earlier = [copy_of(message, self.ids) for message in said if message.turn != parent.turn]
        turn = [copy_of(message, self.ids) for message in said if message.turn == parent.turn]
        decisions = {one.id: decided[one.tool_call_id] for one in asked}
        return Place(begins=True, history=earlier, reopened=ReopenedTurn(parent.id, turn, decisions))

    def _refuse_expired(self, asked: Sequence[Approval]) -> None:
        """A branch must not approve calls whose approval has expired, or would have expired by now."""
        late = next((one for one in asked if one.expires_at is not None and one.expires_at <= self.clock.now()), None)
        if late is not None:
            raise InvalidRequest(
                f"the approval request {approval_item_id(late.run_id, late.tool_call_id)} (call of {late.tool_name}) "
                "has expired: ask the agent again",
                field="input",
            )

    def _new(self, bodies: Sequence[MessageBody]) -> list[NewMessage]:
        now = self.clock.now()
        return [NewMessage(id=self.ids.message(), created_at=now, body=body) for body in bodies]


def _named_items(history: Sequence[Message]) -> dict[str, dict[str, Any]]:
    """The items of a thread's calls by every id under which a response or a list shows them."""
    found = {item["id"]: item for item in conversation_items(history)}
    calls: dict[str, tuple[Message, ToolCall]] = {}
    edited: dict[str, str] = {}
    for message in history:
        match message.body:
            case AssistantMessage(tool_calls=made):
                for call in made:
                    calls[call.id] = (message, call)
                    own = call_item_id("mcp", _owner(message), message.step_id, call.id)
                    found[own] = {"type": "mcp_call", "id": own, "name": call.name, "arguments": call.arguments}
            case ApprovalResponse(decisions=decisions):
                edited |= {one.tool_call_id: one.edited_arguments for one in decisions if one.edited_arguments}
            case ToolReturns(returns=returns):
                known = [(one, *calls[one.tool_call_id]) for one in returns if one.tool_call_id in calls]
                for one, asking, call in known:
                    arguments = edited.get(call.id, call.arguments)
                    # An approved call is an item of the response that made it.
                    ids = [call_item_id("mcp", _owner(by), asking.step_id, call.id) for by in (asking, message)]
                    found |= {item_id: _made_call(item_id, call.name, arguments, one) for item_id in ids}
            case _:
                pass
    return found


def _owner(message: Message) -> RunId:
    return message.run_id or RunId(message.thread_id)


def _made_call(item_id: str, name: str, arguments: str, result: ToolReturn) -> dict[str, Any]:
    output, error = (result.text, None) if result.status == "success" else (None, result.text)
    of_call = {"name": name, "arguments": arguments, "output": output, "error": error}
    return {"id": item_id, "type": "mcp_call", **of_call}


def _up_to(history: Sequence[Message], parent: Run) -> Sequence[Message]:
    """The history at the end of the parent. If a summary has replaced the parent's messages, the history up to its
    turn."""
    last = max((place for place, message in enumerate(history) if message.run_id == parent.id), default=None)
    if last is not None:
        return history[: last + 1]
    return [message for message in history if message.turn <= (parent.turn or 0)]


def _news(given: ResponseInput, history: Sequence[Message]) -> ResponseInput:
    """The input without the messages and outputs that the conversation's current turn already has. The AI SDK sends all
    steps of a turn with each of them."""
    turn = [message.body for message in history if message.turn == history[-1].turn]
    answered = {one.tool_call_id for body in turn if isinstance(body, ToolReturns) for one in body.returns}
    asked = [(body.role, body.content) for body in turn if isinstance(body, UserMessage)]
    same = takewhile(lambda pair: (pair[0].role, pair[0].content) == pair[1], zip(given.said, asked, strict=False))
    outputs = {call_id: one for call_id, one in given.outputs.items() if call_id not in answered}
    return dataclasses.replace(given, said=given.said[len(list(same)) :], outputs=outputs) if outputs else given


def _decisions(given: ResponseInput, waiting: Sequence[Approval]) -> ReadDecisions | None:
    if not waiting and not given.answers_calls:
        return None

    def read(asked: Sequence[Approval]) -> list[Decision]:
        return decisions_on(given, [one for one in asked if one.decision is None])

    read(waiting)  # invalid decisions are refused before the run is stored
    return read


def _nothing_asked(given: ResponseInput) -> str:
    call_id = next(iter(given.outputs), None)
    if call_id is not None:
        return f"No tool call found for function call output with call_id {call_id}."
    return f"{no_request(next(iter(given.verdicts)))} Name the response that asked with previous_response_id."


def hidden_agent_id(project_id: ProjectId) -> AgentId:
    """The id of the hidden agent to which the responses of a project's plain models belong."""
    digest = hashlib.sha256(f"responses of plain models\n{project_id}".encode()).digest()
    return AgentId(f"agent-{UUID(bytes=digest[:16], version=4)}")
