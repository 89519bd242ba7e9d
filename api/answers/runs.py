"""Runs, steps, approvals, conversations."""

from typing import Literal, NotRequired

from typing_extensions import TypeAliasType, TypedDict

from api.answers.deployment import CodeAgentOfRun
from api.answers.messages import Anything, Failure, Fields, Nothing, Recorded, Time


class RunFailure(Failure):
    """The reason why a run or a step failed."""

    seq_id: Nothing


class CancelOfRun(TypedDict):
    """The caller and means of a cancel request, and its times."""

    requested_at: Time
    acknowledged_at: Time | None
    actor: str | None
    reason: str | None
    mode: str


Waiting = TypedDict(
    "Waiting",
    {
        "for": Literal["budget", "runs", "approval"],
        "until": NotRequired[Time],
        "pending_request_id": NotRequired[str],
        "run_id": NotRequired[str],
        "tool_call_ids": NotRequired[list[str]],
        "approval_ids": NotRequired[list[str]],
        "resolve": NotRequired[str],
    },
)
"""The reason why a run waits: a budget, or runs that it has started, with the time until which; or an approval, with
the ids of the waiting calls."""


class RunMetadata(TypedDict):
    """Holdfast's data of a run beside Letta's fields."""

    run_type: str
    started_at: Time | None
    queue_wait_ms: float | None
    first_token_ms: float | None
    step_count: int
    prompt_tokens: int
    completion_tokens: int
    dialect: NotRequired[str]
    first_words: NotRequired[str]
    tool_name: NotRequired[str]
    error: NotRequired[RunFailure]
    cause: NotRequired[str]
    cancel: NotRequired[CancelOfRun]
    continues_run_id: NotRequired[str]
    continued_by_run_id: NotRequired[str]
    decided_at: NotRequired[Time]
    waiting: NotRequired[Waiting]
    parent_run_id: NotRequired[str]
    parent_tool_call_id: NotRequired[str]
    root_run_id: NotRequired[str]
    pruned_at: NotRequired[Time]
    trace_id: NotRequired[str]


class Run(TypedDict):
    """A run."""

    id: str
    status: Literal["created", "running", "completed", "failed", "cancelled"]
    created_at: Time
    completed_at: Time | None
    agent_id: str
    conversation_id: str | None
    base_template_id: Nothing
    background: bool | None
    metadata: RunMetadata
    request_config: Fields
    stop_reason: str | None
    callback_url: str | None
    callback_sent_at: Time | None
    callback_status_code: int | None
    callback_error: str | None
    ttft_ns: int | None
    total_duration_ns: int | None
    code_agent: CodeAgentOfRun | None


class PromptTokens(TypedDict):
    """Tokens that the model received."""

    cached_tokens: int


class CompletionTokens(TypedDict):
    """Tokens that the model wrote."""

    reasoning_tokens: int


class RunUsage(TypedDict):
    """The tokens of a run."""

    completion_tokens: int
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens
    completion_tokens_details: CompletionTokens
    estimated: NotRequired[bool]


class ToolTimes(TypedDict):
    """The calls of one tool in a run."""

    name: str
    calls: int
    errors: int
    total_ns: int
    max_ns: int


class RunMetrics(TypedDict):
    """The durations of a run's parts."""

    id: str
    organization_id: Nothing
    agent_id: str
    project_id: str
    run_start_ns: int | None
    run_ns: int | None
    num_steps: int
    tools_used: list[str] | None
    template_id: Nothing
    base_template_id: Nothing
    queue_wait_ns: int | None
    ttft_ns: int | None
    model_ns: int | None
    tokens_per_second: float | None
    tools: list[ToolTimes] | None
    waiting_for_approval_ns: int | None
    pruned_at: Time | None


class Span(TypedDict):
    """A span of a run's trace."""

    Timestamp: Time
    TraceId: str
    SpanId: str
    ParentSpanId: str
    SpanName: str
    SpanKind: str
    ServiceName: str
    SpanAttributes: dict[str, str]
    Duration: int | None
    StatusCode: str
    StatusMessage: str


class CancelReceipt(TypedDict):
    """The state of a cancel."""

    run_id: str
    status: str
    cause: str | None
    requested_at: Time | None
    acknowledged_at: Time | None
    stopped_at: Time | None
    mode: str | None
    reason: str | None
    actor: str | None


class StreamToken(TypedDict):
    """A token with which a web page can read one run's stream."""

    token: str
    expires_at: Time


class PageToken(StreamToken):
    """A token with which a web page can read one conversation, or talk in it."""

    conversation_id: str
    """`default` for the agent's own history."""


class Injected(TypedDict):
    """The state of messages for a running run."""

    run_id: str
    message_ids: list[str]
    if_ended: str
    is_new: bool


class StepPromptTokens(PromptTokens):
    """Tokens that the model received."""

    cache_read_tokens: int
    cache_creation_tokens: int


