"""Runs and their steps, as stored."""

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

import msgspec

from shared.domain.agents import Agent, Block, ClientSkill, CompactionOptions, ModelOptions, render_system, with_skills
from shared.domain.approvals import WaitingCalls
from shared.domain.errors import CancelMode
from shared.domain.ids import AgentId, ConversationId, Fence, MessageId, ProjectId, RunId, Seq, StepId, ThreadId
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import AssistantMessage, NewMessage, ToolCall
from shared.domain.run_trees import ParentCall
from shared.domain.tools import ClientTool, ToolChoice

# Runs that ask a model one question at a client's request, and do nothing else.
#
# The model gets no history, no memory and no tools of the agent. Like a call of a tool (see `TOOL_RUN`), such a run is
# no part of a conversation: it has a thread of its own, so it neither waits for the agent's other runs nor delays them,
# even while one of them waits for a person.
#
# Its input is the question. The answer is in the run's log, and nowhere else.


MESSAGES: Final = "send_message"
"""The stored type of runs that answer messages. Rows without a type have this one."""

GENERATE: Final = "generate"
"""The stored type of these runs (`RunOptions.run_type`)."""

DEFAULT_SYSTEM: Final = "You are a helpful assistant."
"""The instructions for a question without any."""

ANSWER_TOOL: Final = "structured_output"
"""The tool that a model has to call when its answer is to fit a schema. It exists for the model alone."""


class Generation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The client's options of the question."""

    response_schema: dict[str, Any] | None = None
    """The JSON Schema of an object that the answer has to fit."""


# Compaction: a summary replaces messages that no longer fit into the context.


class Compaction(msgspec.Struct, frozen=True):
    """The change that a compaction makes: the summary replaces these messages in the context."""

    gone: list[MessageId]
    summary: NewMessage


# How a repeated submission is recognised.
#
# A client can name its submissions: by the otids of their messages, or by an Idempotency-Key. A name belongs to one
# content for ever. Other clients may mark a repetition, as generated SDKs do; then an equal body since the time of the
# first try is the same submission.


IDEMPOTENCY_KEY = "idempotency-key:"
"""The beginning of a submission key that holds a client's Idempotency-Key."""

OTIDS = "otids:"
"""The beginning of a submission key that holds the otids of all messages of a submission, sorted, with commas
between."""

MAX_OTIDS_CHARS = 600
"""Characters. A longer list of otids is known by its hash, because a database's index has no room for it."""


def key_of_otids(otids: Iterable[str]) -> str:
    """The key by which a repeated submission with these otids is recognised."""
    listed = ",".join(sorted(map(quoted_otid, otids)))
    if len(listed) > MAX_OTIDS_CHARS:
        listed = f"#{hashlib.sha256(listed.encode()).hexdigest()}"
    return OTIDS + listed


def has_otid(key: str, otid: str) -> bool:
    """Whether a key is of a submission with this otid. False for a list that is known by its hash."""
    return quoted_otid(otid) in key.removeprefix(OTIDS).split(",")


def quoted_otid(otid: str) -> str:
    """The otid with its commas and its `#` quoted: a comma separates otids, and a `#` begins a hash."""
    return otid.replace("%", "%25").replace(",", "%2C").replace("#", "%23")


def shown_name(key: str) -> str:
    """The name that a key holds, as an error shows it."""
    if key.startswith(IDEMPOTENCY_KEY):
        return f"the Idempotency-Key {key.removeprefix(IDEMPOTENCY_KEY)!r}"
    return f"the otid {key.removeprefix(OTIDS)!r}"


class SentBody(msgspec.Struct, frozen=True):
    """The body of a submission whose client marks repetitions."""

    key: str
    sent_at: datetime
    sent_since: datetime | None = None
    """The earliest time of the first try. None: this is the first try, and so a new submission."""


class SubmissionKeys(msgspec.Struct, frozen=True):
    """The keys that are stored with a submission to recognise it."""

    names: list[str] = []
    content: str | None = None
    """A hash of the submission's content, if it has names."""
    body: SentBody | None = None


NO_KEYS = SubmissionKeys()


# Runs that make one call of a tool at a client's request, and do nothing else.
#
# Such a run is no part of a conversation, and it runs beside the agent's other runs: it has a thread of its own, so it
# neither waits for them nor delays them. It need not wait, because a call changes the agent's memory in one fenced
# transaction on the current blocks, as when two agents share a block. And it must not wait: a run's tool may request
# such a call of its own agent, and the two runs would wait for each other.
#
# Its stored input is the call, in an answer that no model gave. The run adds nothing to a history; the call's intent
# keeps the result.


TOOL_RUN: Final = "tool_run"
"""The stored type of these runs (`RunOptions.run_type`)."""


