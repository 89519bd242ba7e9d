"""Runs in a database, in the state in which a test begins: submitted, claimed, parked or decided."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, get_args

from shared.domain.approvals import Approval, hash_of
from shared.domain.effects import SettledEffect
from shared.domain.ids import ConversationId, IdMaker, Seq, ThreadId
from shared.domain.journal import JournalEntry
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.log_writer import LogTail, first_seq_of
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    Decision,
    Message,
    MessageBody,
    NewMessage,
    ToolCall,
    ToolReturn,
    ToolReturns,
    UserMessage,
)
from shared.domain.runs import CancelRequest, Run, SubmissionKeys, Usage
from shared.domain.settling import RunEnd, RunOutcome
from shared.domain.threads import Conversation
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.agents import AgentStore
from shared.sql.engine import Database
from shared.sql.history.message_lists import MessageFilter, MessageLists
from shared.sql.history.messages import MessageStore
from shared.sql.runs.approvals import ApprovalStore, requests_of
from shared.sql.runs.callbacks import Callback, CallbackStore
from shared.sql.runs.checkpoints import Checkpoint, CheckpointStore
from shared.sql.runs.children import ChildStore
from shared.sql.runs.decisions import DecisionStore
from shared.sql.runs.inbox import InboxStore
from shared.sql.runs.listing import RunListing
from shared.sql.runs.retention import RetentionStore
from shared.sql.runs.run_store import RunStore
from shared.sql.runs.settlement import Settled, Settlement, SettlementStore
from shared.sql.runs.steps import EventStore, StepStore
from shared.sql.runs.webhooks import WebhookEndpoint
from tests.kit.runs.definitions import NOW, PROJECT, some_agent
from tests.kit.services.databases import open_database, patient_database

IDS = IdMaker()
AGENT = some_agent()
THREAD = ThreadId("conv-1")
SOME_KEYS = SubmissionKeys(["otids:1"])
IN_THREAD = MessageFilter(PROJECT, thread_id=THREAD)
CANCEL = CancelRequest(requested_at=NOW, actor="ada", reason="enough")

STOP_REASONS = {RunTrigger.COMPLETE: "end_turn", RunTrigger.FAIL: "error", RunTrigger.CANCEL: "cancelled"}


def message(body: MessageBody, **fields: Any) -> NewMessage:
    defaults: dict[str, Any] = {"id": IDS.message(), "created_at": NOW, "body": body}
    return NewMessage(**(defaults | fields))


def said(text: str) -> NewMessage:
    """Returns a user's message."""
    return message(UserMessage(content=text))


def answer(text: str = "", *calls: ToolCall, **fields: Any) -> NewMessage:
    return message(AssistantMessage(text=text, tool_calls=list(calls)), **fields)


def call(call_id: str, *, needs_approval: bool = False) -> ToolCall:
    return ToolCall(id=call_id, name="look", arguments='{"q": 1}', needs_approval=needs_approval)


def found(call_id: str, text: str = "found") -> ToolReturn:
    return ToolReturn(tool_call_id=call_id, tool_name="look", status="success", text=text)


def results(*returns: ToolReturn) -> NewMessage:
    return message(ToolReturns(returns=list(returns)))


def decided(*decisions: Decision) -> NewMessage:
    return message(ApprovalResponse(decisions=list(decisions)))


def approve(call_id: str) -> Decision:
    return Decision(tool_call_id=call_id, approve=True)


def some_run(**fields: Any) -> Run:
    defaults: dict[str, Any] = {
        "id": IDS.run(),
        "project_id": PROJECT,
        "agent_id": AGENT.id,
        "thread_id": THREAD,
        "created_at": NOW,
    }
    return Run(**(defaults | fields))


def next_seq(run: Run) -> Seq:
    """Returns the next number of the run's owner, if SQL has all events of the run."""
    return max(Seq(run.last_seq + 1), first_seq_of(run.fence))


def checkpoint(run: Run, *messages: NewMessage, entries: Sequence[bytes] = (), **fields: Any) -> Checkpoint:
    defaults: dict[str, Any] = {
        "now": NOW,
        "messages": list(messages),
        "tail": LogTail(next_seq(run), entries),
        "usage": Usage(),
        "step_count": 1,
    }
    return Checkpoint(**(defaults | fields))


