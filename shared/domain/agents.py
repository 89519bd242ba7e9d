"""Agents as stored, the memory blocks that are rendered into their instructions, and the rules for their tools."""

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any, Literal
from zoneinfo import ZoneInfo

import msgspec
from msgspec.structs import replace

from shared.domain.errors import InvalidRequest
from shared.domain.ids import AgentId, BlockId, ConversationId, ProjectId, ToolId
from shared.domain.tools import Tool

NEWEST_KIND = "letta_v1_agent"
"""The newest type of an agent, as it is stored and shown. Agents of the older types speak by calls of a tool."""


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A labelled piece of memory that the model always sees."""

    id: BlockId
    project_id: ProjectId
    label: str
    value: str
    description: str | None = None
    limit: int = 100_000
    read_only: bool = False
    metadata: dict[str, Any] = {}
    tags: list[str] = []
    version: int = 0
    """Grows with every change, by any writer."""
    created_at: datetime
    updated_at: datetime


class ModelOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options of the model's requests. None: the provider's own default."""

    temperature: float | None = None
    top_p: float | None = None
    """The share of the likeliest tokens that the next one is drawn from. Sent wherever `temperature` is."""
    max_output_tokens: int | None = None
    parallel_tool_calls: bool = True
    reasoning: bool = True
    """Ask for reasoning where the model has it."""
    reasoning_effort: str | None = None
    max_reasoning_tokens: int | None = None
    context_window: int | None = None
    response_format: dict[str, Any] | None = None
    verbosity: str | None = None
    """How long the model's answers should be, in the provider's terms: `low`, `medium`, `high`."""

    @property
    def sampling(self) -> dict[str, float]:
        """The chosen options for drawing the next token, under the names that every provider uses."""
        chosen = {"temperature": self.temperature, "top_p": self.top_p}
        return {name: value for name, value in chosen.items() if value is not None}


CompactionMode = Literal["all", "sliding_window"]


class CompactionOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The options of a compaction."""

    mode: CompactionMode = "sliding_window"
    """Summarise everything, or keep the newest turns as they are."""
    keep_share: float = 0.3
    """For a sliding window: how much of the context the kept turns may take up, from 0 to 1."""
    model: str | None = None
    """Handle of the model that writes the summary. None, or a model that cannot be called: the run's own model writes
    it."""
    model_options: ModelOptions | None = None
    """Options of the requests to that model."""
    prompt: str | None = None
    """Instructions for the model instead of our own."""
    acknowledged: bool = False
    """The conversation follows an answer in which the model agrees to summarise it. Otherwise some models would
    continue the conversation."""
    clip_chars: int | None = 50_000
    """A longer summary is cut. None: no limit."""


class WindowRules(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rules for the context of each of an agent's runs."""

    clears_context: bool = False
    """Each run begins with an empty context, but for the system message."""
    when_full: CompactionOptions = CompactionOptions()
    """How the context is compacted when it is full in the middle of a run."""


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent: instructions, a model, tools and the rules for them."""

    id: AgentId
    project_id: ProjectId
    name: str
    model: str
    """Handle `provider/model`, split at the first slash."""
    system: str
    embedding: str | None = None
    agent_type: str = NEWEST_KIND
    description: str | None = None
    options: ModelOptions = ModelOptions()
    tool_ids: list[ToolId] = []
    tool_rules: list[dict[str, Any]] = []
    """As clients write them, e.g. `{"type": "requires_approval", "tool_name": …}`."""
    block_ids: list[BlockId] = []
    tags: list[str] = []
    metadata: dict[str, Any] | None = None
    tool_environment: dict[str, str] = {}
    """Variables that the agent's tools see, as they are stored: encrypted if there is a key (`SecretKeys`)."""
    timezone: str = "UTC"
    approval_expires_s: float | None = None
    on_approval_expiry: Literal["keep", "deny", "cancel"] | None = None
    window: WindowRules = WindowRules()
    extra: dict[str, Any] = {}
    """Fields of requests that Holdfast stores and returns, but does not act on."""
    last_stop_reason: str | None = None
    created_at: datetime
    updated_at: datetime