class AskedCall(NamedTuple):
    """The call that a run is to make, and the id of the message that shows it in the run's stream."""

    message_id: MessageId
    call: ToolCall


def asked_call(given: Sequence[NewMessage]) -> AskedCall:
    """The call in a run's input. Raises `ValueError` when there is none."""
    for message in given:
        if isinstance(message.body, AssistantMessage) and message.body.tool_calls:
            return AskedCall(message.id, message.body.tool_calls[0])
    raise ValueError("the run's input has no call of a tool")


Cause = Literal["user", "timeout", "budget", "worker_lost", "model_error", "internal_error", "approval_expired", "body"]
"""The cause of an end from outside the run. It is recorded where it happens, never guessed afterwards."""


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens, as the provider reported them; `estimated` when a call was cut off and we counted."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    context_tokens: int = 0
    """Tokens of the last call, in and out, which is the present size of the context."""
    cost_nano_usd: int = 0
    """In thousand-millionths of a US dollar; 0 if no budget needs prices."""
    estimated: bool = False

    def plus(self, call: "Usage") -> "Usage":
        """The sum after one more model call."""
        return Usage(
            prompt_tokens=self.prompt_tokens + call.prompt_tokens,
            completion_tokens=self.completion_tokens + call.completion_tokens,
            cached_input_tokens=self.cached_input_tokens + call.cached_input_tokens,
            cache_write_tokens=self.cache_write_tokens + call.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + call.reasoning_tokens,
            context_tokens=call.context_tokens or call.prompt_tokens + call.completion_tokens,
            cost_nano_usd=self.cost_nano_usd + call.cost_nano_usd,
            estimated=self.estimated or call.estimated,
        )


class RunError(msgspec.Struct, frozen=True):
    """Why a run failed."""

    error_type: str
    message: str
    detail: str | None = None
    waiting: WaitingCalls | None = None
    """The calls that the run's thread waited for, if the run failed because of them."""


class CancelRequest(msgspec.Struct, frozen=True):
    """A client's request to cancel a run. It is not a status."""

    requested_at: datetime
    actor: str
    reason: str | None = None
    mode: CancelMode = CancelMode.INTERRUPT
    acknowledged_at: datetime | None = None
    """When the run's owner began to stop it."""


class RunOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The options of the submission."""

    dialect: str = "letta"
    """The name of the dialect in which the submission came. Callbacks are written in it."""
    streamed: bool = False
    """The answer to the submission was a stream."""
    stream_tokens: bool = False
    status_events: bool = False
    """The log shows changes of the status. Off by default: readers that do not know these events miss no number."""
    item_events: bool = False
    """The log shows when an answer is complete, when each tool starts and ends, and the decisions (`events.ItemEvent`).
    For dialects whose streams open and close items; off for other dialects, for the same reason."""
    background: bool = False
    max_steps: int = 50
    run_type: str = MESSAGES
    """The type of the run that clients see: the dialect's word if it has one, else Holdfast's."""
    client_tools: list[ClientTool] = []
    tool_choice: ToolChoice | None = None
    max_tool_calls: int | None = None
    """The most calls of the agent's own tools. After them the run offers the model only the client's tools."""
    client_skills: list[ClientSkill] = []
    clears_context: bool = False
    """The run begins with an empty context, but for the system message."""
    override_model: str | None = None
    override_system: str | None = None
    added_system: str | None = None
    """Instructions of the request, which follow the agent's own."""
    model_options: ModelOptions | None = None
    """Options of the model's requests, if the conversation has its own. None: the agent's."""
    demanded: list[str] = []
    """Names of the fields of `model_options` that the submission itself chose. The run fails if its model lacks one of
    them; options that were stored earlier are left out instead. With `messages.FILES`, the model must take files."""
    speech_as_text: bool = True
    """Clients see the agent's `send_message` calls as text."""
    compaction: CompactionOptions | None = None
    """The run answers no message: it compacts its thread's context."""
    tool_name: str | None = None
    """The run answers no message: it makes one call of this tool of its agent's (see `TOOL_RUN`)."""
    generation: Generation | None = None
    """The run answers no message: it asks the model one question (see `GENERATE`)."""
    when_full: CompactionOptions = CompactionOptions()
    """How the context is compacted when it is full in the middle of the run."""
    compact_over: int | None = None
    """The context is compacted if the model's next request would have more tokens than this. None: if it is full."""
    compaction_messages: bool = False
    """The client knows messages of a compaction. Other clients see the summary as a user's message."""
    submitted_by: str | None = None
    """The id of the API key that sent the submission, whose budget pays for the run."""
    keys_scope: str | None = None
    """The scope of a repetition, if not its thread: a submission that begins a thread cannot name the thread."""
    parent: ParentCall | None = None
    """The call that started the run. None: a client submitted it, or the server began it."""
    named: str | None = None
    """The client's own name for the run."""
    code_agent: str | None = None
    """The name of the agent of an operator's own code that is the run's body. None: the agent loop is."""
    journal: RunId | None = None
    """The first run of the turn, whose journal the body of a continuation reads. None: this run begins the turn."""
    first_words: str | None = None
    """The beginning of the input that lists of runs show, from `messages.first_words`."""
    traceparent: str | None = None
    """The W3C trace context of the run's root span, which every process of the run continues."""
    shown_types: list[str] | None = msgspec.field(default=None, name="include_return_message_types")
    """The types of messages that the client wants to see, in its dialect's names. None: all."""
    leg: int = 0
    """The run's place in its turn: 0, and one more for each continuation. Stored, so that it outlives a deletion."""
    echoed: dict[str, Any] = msgspec.field(default_factory=dict[str, Any], name="request_config")
    """Fields of the request that the answers repeat to the client."""


