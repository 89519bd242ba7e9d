"""Answers of OpenAI's dialect (responses, their items, the events of their streams, and webhook endpoints) and of the
pages' dialects."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from api.answers.messages import Anything, Fields

Item = Fields
"""An item of an output or an input. Its `type` determines its other fields."""


class IncompleteDetails(TypedDict):
    """The reason why a response is incomplete."""

    reason: str


class ResponseError(TypedDict):
    """The reason why a response has failed."""

    code: str
    message: str


class InputTokensDetails(TypedDict):
    """Tokens that the provider read from its cache, or wrote to it."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(TypedDict):
    """Tokens of the answer that clients do not see."""

    reasoning_tokens: int


class ResponseUsage(TypedDict):
    """The tokens of all steps."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ConversationReference(TypedDict):
    """The conversation to which a response belongs."""

    id: str


class OpenAIResponse(TypedDict):
    """A response: a run on OpenAI's wire. Most fields repeat its request."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "failed", "cancelled", "incomplete"]
    model: str
    output: list[Item]
    usage: ResponseUsage | None
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    background: bool
    conversation: ConversationReference | None
    previous_response_id: str | None
    instructions: str | None
    metadata: dict[str, str]
    tools: list[Fields]
    tool_choice: Anything
    parallel_tool_calls: bool
    max_output_tokens: int | None
    max_tool_calls: int | None
    reasoning: Fields
    text: Fields
    temperature: float
    top_p: float
    top_logprobs: int
    presence_penalty: float
    frequency_penalty: float
    truncation: str
    store: bool
    service_tier: str
    prompt_cache_key: str | None
    safety_identifier: str | None
    user: str | None


class ResponseEvent(TypedDict):
    """The `data` of each server-sent event of a response's stream. `type` determines its other fields. The last event
    is the text `[DONE]`."""

    type: str
    sequence_number: int
    response: NotRequired[OpenAIResponse]
    output_index: NotRequired[int]
    item: NotRequired[Item]
    item_id: NotRequired[str]
    content_index: NotRequired[int]
    summary_index: NotRequired[int]
    part: NotRequired[Fields]
    delta: NotRequired[str]
    text: NotRequired[str]
    name: NotRequired[str]
    arguments: NotRequired[str]
    logprobs: NotRequired[list[Fields]]


class DeletedResponse(TypedDict):
    """The deleted response."""

    id: str
    object: Literal["response"]
    deleted: bool


class CompactedResponse(TypedDict):
    """Items that a client may send in place of its whole history."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[Item]
    """The users' messages, and the summary as an item of the type `compaction`."""
    usage: ResponseUsage | None


class TokenCount(TypedDict):
    """An estimate of the tokens of an input."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class OpenAIConversation(TypedDict):
    """A conversation."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(TypedDict):
    """The deleted conversation."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: bool


class OpenAIModel(TypedDict):
    """A model. Its creation date is unknown."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class OpenAIModels(TypedDict):
    """The models that requests can name."""

    object: Literal["list"]
    data: list[OpenAIModel]


class ItemList(TypedDict):
    """A page of items."""

    object: Literal["list"]
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


# Webhook endpoints on OpenAI's wire.


class WebhookEndpoint(TypedDict):
    """An endpoint. `signing_secret_hint` has the last characters of its secret; times are in Unix seconds."""

    id: str
    object: Literal["webhook_endpoint"]
    created_at: int
    updated_at: int
    name: str
    url: str
    event_types: list[str]
    signing_secret_hint: str


class WebhookEndpointWithSecret(WebhookEndpoint):
    """An endpoint that was just created, or has a new secret."""

    signing_secret: str


class WebhookEndpointList(TypedDict):
    """A page of endpoints."""

    object: Literal["list"]
    data: list[WebhookEndpoint]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedWebhookEndpoint(TypedDict):
    """The deleted endpoint."""

    id: str
    object: Literal["webhook_endpoint.deleted"]
    deleted: bool


class TestedWebhookEndpoint(TypedDict):
    """The endpoint has answered a sample, with this status."""

    object: Literal["webhook_endpoint.test"]
    webhook_endpoint_id: str
    event_type: str
    status_code: int
    success: bool


class WebhookEventTypes(TypedDict):
    """The events that an endpoint can receive."""

    object: Literal["list"]
    data: list[str]


# Answers of the pages' dialects. First AG-UI's: the events of its streams, and the answers to CopilotKit's requests.


class AgUiEvent(TypedDict):
    """The `data` of each server-sent event. `type` determines its other fields."""

    type: Literal[
        "RUN_STARTED", "RUN_FINISHED", "RUN_ERROR",
        "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
        "REASONING_START", "REASONING_MESSAGE_START", "REASONING_MESSAGE_CONTENT", "REASONING_MESSAGE_END",
        "REASONING_END", "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT",
        "MESSAGES_SNAPSHOT", "CUSTOM",
    ]  # fmt: skip
    threadId: NotRequired[str]
    runId: NotRequired[str]
    protocolVersion: NotRequired[str]
    input: NotRequired[Fields]
    outcome: NotRequired[Fields]
    usage: NotRequired[list[Fields]]
    message: NotRequired[str]
    code: NotRequired[str]
    messageId: NotRequired[str]
    role: NotRequired[str]
    delta: NotRequired[str]
    toolCallId: NotRequired[str]
    toolCallName: NotRequired[str]
    parentMessageId: NotRequired[str]
    content: NotRequired[str | list[Fields]]
    messages: NotRequired[list[Fields]]
    name: NotRequired[str]
    value: NotRequired[Anything]
    metadata: NotRequired[Fields]


class AgUiStop(TypedDict):
    """The present state of the stopped run."""

    stopped: bool
    threadId: str
    runId: str
    run_id: str
    status: str


class RuntimeAgent(TypedDict):
    """An agent."""

    name: str
    description: str


class RuntimeInfo(TypedDict):
    """The description of a runtime for CopilotKit. Agents are named by their ids."""

    version: str
    agents: dict[str, RuntimeAgent]
    mode: Literal["sse"]
    audioFileTranscriptionEnabled: bool


# Answers of the AI SDK's dialect: the chunks of its streams, and its chats.


class UiMessageChunk(TypedDict):
    """The `data` of each server-sent event. `type` determines its other fields; `data-holdfast-…` are further types."""

    type: str
    id: NotRequired[str]
    messageId: NotRequired[str]
    messageMetadata: NotRequired[Fields]
    delta: NotRequired[str]
    toolCallId: NotRequired[str]
    toolName: NotRequired[str]
    dynamic: NotRequired[bool]
    providerExecuted: NotRequired[bool]
    inputTextDelta: NotRequired[str]
    input: NotRequired[Anything]
    output: NotRequired[Anything]
    errorText: NotRequired[str]
    approvalId: NotRequired[str]
    approved: NotRequired[bool]
    reason: NotRequired[str]
    parts: NotRequired[list[Fields]]
    data: NotRequired[Fields]
    transient: NotRequired[bool]
    finishReason: NotRequired[str]


class UiMessage(TypedDict):
    """A message in a page's form."""

    id: str
    role: Literal["user", "assistant"]
    parts: list[Fields]
    metadata: NotRequired[Fields]


class UiChat(TypedDict):
    """A chat with which a page begins."""

    id: str
    messages: list[UiMessage]
    is_running: bool
    """An answer is at work or queued. It is not among the messages: the stream shows it from its beginning."""


class StoppedChat(TypedDict):
    """The present state of the stopped run."""

    run_id: str
    status: str
