"""Agents on Letta's wire: requests that create and change agents, and the state that clients get. `KEPT` names the
fields that the server only stores and returns."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, NamedTuple, Self

from msgspec.structs import replace
from pydantic import BaseModel, Field, model_validator

from api.input_limits import (
    MOST_ENTRIES,
    Description,
    Few,
    Instructions,
    Metadata,
    Name,
    Names,
    Tags,
    Variables,
)
from api.letta.context import SETTINGS as COMPACTION
from api.letta.context import CompactionSettings, changed_settings, when_full, wire_settings
from api.letta.groups import wire_group
from api.letta.memory import BlockCreate, filled_in, wire_block
from api.letta.message_input import MessageIn, user_messages
from api.letta.messages import wire_stop_reason, wire_time
from api.letta.model_settings import (
    KEPT_SETTINGS,
    AnswerFormat,
    EmbeddingConfigFields,
    Handle,
    LlmConfigFields,
    ModelSettingsFields,
    Temperature,
    Tokens,
    changed_options,
    wire_embedding_config,
    wire_llm_config,
    wire_model_settings,
    without_defaults,
    without_shown_limit,
)
from api.letta.runs import Waiting
from api.letta.tools import ToolRule, wire_tool, without_source
from shared.domain.agents import (
    DEFAULT_SYSTEM,
    LONGEST_NAME,
    Agent,
    ModelOptions,
    WindowRules,
    changed_secrets,
    with_tool_rules,
)
from shared.domain.groups import ENABLED, SLEEPTIME_AGENT, SYSTEM
from shared.domain.ids import BlockId, IdMaker, ProjectId, ToolId
from shared.domain.messages import AssistantMessage, NewMessage, UserMessage, text_of
from shared.domain.models import DEFAULT_HANDLE, PROVIDERS, can_embed, split_handle
from shared.domain.tool_catalog import MESSAGES_AGENTS, base_tool_rules, default_base_tools, needs_base_rules
from shared.sql.definitions.agents import AgentDetails

CLEARS_CONTEXT = "message_buffer_autoclear"
"""Key of `Agent.extra`: whether each run of the agent begins with an empty context."""

KEPT = (
    "base_template_id",
    "compaction_settings",
    "enable_sleeptime",
    "hidden",
    "identity_ids",
    "max_files_open",
    CLEARS_CONTEXT,
    "per_file_view_window_char_limit",
    "template_id",
)
"""Fields of the wire that `Agent.extra` stores under their own names."""

NOTED = "not_acted_on"
"""Key of `Agent.extra`: the names in `SHAPES_NOTHING` that a client has set."""

SHAPES_NOTHING: Mapping[str, str] = {
    "folder_ids": "there are no folders and files here; archival memory keeps texts",
    "from_template": "there are no templates here, so the agent has only what the request says",
    "source_ids": "there are no folders and files here; archival memory keeps texts",
    "template": "there are no templates here",
}
"""Fields that have an effect on Letta's server, but not on this server, each with the reason."""

_PLAIN = ("name", "system", "description", "metadata", "timezone", "tags", "approval_expires_s", "on_approval_expiry")