LARGEST_PART = 500_000
"""Bytes of a part of an agent as JSON. Each request for the agent reads all parts at once, and changes accumulate."""

_NAMES_ON_THE_WIRE = {"options": "model_settings", "tool_environment": "secrets", "window": "compaction_settings"}
_BOUNDED_ALONE = frozenset({"system", "description", "metadata", "tags", "tool_ids", "block_ids"})


def refuse_large_parts(agent: Agent) -> None:
    """Raises `InvalidRequest` for a part of the agent that is too large to be read for each request."""
    for field in agent.__struct_fields__:
        size = 0 if field in _BOUNDED_ALONE else _size(getattr(agent, field))
        if size > LARGEST_PART:
            named = max(agent.extra, key=lambda key: _size(agent.extra[key])) if field == "extra" else field
            named = _NAMES_ON_THE_WIRE.get(named, named)
            raise InvalidRequest(
                f"{named} would make the agent too large: {size} bytes of JSON are more than the {LARGEST_PART} that "
                "are allowed. Leave out data that no run needs",
                field=named,
            )


def _size(value: object) -> int:
    return len(msgspec.json.encode(value))


DEFAULT_SYSTEM = (
    "You are a capable assistant. Use the tools that you are given when they help, and keep going until the task is "
    "done or you need something from the user. Say so plainly when you do not know or cannot do a thing."
)
"""The instructions of an agent that was created without any."""


def render_system(agent: Agent, blocks: Sequence[Block], conversation_id: ConversationId | None = None) -> str:
    """The beginning of the model's request: the agent's instructions, its memory blocks in the order in which they were
    attached, and the metadata of the memory.

    It changes only when the agent or its memory does, so that providers can cache the beginning of a request.
    """
    parts = [agent.system, render_memory(blocks), render_metadata(agent, blocks, conversation_id)]
    return "\n\n".join(part for part in parts if part)


def render_metadata(agent: Agent, blocks: Sequence[Block], conversation_id: ConversationId | None = None) -> str:
    """The metadata of the memory: its agent, and the time of the last change."""
    changed_at = max([agent.updated_at, *(block.updated_at for block in blocks)])
    lines = [
        "<memory_metadata>",
        f"- AGENT_ID: {agent.id}",
        f"- CONVERSATION_ID: {conversation_id or 'default'}",
        f"- System prompt last recompiled: {changed_at.astimezone(zone_of(agent.timezone)):%Y-%m-%d %I:%M:%S %p %Z%z}",
        "</memory_metadata>",
    ]
    return "\n".join(lines)


def characters_of_memory(blocks: Iterable[Block]) -> int:
    """The approximate length of the memory section."""
    return sum(len(block.value) + len(block.description or "") for block in blocks)


def render_memory(blocks: Iterable[Block]) -> str:
    """The memory section alone; empty without blocks.

    A block may be shared, so writers unknown to the agent's owner may change it. Its text must stay text: a tag in it
    that would end the block's section, or the whole memory section, gets a backslash.
    """
    shown = list(blocks)
    if not shown:
        return ""
    ends = _ends_of_sections({block.label for block in shown})
    opening = "This is what you remember. It stays in view during the whole conversation."
    sections = [_render_block(block, ends) for block in shown]
    return "\n\n".join(["<memory_blocks>\n" + opening, *sections, "</memory_blocks>"])


def _render_block(block: Block, ends: re.Pattern[str]) -> str:
    tag = _TAG_SIGNS.sub("_", block.label)
    lines = [f"<{tag}>"]
    if block.description:
        lines.append(f"<description>{_as_text(block.description, ends)}</description>")
    size = f"{len(block.value)} of {block.limit} characters"
    lines.append(f"<size>{size}{', read-only' if block.read_only else ''}</size>")
    lines.append(f"<value>\n{_as_text(block.value, ends)}\n</value>")
    lines.append(f"</{tag}>")
    return "\n".join(lines)


_TAG_SIGNS = re.compile(r"[<>\r\n]")
_OWN_TAGS = ("memory_blocks", "memory_metadata", "description", "size", "value")