def some_entry(number: int = 1, **fields: Any) -> JournalEntry:
    """An entry of a journal."""
    defaults: dict[str, Any] = {
        "number": number,
        "kind": "step",
        "name": "plan",
        "branch": "",
        "ordinal": number,
        "hash": "h",
        "state": "done",
        "result": b"1",
        "started_at": NOW,
        "ended_at": NOW,
        "idempotency_key": f"hf-{number}",
    }
    return JournalEntry(**(defaults | fields))


def some_settled_effect(**fields: Any) -> SettledEffect:
    """A probe's verdict on a lost call."""
    defaults: dict[str, Any] = {
        "idempotency_key": "hf-1",
        "call_id": "a",
        "by": "probe",
        "outcome": "happened",
        "result": "found",
        "at": NOW,
    }
    return SettledEffect(**(defaults | fields))


def request_of(run: Run, asking: NewMessage, tool_call: ToolCall, **fields: Any) -> Approval:
    """Returns the approval request of one of an answer's calls."""
    defaults: dict[str, Any] = {
        "id": IDS.approval(),
        "project_id": run.project_id,
        "agent_id": run.agent_id,
        "thread_id": run.thread_id,
        "run_id": run.id,
        "message_id": asking.id,
        "tool_call_id": tool_call.id,
        "tool_name": tool_call.name,
        "arguments": tool_call.arguments,
        "arguments_hash": hash_of(tool_call.arguments),
        "client_side": False,
        "asked_at": NOW,
    }
    return Approval(**(defaults | fields))


def run_end(trigger: RunTrigger, **fields: Any) -> RunEnd:
    """Returns the end of a run by this trigger."""
    defaults: dict[str, Any] = {"trigger": trigger, "stop_reason": STOP_REASONS[trigger]}
    return RunEnd(**(defaults | fields))


def ending(trigger: RunTrigger, run: Run, **fields: Any) -> Settlement:
    """Returns the settlement of a run of which SQL has all events."""
    defaults: dict[str, Any] = {
        "end": run_end(trigger),
        "now": NOW,
        "tail": LogTail(next_seq(run), ()),
    }
    return Settlement(**(defaults | fields))


def some_conversation(conversation_id: ConversationId, *, name: str) -> Conversation:
    """Returns a conversation of the agent under a client's name."""
    return Conversation(
        id=conversation_id, project_id=PROJECT, agent_id=AGENT.id, name=name, created_at=NOW, updated_at=NOW
    )


def callback_of(run: Run) -> Callback:
    """The run's callback, as a process claims it for its first attempt."""
    return Callback(run.id, run.callback_url or "", 1, run.project_id)


def some_endpoint(**fields: Any) -> WebhookEndpoint:
    """Returns a webhook endpoint that subscribes to every event."""
    defaults: dict[str, Any] = {
        "id": IDS.webhook(),
        "project_id": PROJECT,
        "dialect": "openai.responses",
        "name": "mine",
        "url": "http://127.0.0.1/events",
        "outcomes": list(get_args(RunOutcome)),
        "secret": "whsec_AAAA",
        "secret_hint": "AAAA",
        "created_at": NOW,
        "updated_at": NOW,
    }
    return WebhookEndpoint(**(defaults | fields))


