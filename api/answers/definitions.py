"""Agents and their parts: blocks, tools, secrets, settings of models."""

from typing import Literal

from typing_extensions import TypedDict

from api.answers.messages import ApprovalRequestMessage, Fields, Nothing, Recorded, Time


class Block(TypedDict):
    """A block of an agent's memory."""

    id: str
    label: str
    value: str
    description: str | None
    limit: int
    read_only: bool
    metadata: Fields
    tags: list[str]
    project_id: Nothing
    template_name: Nothing
    is_template: bool
    template_id: Nothing
    base_template_id: Nothing
    deployment_id: Nothing
    entity_id: Nothing
    preserve_on_migration: bool
    hidden: Nothing
    created_by_id: Nothing
    last_updated_by_id: Nothing


class Memory(TypedDict):
    """The blocks of an agent."""

    agent_type: str
    git_enabled: bool
    blocks: list[Block]
    file_blocks: list[Fields]
    prompt_template: str


class Tool(TypedDict):
    """A tool. For a key that may only talk with an agent, the fields about its source are null."""

    id: str
    tool_type: str
    description: str | None
    source_type: str | None
    name: str
    tags: list[str]
    source_code: str | None
    json_schema: Fields | None
    args_json_schema: Fields
    return_char_limit: int | None
    pip_requirements: list[Fields] | None
    npm_requirements: list[Fields] | None
    packages: list[str] | None
    default_requires_approval: bool | None
    enable_parallel_execution: bool | None
    created_by_id: Nothing
    last_updated_by_id: Nothing
    metadata_: Fields
    project_id: Nothing
    idempotent: bool | None
    limits: Fields | None
    network: str | None
    scratch: str | None
    approval_expires_s: float | None
    on_approval_expiry: str | None


class EmbeddingConfig(TypedDict):
    """The embedding model of an agent or an archive."""

    embedding_endpoint_type: str
    embedding_endpoint: str | None
    embedding_model: str
    embedding_dim: int
    embedding_chunk_size: int
    handle: str
    batch_size: int
    azure_endpoint: Nothing
    azure_version: Nothing
    azure_deployment: Nothing


class _ModelFields(TypedDict):
    """The fields that the two older forms of a model share."""

    model: str
    model_endpoint_type: str
    model_endpoint: str | None
    provider_name: str
    provider_category: str
    model_wrapper: Nothing
    context_window: int
    put_inner_thoughts_in_kwargs: bool
    handle: str
    max_tokens: int | None
    enable_reasoner: bool
    max_reasoning_tokens: int
    frequency_penalty: Nothing
    compatibility_type: Nothing
    tier: Nothing
    parallel_tool_calls: bool
    strict: bool
    return_logprobs: bool
    top_logprobs: Nothing
    return_token_ids: bool
    tool_call_parser: Nothing


class LLMConfig(_ModelFields):
    """The model of an agent, in Letta's older form."""

    display_name: str | None
    temperature: float | None
    reasoning_effort: str | None
    effort: str | None
    verbosity: str | None
    response_format: Fields | None


class AgentCompactionSettings(TypedDict):
    """The settings for the compaction of an agent's histories."""

    model: str | None
    model_settings: Fields | None
    mode: str
    prompt: str | None
    prompt_acknowledgement: bool
    clip_chars: int | None
    sliding_window_percentage: float


class Secret(Recorded):
    """A secret of an agent. Its value is empty for a caller that may not see it."""

    agent_id: str
    key: str
    value: str
    id: Nothing
    description: str | None
    value_enc: Nothing


class Group(TypedDict):
    """An agent, and the sleep-time agents that think about its turns in the background."""

    id: str
    manager_type: Literal["sleeptime"]
    agent_ids: list[str]
    description: str
    project_id: Nothing
    template_id: Nothing
    base_template_id: Nothing
    deployment_id: Nothing
    shared_block_ids: list[str]
    manager_agent_id: str
    termination_token: Nothing
    max_turns: Nothing
    sleeptime_agent_frequency: int | None
    turns_counter: int | None
    last_processed_message_id: str | None
    max_message_buffer_length: Nothing
    min_message_buffer_length: Nothing
    hidden: bool | None