PRIORITIES = range(-10, 11)
"""The values of a run's priority: each level gives the run a head start of ten minutes before the project's other
runs."""


class Dispatch(NamedTuple):
    """A run to be dispatched, with the number of the dispatch, its project and its priority."""

    run_id: RunId
    number: int
    project_id: ProjectId = ProjectId("")
    priority: int = 0
    code_agent: str | None = None
    """Only workers that have this agent may claim the run."""
    code_version: str | None = None
    """The version of the agent in which the run began."""


WaitsFor = Literal["budget", "runs", "time"]
"""A run waits for room in a budget, for the answers of its children, or for the end of a sleep."""

RunKind = Literal["message", "code", "compaction", "generation", "tool"]
"""The kind of a run: it answers messages by the agent loop or by an operator's own code, compacts its thread, asks a
model one question, or makes one call of a tool."""


HANDED_OVER: Final = "handed over"
"""The owner of a run that was handed over in a model call with all of its events stored."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One execution of an agent on a submission."""

    id: RunId
    project_id: ProjectId
    agent_id: AgentId
    thread_id: ThreadId
    conversation_id: ConversationId | None = None
    number: int = 0
    """Order of submission; given by the store."""
    status: RunStatus = RunStatus.CREATED
    stop_reason: str | None = None
    cause: Cause | None = None
    error: RunError | None = None
    options: RunOptions = RunOptions()
    continues: RunId | None = None
    """The parked run that this run continues, after a decision."""
    continued_by: RunId | None = None
    """The run that continues this parked one, once all of its calls were decided."""
    decided_at: datetime | None = None
    """When the last of its calls was decided."""
    turn: int | None = None
    """The run's place in its thread's history, given when it begins. A continuation has the parked run's turn."""
    dispatch: int = 0
    """Number of the newest dispatch; an older one can no longer claim the run."""
    priority: int = 0
    """Its place among the project's waiting runs: one of `PRIORITIES`."""
    fence: Fence = Fence(0)
    owner: str | None = None
    """The run's last owner: the worker's name and a part that no other claim has. None before the first claim, and if
    the owner handed the run over with no model call in progress."""
    follows_lost_owner: bool = False
    """Only of a run that was just claimed: its previous owner left a model call, which may be lost."""
    follows_stored_log: bool = False
    """Only of a run that was just claimed: SQL has all events that its earlier owners have shown."""
    follows_wait: bool = False
    """Only of a run that was just claimed: it has waited for other runs, and its previous owner left nothing undone."""
    attempts_without_progress: int = 0
    """Claims since the last checkpoint."""
    code_version: str | None = None
    """The version of its agent's code that has executed it last; empty if the code declares none. None: none has
    executed it."""
    cancel: CancelRequest | None = None
    usage: Usage = Usage()
    step_count: int = 0
    last_seq: Seq = Seq(1)
    """The last event that SQL holds."""
    checkpoint_seq: Seq = Seq(1)
    """The last event whose messages are stored. Later events belong to an unfinished step."""
    waits_until: datetime | None = None
    """The run waits without a worker, and is tried again at this time."""
    waits_for: WaitsFor | None = None
    """The reason for that wait."""
    callback_url: str | None = None
    callback_sent_at: datetime | None = None
    callback_status_code: int | None = None
    callback_error: str | None = None
    created_at: datetime
    started_at: datetime | None = None
    first_token_at: datetime | None = None
    """When the first piece of the first answer came from the model, as far as steps are stored."""
    completed_at: datetime | None = None
    """When the run reached its terminal status, or was parked."""
    pruned_at: datetime | None = None
    """When retention deleted its log and what belongs to it."""

    @property
    def trace_id(self) -> str | None:
        """The run's trace, if one was begun or came with its submission: 32 hexadecimal digits."""
        return None if self.options.traceparent is None else self.options.traceparent.split("-")[1]

    @property
    def kind(self) -> RunKind:
        """The kind of the run."""
        options = self.options
        if options.compaction is not None:
            return "compaction"
        if options.generation is not None:
            return "generation"
        if options.tool_name is not None:
            return "tool"
        return "message" if options.code_agent is None else "code"

    @property
    def journal(self) -> RunId:
        """The id of the journal of the run's turn."""
        return self.options.journal or self.id

    @property
    def answers_messages(self) -> bool:
        """Whether the run is a turn of its conversation. Other runs compact it, or are in no conversation."""
        return self.options.compaction is None and not self.has_own_thread

    @property
    def can_be_followed(self) -> bool:
        """Whether another run may continue from this one. It may continue from a compaction if readers of the log see
        the summary: a client requested it as it requests an answer."""
        return self.answers_messages or (self.options.compaction is not None and self.options.item_events)

    @property
    def has_own_thread(self) -> bool:
        """Whether the run is in no history: no other run has its thread, and it runs beside the agent's other runs."""
        return self.options.tool_name is not None or self.options.generation is not None

    def instructions(self, agent: Agent, blocks: Sequence[Block]) -> str:
        """The instructions for the run's model calls."""
        if self.options.override_system is not None:
            return self.options.override_system
        if self.options.generation is not None:
            return DEFAULT_SYSTEM
        own = with_skills(render_system(agent, blocks, self.conversation_id), self.options.client_skills)
        added = self.options.added_system
        return f"{own}\n\n{added}" if own and added else added or own

    @property
    def keys_thread_id(self) -> ThreadId:
        """The thread on which a repetition of this submission is recognised. For a run with a thread of its own this is
        the agent's default history, because the sender of a request does not know that thread."""
        if self.options.keys_scope is not None:
            return ThreadId(self.options.keys_scope)
        return ThreadId(self.agent_id) if self.has_own_thread else self.thread_id