@dataclass(frozen=True)
class Stores:
    """Every store of runs on one database, and methods that bring a run into a state."""

    database: Database

    @property
    def runs(self) -> RunStore:
        return RunStore(self.database)

    @property
    def settlements(self) -> SettlementStore:
        return SettlementStore(self.database, IDS)

    @property
    def checkpoints(self) -> CheckpointStore:
        return CheckpointStore(self.database)

    @property
    def agents(self) -> AgentStore:
        return AgentStore(self.database)

    @property
    def messages(self) -> MessageStore:
        return MessageStore(self.database)

    @property
    def lists(self) -> MessageLists:
        return MessageLists(self.database)

    @property
    def listing(self) -> RunListing:
        return RunListing(self.database)

    @property
    def approvals(self) -> ApprovalStore:
        return ApprovalStore(self.database)

    @property
    def inbox(self) -> InboxStore:
        return InboxStore(self.database)

    @property
    def children(self) -> ChildStore:
        return ChildStore(self.database)

    @property
    def callbacks(self) -> CallbackStore:
        return CallbackStore(self.database)

    @property
    def events(self) -> EventStore:
        return EventStore(self.database)

    @property
    def steps(self) -> StepStore:
        return StepStore(self.database)

    @property
    def retention(self) -> RetentionStore:
        return RetentionStore(self.database)

    @property
    def decisions(self) -> DecisionStore:
        return DecisionStore(self.database, IDS)

    async def submitted(self, *given: NewMessage, **fields: Any) -> Run:
        return (await self.runs.submit(some_run(**fields), given or [said("hi")])).run

    async def claim(self, run: Run) -> Run:
        """Claims the run as its newest dispatch would."""
        known = await self.runs.look_up(run.id)
        claimed = await self.runs.claim(run.id, known.dispatch, IDS.claim(), NOW)
        assert claimed is not None, f"{run.id} could not be claimed"
        return claimed

    async def taken_over(self, run: Run) -> Run:
        """Has another worker claim the run. Returns the run as stored then."""
        await self.claim(run)
        return await self.runs.look_up(run.id)

    async def delivered(self, run: Run, *entries: bytes) -> list[NewMessage]:
        """Delivers the messages that wait for the run. Returns them."""
        waiting = await self.inbox.waiting(run.id)
        tail = LogTail(next_seq(await self.runs.look_up(run.id)), entries)
        await self.inbox.deliver(run, waiting, tail, NOW)
        return waiting.messages

    async def claimed(self, *given: NewMessage, **fields: Any) -> Run:
        return await self.claim(await self.submitted(*given, **fields))

    async def recorded(self, run: Run, *messages: NewMessage, starting: Sequence[ToolCall] = ()) -> Run:
        """Stores a checkpoint. Returns the run as stored then."""
        await self.checkpoints.record(run, checkpoint(run, *messages), starting=starting)
        return await self.runs.look_up(run.id)

    async def parked(self, *calls: ToolCall, **fields: Any) -> Run:
        """Returns a run that waits for those of the calls that need approval."""
        return await self.park(await self.claimed(**fields), *calls)

    async def park(self, run: Run, *calls: ToolCall) -> Run:
        asking = answer("may I?", *calls)
        asked = [request_of(run, asking, tool_call) for tool_call in calls if tool_call.needs_approval]
        await self.settlements.park(run, checkpoint(run, asking), asked)
        return await self.runs.look_up(run.id)

    async def decide(self, *decisions: Decision, more: Sequence[NewMessage] = (), **fields: Any) -> Run:
        """Decides. Returns the run that continues the parked one."""
        given = [decided(*decisions), *more]
        return (await self.decisions.decide_all(some_run(**fields), given, by="ada")).run

    async def settle(self, run: Run, trigger: RunTrigger = RunTrigger.COMPLETE, **fields: Any) -> Settled:
        return await self.settlements.settle(run, ending(trigger, run, **fields))

    async def ended(self, trigger: RunTrigger = RunTrigger.COMPLETE, **fields: Any) -> Run:
        """Returns a run that a worker has claimed and ended."""
        return (await self.settle(await self.claimed(**fields), trigger)).run

    async def status_of(self, run: Run) -> RunStatus:
        return (await self.runs.look_up(run.id)).status

    async def asked(self, run: Run) -> list[Approval]:
        """The run's requests, decided or not, in the order of their calls."""
        async with self.database.read() as connection:
            return await requests_of(connection, run.id)

    async def last_stop_reason(self) -> str | None:
        """Returns how the agent's newest run ended."""
        return (await AgentEditor(self.database).get(PROJECT, AGENT.id)).last_stop_reason

    async def context(self, thread_id: ThreadId = THREAD) -> list[MessageBody]:
        """Returns the messages that the model would get."""
        return [stored.body for stored in await self.messages.context(PROJECT, thread_id)]


def texts_of(history: Sequence[Message]) -> list[str]:
    """Returns the texts of a history, without calls and results."""
    texts: list[str] = []
    for stored in history:
        match stored.body:
            case UserMessage(content=str(text)) | AssistantMessage(text=text):
                texts.append(text)
            case _:
                continue
    return texts


@asynccontextmanager
async def stored_runs(url: str) -> AsyncGenerator[Stores]:
    """Yields the stores on the empty database of `url`, with one agent."""
    async with open_database(url) as database:
        await AgentEditor(database).create(AGENT, system_message_id=IDS.message())
        yield Stores(database)


@asynccontextmanager
async def second_process(stores: Stores) -> AsyncGenerator[Stores]:
    """Yields the stores of the same database with connections of their own, as another process has them."""
    database = patient_database(stores.database.url.render_as_string(hide_password=False))
    try:
        yield Stores(database)
    finally:
        await database.aclose()