class Step(TypedDict):
    """A step: one call of the model, and the tool calls that the model requested."""

    id: str
    origin: Nothing
    organization_id: Nothing
    provider_id: Nothing
    run_id: str
    agent_id: str
    provider_name: str
    provider_category: str
    model: str
    model_handle: str
    model_endpoint: Nothing
    context_window_limit: int
    completion_tokens: int
    prompt_tokens: int
    total_tokens: int
    cached_input_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    completion_tokens_details: CompletionTokens
    prompt_tokens_details: StepPromptTokens
    stop_reason: str | None
    tags: list[str]
    tid: Nothing
    trace_id: Nothing
    request_id: Nothing
    messages: list[Fields]
    feedback: str | None
    project_id: Nothing
    error_type: str | None
    error_data: RunFailure | None
    status: str


class StepMetrics(TypedDict):
    """The durations of a step's parts."""

    id: str
    organization_id: Nothing
    provider_id: Nothing
    run_id: str
    agent_id: str
    step_start_ns: int | None
    llm_request_start_ns: int | None
    llm_request_ns: int | None
    tool_execution_ns: int | None
    step_ns: int | None
    base_template_id: Nothing
    template_id: Nothing
    project_id: str


class HowToDecide(TypedDict):
    """The request that decides an approval."""

    method: str
    path: str
    decisions: list[str]
    body: Fields


class Approval(TypedDict):
    """A tool call that waits for a person, or that was decided."""

    id: str
    status: Literal["waiting", "approved", "denied", "returned"]
    run_id: str
    agent_id: str
    conversation_id: str | None
    message_id: str
    tool_call_id: str
    tool_name: str
    arguments: str
    arguments_object: Fields | None
    arguments_hash: str
    tool_version: str | None
    client_side: bool
    asked_at: Time
    expires_at: Time | None
    on_expiry: str | None
    decision: Fields | None
    decided_at: Time | None
    decided_by: str | None
    continued_by: str | None
    decide: HowToDecide | None


class DecidedApproval(Approval):
    """A decided call, and the continuation of its run; null while other calls of the same answer wait."""

    run: Run | None


class Effect(TypedDict):
    """A tool call of a run, and its state."""

    call_id: str
    name: str
    state: Literal["not_started", "started", "done", "failed", "unknown", "settled"]
    idempotency_key: str
    attempt: int
    started_at: Time | None
    ended_at: Time | None
    settled_by: Literal["probe", "person"] | None
    settled_by_name: str | None
    outcome: Literal["happened", "did_not_happen"] | None
    result: str | None
    settled_at: Time | None


class ToolRunResult(TypedDict):
    """The result of one tool call, without a model."""

    status: Literal["success", "error"]
    func_return: Anything
    agent_state: Nothing
    stdout: list[str] | None
    stderr: list[str] | None
    sandbox_config_fingerprint: Nothing
    outcome: NotRequired[Literal["unknown"]]


class Conversation(Recorded):
    """A conversation: a further history of an agent."""

    id: str
    agent_id: str
    summary: str | None
    description: str | None
    in_context_message_ids: list[str]
    isolated_block_ids: list[str]
    name: str | None
    """The name that a page gave to the conversation; null for other conversations. Letta has no such field."""
    model: str | None
    model_settings: Fields | None
    context_window_limit: int | None
    last_message_at: Time | None
    archived: bool
    archived_at: Time | None


# Chat completions in OpenAI's dialect.


class CalledFunction(TypedDict):
    """The function of a call."""

    name: str
    arguments: str


class ChatToolCall(TypedDict):
    """A call of one of the client's tools; `index` in a stream."""

    id: str
    type: Literal["function"]
    function: CalledFunction
    index: NotRequired[int]


class ChatMessage(TypedDict):
    """The agent's answer."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    tool_calls: NotRequired[list[ChatToolCall]]


class ChatChoice(TypedDict):
    """The answer, and the reason why it ended."""

    index: int
    message: ChatMessage
    logprobs: Nothing
    finish_reason: str
    native_finish_reason: str | None


class ChatCompletion(TypedDict):
    """A complete answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: Nothing
    choices: list[ChatChoice]
    usage: RunUsage


class ChatDelta(TypedDict):
    """The next piece of the answer."""

    role: NotRequired[str]
    content: NotRequired[str | None]
    refusal: NotRequired[str | None]
    tool_calls: NotRequired[list[ChatToolCall]]


class ChatChunkChoice(TypedDict):
    """The next piece of the answer. The last piece has the reason why the answer ended."""

    index: int
    delta: ChatDelta
    logprobs: Nothing
    finish_reason: str | None
    native_finish_reason: NotRequired[str | None]


class ChatChunk(TypedDict):
    """A chunk of a stream. With `stream_options.include_usage` the last chunk has `usage`, and no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: Nothing
    choices: list[ChatChunkChoice]
    usage: NotRequired[RunUsage | None]


class ChatError(TypedDict):
    """Replaces a chunk if the run failed."""

    error: Fields


ChatFrame = TypeAliasType("ChatFrame", ChatChunk | ChatError)
"""The `data` of each server-sent event of a stream. The last `data` is the text `[DONE]`."""