class AgentFields(BaseModel):
    """A client's fields of an agent."""

    name: Name | None = Field(default=None, min_length=1)
    system: Instructions | None = None
    description: Description | None = None
    metadata: Metadata | None = None
    timezone: Annotated[str, Field(max_length=LONGEST_NAME)] | None = None
    tags: Tags | None = None
    tool_ids: Names | None = None
    block_ids: Names | None = None
    tool_rules: Annotated[list[ToolRule], Field(max_length=MOST_ENTRIES)] | None = None
    tool_exec_environment_variables: Variables | None = None
    secrets: Variables | None = None

    model: Handle | None = None
    llm_config: LlmConfigFields | None = None
    model_settings: ModelSettingsFields | None = None
    embedding: str | None = None
    embedding_config: EmbeddingConfigFields | None = None
    parallel_tool_calls: bool | None = None
    temperature: Temperature | None = None
    context_window_limit: Tokens | None = None
    max_tokens: Tokens | None = None
    max_reasoning_tokens: Tokens | None = None
    enable_reasoner: bool | None = None
    reasoning: bool | None = None
    response_format: AnswerFormat | None = None

    approval_expires_s: Waiting | None = None
    on_approval_expiry: Literal["keep", "deny", "cancel"] | None = None

    base_template_id: str | None = None
    compaction_settings: CompactionSettings | None = None
    enable_sleeptime: bool | None = None
    folder_ids: Names | None = None
    from_template: str | None = None
    hidden: bool | None = None
    identity_ids: Names | None = None
    max_files_open: int | None = None
    message_buffer_autoclear: bool | None = None
    per_file_view_window_char_limit: int | None = None
    source_ids: Names | None = None
    template: bool | None = None
    template_id: str | None = None

    @model_validator(mode="after")
    def _names_a_known_model(self) -> Self:
        # The older config has its provider in a field of its own.
        self.handle()
        return self

    def handle(self, shown: str | None = None) -> str | None:
        """The model that the request names, in any field. `shown`: the agent's model that the client has seen."""
        return self.model or (self.llm_config.full_handle(shown) if self.llm_config else None)

    def options(self, before: ModelOptions, shown_for: str) -> ModelOptions:
        """The model's options after the request. `shown_for` is the model whose settings the client has seen."""
        single = {
            "parallel_tool_calls": self.parallel_tool_calls,
            "temperature": self.temperature,
            "context_window": self.context_window_limit,
            "max_output_tokens": self.max_tokens,
            "max_reasoning_tokens": self.max_reasoning_tokens,
            "reasoning": self.reasoning if self.reasoning is not None else self.enable_reasoner,
            "response_format": self.response_format,
        }
        limits = ((self, "max_tokens"), (self.llm_config, "max_tokens"), (self.model_settings, "max_output_tokens"))
        if any(said and name in said.model_fields_set and getattr(said, name) is None for said, name in limits):
            before = replace(before, max_output_tokens=None)
        config = without_shown_limit(self.llm_config, before, shown_for) if self.llm_config else {}
        settings = self.model_settings.options() if self.model_settings else {}
        return changed_options(before, config, without_defaults(settings, before, shown_for, self.handle()), single)

    def kept(self, before: dict[str, Any]) -> dict[str, Any]:
        """The fields that the server only stores and returns, after the request."""
        given = {name: value for name in KEPT if (value := getattr(self, name)) is not None}
        if self.compaction_settings is not None:
            given[COMPACTION] = changed_settings(before.get(COMPACTION), self.compaction_settings)
        if self.model_settings is not None and self.model_settings.model_extra:
            given[KEPT_SETTINGS] = before.get(KEPT_SETTINGS, {}) | self.model_settings.model_extra
        if noted := self._noted(before):
            given[NOTED] = noted
        elif NOTED in before:
            before = {name: value for name, value in before.items() if name != NOTED}
        return before | given

    def _noted(self, before: Mapping[str, Any]) -> list[str]:
        said = (self.folder_ids, self.from_template, self.source_ids, self.template)
        given, earlier = self.model_fields_set, before.get(NOTED, ())
        named = zip(SHAPES_NOTHING, said, strict=True)
        return [name for name, value in named if (value if name in given else name in earlier)]

    def apply(self, agent: Agent, *, sees_secrets: bool = True) -> Agent:
        """The agent after the request. A field stays if the request omits it, or sets it to null where null is invalid.

        `sees_secrets`: whether the client may see the values of the agent's secrets (`changed_secrets`).
        """
        changes: dict[str, Any] = dict.fromkeys(self.model_fields_set & {"approval_expires_s", "on_approval_expiry"})
        changes |= {name: value for name in _PLAIN if (value := getattr(self, name)) is not None}
        if self.tool_ids is not None:
            changes["tool_ids"] = [ToolId(tool_id) for tool_id in dict.fromkeys(self.tool_ids)]
        if self.block_ids is not None:
            changes["block_ids"] = [BlockId(block_id) for block_id in dict.fromkeys(self.block_ids)]
        variables = self.secrets if self.secrets is not None else self.tool_exec_environment_variables
        if variables is not None:
            changes["tool_environment"] = changed_secrets(agent.tool_environment, variables, sees_values=sees_secrets)
        embedding = self.embedding or (self.embedding_config.full_handle() if self.embedding_config else None)
        extra = self.kept(agent.extra)
        changed = replace(
            agent,
            model=self.handle(agent.model if isinstance(self, AgentUpdate) else None) or agent.model,
            embedding=embedding or agent.embedding,
            options=self.options(agent.options, agent.model),
            window=window_rules_of(extra),
            extra=extra,
            **changes,
        )
        if self.tool_rules is None:
            return changed
        rules = [rule.document() for rule in self.tool_rules]
        return with_tool_rules(changed, [rule for place, rule in enumerate(rules) if rule not in rules[:place]])


AgentType = Literal[
    "letta_v1_agent", "memgpt_agent", "memgpt_v2_agent", "sleeptime_agent", "react_agent", "workflow_agent",
    "split_thread_agent", "voice_convo_agent", "voice_sleeptime_agent",
]  # fmt: skip