class AgentState(Recorded):
    """An agent."""

    id: str
    name: str
    tool_rules: list[Fields]
    message_ids: list[str]
    system: str
    agent_type: str
    llm_config: LLMConfig
    embedding_config: EmbeddingConfig | None
    model: str
    embedding: str | None
    model_settings: Fields
    compaction_settings: AgentCompactionSettings | None
    response_format: Fields | None
    description: str | None
    metadata: Fields | None
    memory: Memory
    blocks: list[Block]
    tools: list[Tool]
    sources: list[Fields]
    tags: list[str]
    tool_exec_environment_variables: list[Secret]
    secrets: list[Secret]
    pending_approval: ApprovalRequestMessage | None
    last_stop_reason: str | None
    last_run_completion: Time | None
    last_run_duration_ms: int | None
    timezone: str | None
    approval_expires_s: float | None
    on_approval_expiry: str | None
    not_acted_on: list[str]
    project_id: Nothing
    template_id: str | None
    base_template_id: str | None
    deployment_id: Nothing
    entity_id: Nothing
    identity_ids: list[str]
    identities: list[Fields]
    message_buffer_autoclear: bool
    enable_sleeptime: bool | None
    multi_agent_group: Group | None
    managed_group: Group | None
    max_files_open: int
    per_file_view_window_char_limit: int
    hidden: bool | None


class ContextOverview(TypedDict):
    """The contents of an agent's context, in tokens."""

    context_window_size_max: int
    context_window_size_current: int
    num_messages: int
    num_archival_memory: int
    num_recall_memory: int
    external_memory_summary: str
    system_prompt: str
    core_memory: str
    num_tokens_memory_filesystem: int
    memory_filesystem: str | None
    num_tokens_tool_usage_rules: int
    tool_usage_rules: str | None
    num_tokens_directories: int
    directories: str | None
    num_tokens_summary_memory: int
    summary_memory: str | None
    functions_definitions: list[Fields]
    messages: list[Fields]
    num_tokens_system: int
    num_tokens_core_memory: int
    num_tokens_external_memory_summary: int
    num_tokens_functions_definitions: int
    num_tokens_messages: int


class Model(_ModelFields):
    """A model that agents can use."""

    name: str
    display_name: str
    provider_type: str
    model_type: Literal["llm"]
    temperature: Nothing
    reasoning_effort: Nothing
    effort: Nothing
    verbosity: Nothing
    response_format: Nothing
    max_context_window: int


class EmbeddingModel(EmbeddingConfig):
    """An embedding model that agents and archives can use."""

    name: str
    display_name: str
    provider_type: str
    provider_name: str
    model_type: Literal["embedding"]


class ImportedAgents(TypedDict):
    """The result of importing an agent file."""

    agent_ids: list[str]


class AgentFileContent(TypedDict):
    """An agent file, version 1 of Letta's format."""

    agents: list[Fields]
    groups: list[Fields]
    blocks: list[Fields]
    files: list[Fields]
    sources: list[Fields]
    tools: list[Fields]
    mcp_servers: list[Fields]
    skills: list[Fields]
    metadata: Fields
    created_at: str | None


# Archival memory.


class Archive(Recorded):
    """A collection of passages, which agents may share."""

    name: str
    description: str | None
    organization_id: Nothing
    vector_db_provider: str
    embedding_config: EmbeddingConfig | None
    metadata: Fields
    id: str


class Passage(Recorded):
    """A text in archival memory."""

    is_deleted: bool
    organization_id: Nothing
    archive_id: str
    source_id: Nothing
    file_id: Nothing
    file_name: Nothing
    metadata: Fields
    tags: list[str] | None
    id: str
    text: str
    embedding: list[float] | None
    embedding_config: EmbeddingConfig | None


class FoundMemory(TypedDict):
    """A passage that an agent's search has found."""

    id: str
    timestamp: Time
    content: str
    tags: list[str]


class FoundMemories(TypedDict):
    """The result of an agent's search."""

    results: list[FoundMemory]
    count: int


class FoundPassage(TypedDict):
    """A passage that a search has found, with the scores for its rank."""

    passage: Passage
    score: float
    metadata: Fields