def _ends_of_sections(labels: Collection[str]) -> re.Pattern[str]:
    """Matches the closing tags of the section in any case and with spaces inside, because a model reads these as
    closing tags, too. Other tags stay unchanged, because agents keep code and pages in their memory."""
    names = "|".join(map(re.escape, sorted({*_OWN_TAGS, *(_TAG_SIGNS.sub("_", label) for label in labels)})))
    # The number of spaces is limited, so that a text of spaces costs no more than another.
    return re.compile(rf"<\s{{0,8}}/(?=\s{{0,8}}(?:{names})\s{{0,8}}>)", re.IGNORECASE)


def _as_text(text: str, ends: re.Pattern[str]) -> str:
    return ends.sub(r"<\\/", text) if "<" in text else text


def agent_for_tool(agent: Agent, blocks: Iterable[Block]) -> dict[str, Any]:
    """The agent's data for a tool that runs for it, as JSON. It leaves out the agent's variables, because they are
    secrets."""
    shown = ("id", "label", "value", "description", "limit", "read_only")
    memory = [{name: getattr(block, name) for name in shown} for block in blocks]
    plain = ("id", "name", "description", "agent_type", "model", "system", "tags", "metadata", "timezone")
    return {name: getattr(agent, name) for name in plain} | {"memory": {"blocks": memory}}


OVERRIDES = "approval_overrides"
"""Key of `Agent.extra`: tool name to whether its calls wait for a person, as `PATCH …/tools/approval/{name}` sets it.

Calls of a tool may wait because of a `requires_approval` rule among the agent's tool rules, or because of this override
for one tool. If a client has set both, the later one counts.
"""


def requires_approval(agent: Agent, tool_name: str, default: bool | None) -> bool:
    """Whether a call of this tool waits for a person: as the override says, else by the agent's rule, else by the
    tool's default."""
    override = _overrides(agent).get(tool_name)
    if override is not None:
        return bool(override)
    return tool_name in _ruled(agent.tool_rules) or bool(default)


def with_default_approvals(agent: Agent, tools: Iterable[Tool]) -> Agent:
    """The agent with a rule for each of `tools` that requires approval by default and has neither a rule nor an
    override yet."""
    settled = _ruled(agent.tool_rules) | set(_overrides(agent))
    new = [tool.name for tool in tools if tool.default_requires_approval and tool.name not in settled]
    return replace(agent, tool_rules=[*agent.tool_rules, *map(_rule, new)]) if new else agent


def with_approval_override(agent: Agent, tool_name: str, *, required: bool) -> Agent:
    """The agent with an override: calls of `tool_name` wait for a person, or do not, whatever the tool's default is."""
    rules = [rule for rule in agent.tool_rules if not _asks(rule, tool_name)]
    if required:
        rules.append(_rule(tool_name))
    return replace(agent, tool_rules=rules, extra=agent.extra | {OVERRIDES: _overrides(agent) | {tool_name: required}})


def with_tool_rules(agent: Agent, rules: list[dict[str, Any]]) -> Agent:
    """The agent with these rules instead of its own; overrides that contradict them are removed."""
    ruled = _ruled(rules)
    kept = {name: required for name, required in _overrides(agent).items() if required == (name in ruled)}
    return replace(agent, tool_rules=rules, extra=agent.extra | {OVERRIDES: kept})


def _rule(tool_name: str) -> dict[str, Any]:
    return {"tool_name": tool_name, "type": "requires_approval", "prompt_template": None}


def _asks(rule: dict[str, Any], tool_name: str) -> bool:
    return rule.get("type") == "requires_approval" and rule.get("tool_name") == tool_name


def _ruled(rules: Iterable[dict[str, Any]]) -> set[str]:
    return {rule["tool_name"] for rule in rules if rule.get("type") == "requires_approval"}


def _overrides(agent: Agent) -> dict[str, bool]:
    return agent.extra.get(OVERRIDES, {})