class AgentCreate(AgentFields):
    """An agent to make."""

    agent_type: AgentType = "letta_v1_agent"
    tools: Names | None = None
    """Names of tools, in addition to `tool_ids`."""
    include_base_tools: bool | None = True
    include_base_tool_rules: bool | None = None
    include_multi_agent_tools: bool | None = None
    memory_blocks: Annotated[list[BlockCreate], Field(max_length=MOST_ENTRIES)] | None = None
    memory_variables: Annotated[dict[str, str], Few] | None = None
    """The values for each `{{name}}` in `memory_blocks`."""
    initial_message_sequence: Annotated[list[MessageIn], Field(max_length=1000)] | None = None
    """The history's first messages. The agent does not answer them."""

    @model_validator(mode="after")
    def _has_plain_first_messages(self) -> Self:
        if any(message.type != "message" for message in self.initial_message_sequence or ()):
            raise ValueError("initial_message_sequence: a history cannot begin with a decision or a tool's result")
        return self

    def filled_blocks(self) -> list[BlockCreate]:
        """The new blocks with their variables replaced. Raises `InvalidRequest` if a block then exceeds its limit."""
        return [filled_in(block, self.memory_variables or {}) for block in self.memory_blocks or ()]

    def base_tools(self) -> tuple[str, ...]:
        """The names of the tools that an agent of this type gets unless the request declines them."""
        of_kind: tuple[str, ...] = ()
        if self.include_base_tools is not False:
            of_kind = default_base_tools(self.agent_type, enable_sleeptime=bool(self.enable_sleeptime))
        return (*of_kind, *MESSAGES_AGENTS) if self.include_multi_agent_tools else of_kind

    def base_rules(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """The rules for base tools of these names, in the wire's form. If the request does not choose, agents of the
        newest type with its usual tools get none, nor do agents whose models work better without rules."""
        wanted = self.include_base_tool_rules
        if wanted is None:
            is_usual = self.agent_type == "letta_v1_agent" and self.include_base_tools is not False
            wanted = not (is_usual and not self.tool_rules) and needs_base_rules(self.agent_type, self.handle() or "")
        return base_tool_rules(dict.fromkeys(names)) if wanted else []


class AgentUpdate(AgentFields):
    """The changes to an agent."""


def new_agent(
    body: AgentCreate,
    project_id: ProjectId,
    ids: IdMaker,
    now: datetime,
    named_tools: Sequence[ToolId] = (),
    names: Sequence[str] = (),
) -> Agent:
    """The agent that the request describes, without its new blocks. `named_tools` are the tools that the request names,
    and the base tools; `names` are the names of all its tools."""
    agent_id = ids.agent()
    blank = Agent(
        id=agent_id,
        project_id=project_id,
        name=f"agent-{agent_id.split('-')[1]}",
        model=body.handle() or DEFAULT_HANDLE,
        system=SYSTEM if body.agent_type == SLEEPTIME_AGENT else DEFAULT_SYSTEM,
        agent_type=body.agent_type,
        created_at=now,
        updated_at=now,
    )
    agent = body.apply(blank)
    return replace(
        agent,
        tool_ids=list(dict.fromkeys([*agent.tool_ids, *named_tools])),
        tool_rules=agent.tool_rules + [rule for rule in body.base_rules(names) if rule not in agent.tool_rules],
    )


def window_rules_of(extra: Mapping[str, Any]) -> WindowRules:
    """The rules in `Agent.extra` for the context of each of the agent's runs."""
    return WindowRules(bool(extra.get(CLEARS_CONTEXT)), when_full(extra))


def first_messages(given: Sequence[MessageIn], ids: IdMaker, now: datetime) -> list[NewMessage]:
    """The first messages of a history. Those of the assistant count as answers."""
    said = user_messages(list(given), ids, now)
    return [
        replace(message, body=AssistantMessage(text=text_of(message.body.content)))
        if isinstance(message.body, UserMessage) and message.body.role == "assistant"
        else message
        for message in said
    ]


# The agent's state on Letta's wire.


SECRETS = "agent.secrets"
"""Value of `include` that requests the secrets; only a caller that may see their values gets them."""
PENDING_APPROVAL = "agent.pending_approval"
"""The only other value of `include` with an effect. The state always has all other includable parts."""

_MILLISECOND = timedelta(milliseconds=1)


class ShownSecret(NamedTuple):
    """A secret for a client: its name, and its value or an empty text."""

    name: str
    value: str = ""
    description: str | None = None
    """The reason for a missing value."""


def wire_agent(
    details: AgentDetails,
    environment: Mapping[str, str],
    *,
    secrets: Sequence[ShownSecret] = (),
    pending_approval: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The wire's agent state. `pending_approval` is the wire's message for a waiting approval request."""
    agent, last = details.agent, details.last_run
    blocks = [wire_block(block) for block in details.blocks]
    variables = [_variable(agent, secret) for secret in secrets]
    group = None if details.group is None else wire_group(details.group)
    return {
        "created_by_id": None,
        "last_updated_by_id": None,
        "created_at": wire_time(agent.created_at),
        "updated_at": wire_time(agent.updated_at),
        "id": agent.id,
        "name": agent.name,
        "tool_rules": agent.tool_rules,
        "message_ids": details.message_ids,
        "system": agent.system,
        "agent_type": agent.agent_type,
        "llm_config": wire_llm_config(agent, environment),
        "embedding_config": wire_embedding_config(agent.embedding, environment),
        "model": agent.model,
        "embedding": agent.embedding,
        "model_settings": wire_model_settings(agent),
        "compaction_settings": wire_settings(agent.extra, agent.model),
        "response_format": agent.options.response_format,
        "description": agent.description,
        "metadata": agent.metadata,
        "memory": {
            "agent_type": agent.agent_type,
            "git_enabled": False,
            "blocks": blocks,
            "file_blocks": [],
            "prompt_template": "",
        },
        "blocks": blocks,
        "tools": [wire_tool(tool) for tool in details.tools],
        "sources": [],
        "tags": agent.tags,
        "tool_exec_environment_variables": variables,
        "secrets": variables,
        "pending_approval": pending_approval,
        "last_stop_reason": wire_stop_reason(agent.last_stop_reason),
        "last_run_completion": wire_time(last.completed_at if last else None),
        "last_run_duration_ms": round((last.completed_at - last.submitted_at) / _MILLISECOND) if last else None,
        "timezone": agent.timezone,
        "approval_expires_s": agent.approval_expires_s,
        "on_approval_expiry": agent.on_approval_expiry,
        "not_acted_on": list(_notes_on(details, environment)),
        "multi_agent_group": group,
        "managed_group": group,
        **_echoed(agent.extra),
    }


def without_instructions(state: dict[str, Any]) -> dict[str, Any]:
    """The state for a caller that talks to the agent and may not see the project's texts in it. Fields that clients
    require are empty."""
    return {
        **state,
        "system": "",
        "tools": [without_source(tool) for tool in state["tools"]],
        "tool_rules": [],
        "compaction_settings": None,
        "response_format": None,
        "metadata": None,
        "tool_exec_environment_variables": [],
        "secrets": [],
    }


def _echoed(extra: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "project_id": None,
        "template_id": extra.get("template_id"),
        "base_template_id": extra.get("base_template_id"),
        "deployment_id": None,
        "entity_id": None,
        "identity_ids": extra.get("identity_ids") or [],
        "identities": [],
        "message_buffer_autoclear": bool(extra.get("message_buffer_autoclear")),
        "enable_sleeptime": extra.get("enable_sleeptime"),
        "max_files_open": extra.get("max_files_open") or 10,
        "per_file_view_window_char_limit": extra.get("per_file_view_window_char_limit") or 25_000,
        "hidden": extra.get("hidden"),
    }


def _variable(agent: Agent, secret: ShownSecret) -> dict[str, Any]:
    moment = wire_time(agent.updated_at)
    return {
        "agent_id": agent.id,
        "key": secret.name,
        "value": secret.value,
        "id": None,
        "description": secret.description,
        "value_enc": None,
        "created_at": moment,
        "updated_at": moment,
        "created_by_id": None,
        "last_updated_by_id": None,
    }


def _notes_on(details: AgentDetails, environment: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each field of the agent that has no effect, beginning with the field's name. The answer to such a
    request also has a `Warning` header, but clients drop headers."""
    agent = details.agent
    if agent.extra.get(ENABLED) and details.group is None:
        yield "enable_sleeptime: the agent has no sleep-time agent; a PATCH with enable_sleeptime true makes one"
    for name in agent.extra.get(NOTED, ()):
        if name in SHAPES_NOTHING:
            yield f"{name}: {SHAPES_NOTHING[name]}"
    if agent.embedding is not None and not _can_be_asked(agent.embedding, environment):
        yield (
            f"embedding: this server cannot ask {agent.embedding!r}, so archival memory is searched by words; "
            "GET /v1/models/embedding lists the models that it can ask"
        )


def _can_be_asked(handle: str, environment: Mapping[str, str]) -> bool:
    return can_embed(handle) and PROVIDERS[split_handle(handle)[0]].is_configured(environment)