class AttemptLimits(msgspec.Struct, frozen=True):
    """How many workers in a row may die with a run before it finishes a step. One loss is an accident. After two
    losses, each run that both workers had is suspect; executing each alone shows which run causes the losses."""

    quarantined_after: int
    """Lost workers after which the run is executed with no other run beside it."""
    given_up_after: int
    """Lost workers after which the run is not executed again, but ends as failed. More than `quarantined_after`."""

    @classmethod
    def of(cls, max_attempts: int) -> "AttemptLimits":
        """The limits for the setting: a run has one attempt alone, even if that is one more than the setting."""
        quarantined_after = min(2, max_attempts)
        return cls(quarantined_after, given_up_after=max(max_attempts, quarantined_after + 1))

    def demand_quarantine(self, waiting: Run) -> bool:
        """Whether a run that waits for its next claim must be executed alone. A run that is given up may end beside
        other runs."""
        return self.quarantined_after <= waiting.attempts_without_progress < self.given_up_after

    def give_up(self, claimed: Run) -> bool:
        """Whether a claimed run is to end as failed: its own claim is one of its attempts."""
        return claimed.attempts_without_progress > self.given_up_after


StepStatus = Literal["pending", "success", "failed", "cancelled"]

Feedback = Literal["positive", "negative"]


class ToolTiming(msgspec.Struct, frozen=True, omit_defaults=True):
    """When one call of a tool was made. Unix time in milliseconds."""

    tool_call_id: str
    tool_name: str
    started_at: int
    ended_at: int
    is_error: bool = False


class StepTiming(msgspec.Struct, frozen=True, omit_defaults=True):
    """When the parts of a step were, in Unix milliseconds; 0: that part was never reached. If another worker continued
    the step, these are the times of the worker that finished it."""

    asked_at: int = 0
    """The model was asked."""
    first_token_at: int = 0
    """The first piece of its answer came: text, reasoning or a call."""
    answered_at: int = 0
    """The answer was whole."""
    tools: list[ToolTiming] = []
    """The calls that the answer asked for, as they ended."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One model call and the tool calls that it asked for."""

    id: StepId
    run_id: RunId
    agent_id: AgentId
    number: int
    model: str
    status: StepStatus = "pending"
    stop_reason: str | None = None
    usage: Usage = Usage()
    timing: StepTiming = StepTiming()
    error: RunError | None = None
    created_at: datetime
    feedback: Feedback | None = None
    """A person's feedback on the step, and its text. No worker writes either."""
    tags: list[str] = []