# The rules for an agent's secrets: how a change is applied, and how an encrypted text is marked.
#
# Clients see names without values, and many send back the whole map with one entry changed. So an empty value never
# replaces a stored one.


SEALED = "holdfast-sealed:"
"""The prefix of encrypted values. A value from a client must not begin with it."""


def is_sealed(stored: str) -> bool:
    """Whether a stored value is encrypted."""
    return stored.startswith(SEALED)


def changed_secrets(before: Mapping[str, str], given: Mapping[str, str | None], *, sees_values: bool) -> dict[str, str]:
    """The secrets after a client has sent `given`.

    An empty value, or None, keeps the stored value. A name that is left out is removed, but only if the client may see
    the values: other clients could not send them back. Raises `InvalidRequest`.
    """
    for name, value in given.items():
        if value and is_sealed(value):
            raise InvalidRequest(
                f"secrets: the value of {name!r} begins with {SEALED!r}, which marks encrypted values", field="secrets"
            )
    after = {name: value or before.get(name, "") for name, value in given.items()}
    return after if sees_values else {**before, **after}


# Skills that a client names with its request, as the model sees them: files in a tree for each folder.


FILE = "SKILL.md"
DEFAULT_FOLDER = "${MEMORY_DIR}/skills"
"""The folder of skills without a location. Clients fill in the variable themselves."""


class ClientSkill(msgspec.Struct, frozen=True):
    """A skill that the client has."""

    name: str
    description: str = ""
    location: str = ""


class Folder(msgspec.Struct):
    """Folders and files, by name; each file with its description."""

    folders: dict[str, "Folder"] = msgspec.field(default_factory=dict[str, "Folder"])
    files: dict[str, str] = msgspec.field(default_factory=dict[str, str])

    def add(self, path: str, about: str) -> None:
        *folders, file = path.split("/")
        place = self
        for name in folders:
            place = place.folders.setdefault(name, Folder())
        place.files[file] = about

    def lines(self, indent: str = "") -> Iterator[str]:
        """A tree: the folders first, then the files."""
        last = len(self.folders) + len(self.files)
        for number, (name, inner) in enumerate(sorted(self.folders.items()), start=1):
            yield f"{indent}{_branch(number, last)}{name}/"
            yield from inner.lines(indent + ("    " if number == last else "│   "))
        for number, (name, about) in enumerate(sorted(self.files.items()), start=len(self.folders) + 1):
            yield f"{indent}{_branch(number, last)}{name}" + (f" ({about})" if about else "")


def _branch(number: int, last: int) -> str:
    return "└── " if number == last else "├── "


def with_skills(system: str, skills: Iterable[ClientSkill]) -> str:
    """The instructions, followed by the skills. Of two skills of one name the first counts."""
    named = {skill.name: skill for skill in reversed(list(skills))}
    if not named:
        return system
    roots: dict[str, Folder] = {}
    for skill in named.values():
        root, path = _place(skill)
        roots.setdefault(root, Folder()).add(path, _first_line(skill.description))
    trees = ("\n".join([root, *roots[root].lines()]) for root in sorted(roots))
    listed = "\n\n".join(trees)
    return f"{system.rstrip()}\n\n<available_skills>\n{listed}\n</available_skills>"


def _place(skill: ClientSkill) -> tuple[str, str]:
    """The folder under which a skill is listed, and its path there."""
    location = skill.location.strip() or f"{DEFAULT_FOLDER}/{skill.name}/{FILE}"
    folder, file = posixpath.split(location)
    if file == FILE and posixpath.basename(folder) == skill.name.rpartition("/")[2]:
        root, name = posixpath.split(folder)
        return root, f"{name}/{file}"
    return folder, file


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].strip()


LONGEST_NAME = 100
"""Characters of a time zone's name."""


def zone_of(timezone: str) -> tzinfo:
    """The zone of this name; UTC if there is no such zone, because agents may have any text as their timezone."""
    if len(timezone) > LONGEST_NAME:
        return UTC  # ZoneInfo would look for a file of this name
    try:
        return ZoneInfo(timezone)
    except (KeyError, ValueError, OSError):
        return UTC
