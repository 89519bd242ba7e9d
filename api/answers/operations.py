"""Every operation of the API: its name, for methods of generated clients, and what it answers with.

A name does not change: programs are written with it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from api.answers.definitions import (
    AgentFileContent,
    AgentState,
    Archive,
    Block,
    ContextOverview,
    EmbeddingModel,
    FoundMemories,
    FoundPassage,
    ImportedAgents,
    Memory,
    Model,
    Passage,
    Secret,
    Tool,
)
from api.answers.deployment import (
    ApiKey,
    AuditEvent,
    Deleted,
    DeploymentStatus,
    Health,
    Index,
    IssuedKey,
    Liveness,
    NoFiles,
    NoRepositories,
    NoSharedAgents,
    OpenCallback,
    OperationsView,
    Readiness,
)
from api.answers.messages import (
    Answer,
    Captured,
    CompactionResult,
    Fields,
    FoundMessage,
    Frame,
    Generated,
    Message,
    Nothing,
)
from api.answers.responses import (
    DeletedConversation,
    DeletedResponse,
    Item,
    ItemList,
    OpenAIConversation,
    OpenAIModel,
    OpenAIModels,
    OpenAIResponse,
    ResponseEvent,
    TokenCount,
)
from api.answers.runs import (
    Approval,
    CancelReceipt,
    ChatCompletion,
    ChatFrame,
    Conversation,
    DecidedApproval,
    Injected,
    Run,
    RunMetrics,
    RunUsage,
    Span,
    Step,
    StepMetrics,
    StreamToken,
    ToolRunResult,
)
from api.answers.webhooks import (
    DeletedWebhookEndpoint,
    TestedWebhookEndpoint,
    WebhookEndpoint,
    WebhookEndpointList,
    WebhookEndpointWithSecret,
    WebhookEventTypes,
)


class Operation(NamedTuple):
    """An operation. `answer` is the type of a successful answer, None where it has no content or is a stream alone;
    `frame` that of what a stream sends, None where there is none."""

    name: str
    answer: Any = None
    frame: Any = None


OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("get", "/"): Operation("index_retrieve", Index),
    ("get", "/v1/health"): Operation("health_check", Health),
    ("get", "/healthz"): Operation("health_live", Liveness),
    ("get", "/readyz"): Operation("health_ready", Readiness),
    ("post", "/v1/agents"): Operation("agents_create", AgentState),
    ("get", "/v1/agents"): Operation("agents_list", list[AgentState]),
    ("get", "/v1/agents/count"): Operation("agents_count", int),
    ("get", "/v1/agents/{agent_id}"): Operation("agents_retrieve", AgentState),
    ("patch", "/v1/agents/{agent_id}"): Operation("agents_update", AgentState),
    ("delete", "/v1/agents/{agent_id}"): Operation("agents_delete", Deleted),
    ("get", "/v1/agents/{agent_id}/core-memory"): Operation("agents_memory_retrieve", Memory),
    ("get", "/v1/agents/{agent_id}/secrets"): Operation("agents_secrets_list", list[Secret]),
    ("get", "/v1/agents/{agent_id}/context"): Operation("agents_context_retrieve", ContextOverview),
    ("post", "/v1/agents/{agent_id}/recompile"): Operation("agents_recompile", str),
    ("get", "/v1/agents/{agent_id}/export"): Operation("agents_export", AgentFileContent),
    ("post", "/v1/agents/{agent_id}/export"): Operation("agents_export_with_skills", AgentFileContent),
    ("post", "/v1/agents/import"): Operation("agents_import", ImportedAgents),
    ("get", "/v1/agents/{agent_id}/tools"): Operation("agents_tools_list", list[Tool]),
    ("patch", "/v1/agents/{agent_id}/tools/attach/{tool_id}"): Operation("agents_tools_attach", AgentState),
    ("patch", "/v1/agents/{agent_id}/tools/detach/{tool_id}"): Operation("agents_tools_detach", AgentState),
    ("post", "/v1/agents/{agent_id}/tools/{tool_name}/run"): Operation("agents_tools_run", ToolRunResult),
    ("patch", "/v1/agents/{agent_id}/tools/approval/{tool_name}"): Operation("agents_tools_set_approval", Nothing),
    ("get", "/v1/agents/{agent_id}/core-memory/blocks"): Operation("agents_blocks_list", list[Block]),
    ("patch", "/v1/agents/{agent_id}/core-memory/blocks/attach/{block_id}"): Operation(
        "agents_blocks_attach", AgentState
    ),
    ("patch", "/v1/agents/{agent_id}/core-memory/blocks/detach/{block_id}"): Operation(
        "agents_blocks_detach", AgentState
    ),
    ("get", "/v1/agents/{agent_id}/core-memory/blocks/{block_label}"): Operation("agents_blocks_retrieve", Block),
    ("patch", "/v1/agents/{agent_id}/core-memory/blocks/{block_label}"): Operation("agents_blocks_update", Block),
    ("get", "/v1/agents/{agent_id}/archival-memory"): Operation("agents_passages_list", list[Passage]),
    ("post", "/v1/agents/{agent_id}/archival-memory"): Operation("agents_passages_create", list[Passage]),
    ("get", "/v1/agents/{agent_id}/archival-memory/search"): Operation("agents_passages_search", FoundMemories),
    ("delete", "/v1/agents/{agent_id}/archival-memory/{memory_id}"): Operation("agents_passages_delete", Deleted),
    ("patch", "/v1/agents/{agent_id}/archives/attach/{archive_id}"): Operation("agents_archives_attach", Nothing),
    ("patch", "/v1/agents/{agent_id}/archives/detach/{archive_id}"): Operation("agents_archives_detach", Nothing),
    ("post", "/v1/tools"): Operation("tools_create", Tool),
    ("put", "/v1/tools"): Operation("tools_upsert", Tool),
    ("get", "/v1/tools"): Operation("tools_list", list[Tool]),
    ("get", "/v1/tools/count"): Operation("tools_count", int),
    ("post", "/v1/tools/add-base-tools"): Operation("tools_add_base_tools", list[Tool]),
    ("get", "/v1/tools/{tool_id}"): Operation("tools_retrieve", Tool),
    ("patch", "/v1/tools/{tool_id}"): Operation("tools_update", Tool),
    ("delete", "/v1/tools/{tool_id}"): Operation("tools_delete", Deleted),
    ("post", "/v1/blocks"): Operation("blocks_create", Block),
    ("get", "/v1/blocks"): Operation("blocks_list", list[Block]),
    ("get", "/v1/blocks/count"): Operation("blocks_count", int),
    ("get", "/v1/blocks/{block_id}"): Operation("blocks_retrieve", Block),
    ("patch", "/v1/blocks/{block_id}"): Operation("blocks_update", Block),
    ("delete", "/v1/blocks/{block_id}"): Operation("blocks_delete", Deleted),
    ("get", "/v1/blocks/{block_id}/agents"): Operation("blocks_agents_list", list[AgentState]),
    ("post", "/v1/archives"): Operation("archives_create", Archive),
    ("get", "/v1/archives"): Operation("archives_list", list[Archive]),
    ("get", "/v1/archives/{archive_id}"): Operation("archives_retrieve", Archive),
    ("patch", "/v1/archives/{archive_id}"): Operation("archives_update", Archive),
    ("delete", "/v1/archives/{archive_id}"): Operation("archives_delete"),
    ("get", "/v1/archives/{archive_id}/agents"): Operation("archives_agents_list", list[AgentState]),
    ("post", "/v1/archives/{archive_id}/passages"): Operation("archives_passages_create", Passage),
    ("post", "/v1/archives/{archive_id}/passages/batch"): Operation("archives_passages_create_many", list[Passage]),
    ("delete", "/v1/archives/{archive_id}/passages/{passage_id}"): Operation("archives_passages_delete"),
    ("post", "/v1/passages/search"): Operation("passages_search", list[FoundPassage]),
    ("get", "/v1/tags"): Operation("tags_list", list[str]),
    ("get", "/v1/models"): Operation("models_list", list[Model]),
    ("get", "/v1/models/embedding"): Operation("models_list_embedding", list[EmbeddingModel]),
    ("post", "/v1/conversations"): Operation("conversations_create", Conversation),
    ("get", "/v1/conversations"): Operation("conversations_list", list[Conversation]),
    ("get", "/v1/conversations/{conversation_id}"): Operation("conversations_retrieve", Conversation),
    ("patch", "/v1/conversations/{conversation_id}"): Operation("conversations_update", Conversation),
    ("delete", "/v1/conversations/{conversation_id}"): Operation("conversations_delete", Deleted),
    ("post", "/v1/conversations/{conversation_id}/messages"): Operation(
        "conversations_messages_create", Answer, frame=Frame
    ),
    ("get", "/v1/conversations/{conversation_id}/messages"): Operation("conversations_messages_list", list[Message]),
    ("post", "/v1/conversations/{conversation_id}/stream"): Operation("conversations_stream", frame=Frame),
    ("post", "/v1/conversations/{conversation_id}/cancel"): Operation("conversations_cancel", dict[str, str]),
    ("post", "/v1/agents/{agent_id}/summarize"): Operation("agents_compact", CompactionResult),
    ("post", "/v1/conversations/{conversation_id}/compact"): Operation("conversations_compact", CompactionResult),
    ("post", "/v1/conversations/{conversation_id}/fork"): Operation("conversations_fork", Conversation),
    ("post", "/v1/conversations/{conversation_id}/recompile"): Operation("conversations_recompile", str),
    ("post", "/v1/agents/{agent_id}/messages"): Operation("agents_messages_create", Answer, frame=Frame),
    ("post", "/v1/agents/{agent_id}/messages/stream"): Operation("agents_messages_stream", frame=Frame),
    ("post", "/v1/agents/{agent_id}/messages/async"): Operation("agents_messages_create_async", Run),
    ("post", "/v1/agents/{agent_id}/generate"): Operation("agents_generate", Generated),
    ("post", "/v1/agents/{agent_id}/messages/capture"): Operation("agents_messages_capture", Captured),
    ("get", "/v1/agents/{agent_id}/messages"): Operation("agents_messages_list", list[Message]),
    ("post", "/v1/agents/{agent_id}/messages/cancel"): Operation("agents_messages_cancel", dict[str, str]),
    ("patch", "/v1/agents/{agent_id}/reset-messages"): Operation("agents_messages_reset", AgentState),
    ("get", "/v1/messages"): Operation("messages_list", list[Message]),
    ("post", "/v1/messages/search"): Operation("messages_search", list[FoundMessage]),
    ("get", "/v1/messages/{message_id}"): Operation("messages_retrieve", list[Message]),
    ("post", "/v1/chat/completions/chat/completions"): Operation(
        "chat_completions_create_doubled", ChatCompletion, frame=ChatFrame
    ),
    ("post", "/v1/chat/completions"): Operation("chat_completions_create", ChatCompletion, frame=ChatFrame),
    ("post", "/openai/v1/responses"): Operation("responses_create", OpenAIResponse, frame=ResponseEvent),
    ("get", "/openai/v1/responses/{response_id}"): Operation("responses_retrieve", OpenAIResponse, frame=ResponseEvent),
    ("post", "/openai/v1/responses/{response_id}/cancel"): Operation("responses_cancel", OpenAIResponse),
    ("delete", "/openai/v1/responses/{response_id}"): Operation("responses_delete", DeletedResponse),
    ("get", "/openai/v1/responses/{response_id}/input_items"): Operation("responses_input_items_list", ItemList),
    ("post", "/v1/responses"): Operation("responses_create_short", OpenAIResponse, frame=ResponseEvent),
    ("get", "/v1/responses/{response_id}"): Operation("responses_retrieve_short", OpenAIResponse, frame=ResponseEvent),
    ("post", "/v1/responses/{response_id}/cancel"): Operation("responses_cancel_short", OpenAIResponse),
    ("delete", "/v1/responses/{response_id}"): Operation("responses_delete_short", DeletedResponse),
    ("get", "/v1/responses/{response_id}/input_items"): Operation("responses_input_items_list_short", ItemList),
    ("post", "/openai/v1/responses/input_tokens"): Operation("responses_input_tokens_count", TokenCount),
    ("post", "/v1/responses/input_tokens"): Operation("responses_input_tokens_count_short", TokenCount),
    ("post", "/openai/v1/conversations"): Operation("openai_conversations_create", OpenAIConversation),
    ("get", "/openai/v1/conversations/{conversation_id}"): Operation(
        "openai_conversations_retrieve", OpenAIConversation
    ),
    ("post", "/openai/v1/conversations/{conversation_id}"): Operation(
        "openai_conversations_update", OpenAIConversation
    ),
    ("delete", "/openai/v1/conversations/{conversation_id}"): Operation(
        "openai_conversations_delete", DeletedConversation
    ),
    ("get", "/openai/v1/conversations/{conversation_id}/items"): Operation("openai_conversations_items_list", ItemList),
    ("post", "/openai/v1/conversations/{conversation_id}/items"): Operation(
        "openai_conversations_items_create", ItemList
    ),
    ("get", "/openai/v1/conversations/{conversation_id}/items/{item_id}"): Operation(
        "openai_conversations_items_retrieve", Item
    ),
    ("delete", "/openai/v1/conversations/{conversation_id}/items/{item_id}"): Operation(
        "openai_conversations_items_delete", OpenAIConversation
    ),
    ("get", "/openai/v1/models"): Operation("openai_models_list", OpenAIModels),
    ("get", "/openai/v1/models/{model}"): Operation("openai_models_retrieve", OpenAIModel),
    ("post", "/openai/v1/webhook_endpoints"): Operation("webhook_endpoints_create", WebhookEndpointWithSecret),
    ("get", "/openai/v1/webhook_endpoints"): Operation("webhook_endpoints_list", WebhookEndpointList),
    ("get", "/openai/v1/webhook_endpoints/{webhook_id}"): Operation("webhook_endpoints_retrieve", WebhookEndpoint),
    ("post", "/openai/v1/webhook_endpoints/{webhook_id}"): Operation("webhook_endpoints_update", WebhookEndpoint),
    ("delete", "/openai/v1/webhook_endpoints/{webhook_id}"): Operation(
        "webhook_endpoints_delete", DeletedWebhookEndpoint
    ),
    ("post", "/openai/v1/webhook_endpoints/{webhook_id}/rotate_secret"): Operation(
        "webhook_endpoints_rotate_secret", WebhookEndpointWithSecret
    ),
    ("post", "/openai/v1/webhook_endpoints/{webhook_id}/test"): Operation(
        "webhook_endpoints_test", TestedWebhookEndpoint
    ),
    ("get", "/openai/v1/webhook_event_types"): Operation("webhook_event_types_list", WebhookEventTypes),
    ("get", "/v1/runs"): Operation("runs_list", list[Run]),
    ("get", "/v1/runs/active"): Operation("runs_list_active", list[Run]),
    ("get", "/v1/runs/{run_id}"): Operation("runs_retrieve", Run),
    ("delete", "/v1/runs/{run_id}"): Operation("runs_delete", Run),
    ("get", "/v1/runs/{run_id}/messages"): Operation("runs_messages_list", list[Message]),
    ("get", "/v1/runs/{run_id}/steps"): Operation("runs_steps_list", list[Step]),
    ("get", "/v1/runs/{run_id}/usage"): Operation("runs_usage_retrieve", RunUsage),
    ("get", "/v1/runs/{run_id}/metrics"): Operation("runs_metrics_retrieve", RunMetrics),
    ("get", "/v1/runs/{run_id}/trace"): Operation("runs_trace_retrieve", list[Span]),
    ("post", "/v1/runs/{run_id}/stream"): Operation("runs_stream", frame=Frame),
    ("get", "/v1/runs/{run_id}/stream"): Operation("runs_stream_for_browsers", frame=Frame),
    ("post", "/v1/runs/{run_id}/stream-token"): Operation("runs_stream_token_create", StreamToken),
    ("post", "/v1/runs/{run_id}/cancel"): Operation("runs_cancel", CancelReceipt),
    ("post", "/v1/runs/{run_id}/inject"): Operation("runs_inject", Injected),
    ("get", "/v1/steps"): Operation("steps_list", list[Step]),
    ("get", "/v1/steps/{step_id}"): Operation("steps_retrieve", Step),
    ("get", "/v1/steps/{step_id}/messages"): Operation("steps_messages_list", list[Message]),
    ("get", "/v1/steps/{step_id}/metrics"): Operation("steps_metrics_retrieve", StepMetrics),
    ("get", "/v1/steps/{step_id}/trace"): Operation("steps_trace_retrieve", Nothing),
    ("patch", "/v1/steps/{step_id}/feedback"): Operation("steps_feedback_create", Step),
    ("get", "/v1/approvals"): Operation("approvals_list", list[Approval]),
    ("get", "/v1/approvals/{approval_id}"): Operation("approvals_retrieve", Approval),
    ("post", "/v1/approvals/{approval_id}"): Operation("approvals_decide", DecidedApproval),
    ("get", "/v1/agents/{agent_id}/files"): Operation("agents_files_list", NoFiles),
    ("get", "/v1/agents/{agent_id}/repositories"): Operation("agents_repositories_list", NoRepositories),
    ("get", "/v1/shared-agents"): Operation("shared_agents_list", NoSharedAgents),
    ("get", "/v1/tools/mcp/servers"): Operation("tools_mcp_servers_list", Fields),
    ("get", "/v1/folders"): Operation("folders_list", list[Fields]),
    ("get", "/v1/groups"): Operation("groups_list", list[Fields]),
    ("get", "/v1/identities"): Operation("identities_list", list[Fields]),
    ("get", "/v1/jobs"): Operation("jobs_list", list[Fields]),
    ("get", "/v1/jobs/active"): Operation("jobs_list_active", list[Fields]),
    ("get", "/v1/mcp-servers"): Operation("mcp_servers_list", list[Fields]),
    ("get", "/v1/providers"): Operation("providers_list", list[Fields]),
    ("get", "/v1/sources"): Operation("sources_list", list[Fields]),
    ("get", "/v1/folders/count"): Operation("folders_count", int),
    ("get", "/v1/groups/count"): Operation("groups_count", int),
    ("get", "/v1/identities/count"): Operation("identities_count", int),
    ("get", "/v1/sources/count"): Operation("sources_count", int),
    ("get", "/v1/agents/{agent_id}/folders"): Operation("agents_folders_list", list[Fields]),
    ("get", "/v1/agents/{agent_id}/groups"): Operation("agents_groups_list", list[Fields]),
    ("get", "/v1/agents/{agent_id}/identities"): Operation("agents_identities_list", list[Fields]),
    ("get", "/v1/agents/{agent_id}/mcp-servers"): Operation("agents_mcp_servers_list", list[Fields]),
    ("get", "/v1/agents/{agent_id}/sources"): Operation("agents_sources_list", list[Fields]),
    ("post", "/v1/admin/keys"): Operation("admin_keys_create", IssuedKey),
    ("get", "/v1/admin/keys"): Operation("admin_keys_list", list[ApiKey]),
    ("get", "/v1/admin/keys/{key_id}"): Operation("admin_keys_retrieve", ApiKey),
    ("delete", "/v1/admin/keys/{key_id}"): Operation("admin_keys_revoke", ApiKey),
    ("post", "/v1/admin/keys/{key_id}/rotate"): Operation("admin_keys_rotate", IssuedKey),
    ("get", "/v1/admin/status"): Operation("admin_status_retrieve", DeploymentStatus),
    ("get", "/v1/admin/audit"): Operation("admin_audit_list", list[AuditEvent]),
    ("get", "/v1/admin/operations"): Operation("admin_operations_retrieve", OperationsView),
    ("get", "/v1/admin/callbacks"): Operation("admin_callbacks_list", list[OpenCallback]),
    ("post", "/v1/admin/callbacks/{run_id}/retry"): Operation("admin_callbacks_retry", OpenCallback),
}
