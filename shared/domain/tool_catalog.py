"""The tools that come with every project, as a model sees them.

Agents, prompts and programs depend on their names and parameters.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from shared.domain.agents import NEWEST_KIND
from shared.domain.tools import BASE_TYPES, BUILTIN, CORE, MEMORY, MULTI_AGENT, SLEEPTIME, Kind, Tool

JsonObject = dict[str, Any]

ASKS_AGENT = "send_message_to_agent_and_wait_for_reply"
ASKS_TAGGED_AGENTS = "send_message_to_agents_matching_tags"
TELLS_AGENT = "send_message_to_agent_async"
RUNS_AGENT = "run_agent"


class BaseTool(msgspec.Struct, frozen=True):
    """One tool of the product's own."""

    name: str
    kind: Kind
    description: str
    properties: dict[str, JsonObject]
    required: Sequence[str] = ()
    enable_parallel_execution: bool = False
    starts_once: bool = False
    """It runs a program whose second start may have unknown effects. Other base tools only read, or store their result
    in the transaction of their change."""

    @property
    def json_schema(self) -> JsonObject:
        """The schema that the model sees."""
        return {"name": self.name, "description": self.description, "parameters": self._parameters(self.properties)}

    @property
    def arguments(self) -> JsonObject:
        """The schema for checking arguments. Models write null for omitted arguments."""
        nullable: JsonObject = {"type": "null"}
        optional = {
            name: known if name in self.required else {"anyOf": [known, nullable]}
            for name, known in self.properties.items()
        }
        return self._parameters(optional)

    def _parameters(self, properties: dict[str, JsonObject]) -> JsonObject:
        return {"type": "object", "properties": properties, "required": list(self.required)}


def _text(description: str) -> JsonObject:
    return {"type": "string", "description": description}


def _number(description: str) -> JsonObject:
    return {"type": "integer", "description": description}


def _texts(description: str, *allowed: str) -> JsonObject:
    items: JsonObject = {"type": "string", "enum": list(allowed)} if allowed else {"type": "string"}
    return {"type": "array", "items": items, "description": description}


_LABEL = _text("Label of the memory block.")
_SINCE = "ISO 8601, e.g. 2024-01-15 or 2024-01-15T14:30; a date alone is"

BASE_TOOLS: Final = (
    BaseTool(
        "send_message",
        CORE,
        "Sends a message to the user.",
        {"message": _text("What the user is to read.")},
        ["message"],
    ),
    BaseTool(
        "conversation_search",
        CORE,
        "Searches everything that was said between you and the user, also what has left your context. A message is "
        "found when it has every word of the query. Without a query, it lists the newest messages that the other "
        "filters allow.",
        {
            "query": _text("Words to look for."),
            "roles": _texts("Only messages of these roles.", "assistant", "user", "tool"),
            "limit": _number("The most results; 5 when left out."),
            "start_date": _text(f"Only messages from this moment on ({_SINCE} its beginning)."),
            "end_date": _text(f"Only messages up to this moment ({_SINCE} its end)."),
        },
        enable_parallel_execution=True,
    ),
    BaseTool(
        "archival_memory_insert",
        CORE,
        "Stores a text in your archival memory, for good. Write it so that it can be understood by itself, and give it "
        "tags by which it is found.",
        {"content": _text("The text."), "tags": _texts("What it is about, e.g. meetings.")},
        ["content"],
    ),
    BaseTool(
        "archival_memory_search",
        CORE,
        "Searches your archival memory. The best fitting texts come first.",
        {
            "query": _text("What you look for."),
            "tags": _texts("Only texts with these tags."),
            "tag_match_mode": {
                "type": "string",
                "enum": ["any", "all"],
                "description": "Whether a text needs one of the tags or all of them; one when left out.",
            },
            "top_k": _number("The most results; 10 when left out."),
            "start_datetime": _text(f"Only texts from this moment on ({_SINCE} its beginning)."),
            "end_datetime": _text(f"Only texts up to this moment ({_SINCE} its end)."),
        },
        ["query"],
        enable_parallel_execution=True,
    ),
    BaseTool(
        "core_memory_append",
        MEMORY,
        "Adds a line to the end of a memory block.",
        {"label": _LABEL, "content": _text("What is added.")},
        ["label", "content"],
    ),
    BaseTool(
        "core_memory_replace",
        MEMORY,
        "Replaces a text in a memory block, wherever it occurs. To remove it, replace it with an empty text.",
        {
            "label": _LABEL,
            "old_content": _text("The text to replace, exactly as it stands there."),
            "new_content": _text("What takes its place."),
        },
        ["label", "old_content", "new_content"],
    ),
    BaseTool(
        "memory_insert",
        SLEEPTIME,
        "Inserts text into a memory block after a line; at the end unless a line is given.",
        {
            "label": _LABEL,
            "new_string": _text("The text to insert."),
            "insert_line": _number("Number of the line after which it is inserted: 0 is the beginning, -1 the end."),
        },
        ["label", "new_string"],
    ),
    BaseTool(
        "memory_replace",
        SLEEPTIME,
        "Replaces one passage of a memory block. The passage must occur exactly once. This is for precise edits, not "
        "for whole blocks.",
        {
            "label": _LABEL,
            "old_string": _text("The passage to replace, exactly as it stands there, white space included."),
            "new_string": _text("What takes its place; empty to remove it."),
        },
        ["label", "old_string", "new_string"],
    ),
    BaseTool(
        "memory_apply_patch",
        MEMORY,
        "Edits memory blocks by a patch in the form of a unified diff without line numbers. Its lines begin with ' ' "
        "(stays as it is), '-' (is removed) or '+' (is added); '@@' stands before the next place. Give enough lines "
        "that stay for the place to be found. Without headers it is for the block of the label. With headers it is for "
        "several blocks, of which all are changed or none: '*** Update Block: <label>', '*** Add Block: <label>' (a "
        "line 'Description: <text>' may follow, then lines with '+'), '*** Delete Block: <label>', and '*** Move to: "
        "<new label>' behind any of them, which renames it.",
        {"label": _text("Label of the memory block; empty when the patch has headers."), "patch": _text("The patch.")},
        ["label", "patch"],
    ),
    BaseTool(
        "memory_rethink",
        SLEEPTIME,
        "Writes a memory block anew. This is for large changes, as when a block is condensed or reorganised, not for "
        "precise edits.",
        {"label": _LABEL, "new_memory": _text("The whole new text of the block.")},
        ["label", "new_memory"],
    ),
    BaseTool("memory_finish_edits", SLEEPTIME, "Says that you have finished editing your memory.", {}),
    BaseTool(
        "memory",
        MEMORY,
        "Manages your memory blocks. Commands: create (path, description, file_text), str_replace (path, old_string, "
        "new_string), insert (path, insert_text, insert_line), delete (path), rename (old_path and new_path, or path "
        "and a new description). A path is /memories/ and the block's label.",
        {
            "command": {
                "type": "string",
                "enum": ["create", "str_replace", "insert", "delete", "rename"],
                "description": "What to do.",
            },
            "path": _text("Path of the block."),
            "file_text": _text("create: the block's text."),
            "description": _text("create, rename: what the block is for."),
            "old_string": _text("str_replace: the passage to replace; it must occur exactly once."),
            "new_string": _text("str_replace: what takes its place."),
            "insert_line": _number("insert: number of the line after which the text is inserted; -1 is the end."),
            "insert_text": _text("insert: the text to insert."),
            "old_path": _text("rename: the present path."),
            "new_path": _text("rename: the new path."),
        },
        ["command"],
    ),
    BaseTool(
        "web_search",
        BUILTIN,
        "Searches the web.",
        {"query": _text("What to look for."), "num_results": _number("The most results.")},
        ["query"],
        enable_parallel_execution=True,
    ),
    BaseTool(
        "fetch_webpage",
        BUILTIN,
        "Fetches a web page and gives its text.",
        {"url": _text("The page's address.")},
        ["url"],
        enable_parallel_execution=True,
    ),
    BaseTool(
        "run_code",
        BUILTIN,
        "Runs code in a sandbox and gives what it prints.",
        {
            "code": _text("The code."),
            "language": {
                "type": "string",
                "enum": ["python", "js", "ts", "r", "java"],
                "description": "The language of the code.",
            },
        },
        ["code", "language"],
        enable_parallel_execution=True,
        starts_once=True,
    ),
    BaseTool(
        "run_code_with_tools",
        BUILTIN,
        "Runs Python code in a sandbox, which can call your tools, and gives what it prints.",
        {"code": _text("The Python code.")},
        ["code"],
        starts_once=True,
    ),
    BaseTool(
        ASKS_AGENT,
        MULTI_AGENT,
        "Sends a message to another agent and waits for its reply. The message names you as its sender.",
        {"message": _text("What the other agent reads."), "other_agent_id": _text("The id of the other agent.")},
        ["message", "other_agent_id"],
        enable_parallel_execution=True,
    ),
    BaseTool(
        TELLS_AGENT,
        MULTI_AGENT,
        "Sends a message to another agent and does not wait: for news to which you need no reply.",
        {"message": _text("What the other agent reads."), "other_agent_id": _text("The id of the other agent.")},
        ["message", "other_agent_id"],
        enable_parallel_execution=True,
    ),
    BaseTool(
        ASKS_TAGGED_AGENTS,
        MULTI_AGENT,
        "Sends a message to every other agent with certain tags, and waits for all replies.",
        {
            "message": _text("What the other agents read."),
            "match_all": _texts("Tags that an agent must have, all of them."),
            "match_some": _texts("Tags of which an agent must have at least one."),
        },
        ["message", "match_all", "match_some"],
        enable_parallel_execution=True,
    ),
    BaseTool(
        RUNS_AGENT,
        MULTI_AGENT,
        "Gives another agent a task, in a conversation of its own that begins with it, and waits for the answer. "
        "Several such calls in one answer are done at the same time.",
        {"agent": _text("The name or the id of the agent."), "task": _text("Everything that it has to know.")},
        ["agent", "task"],
        enable_parallel_execution=True,
    ),
)

CALLS_AGENTS = frozenset(tool.name for tool in BASE_TOOLS if tool.kind == MULTI_AGENT)
"""The tools that start runs of other agents."""
MESSAGES_AGENTS = (ASKS_AGENT, ASKS_TAGGED_AGENTS, TELLS_AGENT)
"""The tools that an agent gets with `include_multi_agent_tools`."""

_READS_FILES = "there are no files here: use archival memory, or a tool of your own"
_OF_VOICE = "there are no voice agents here: use memory_rethink, memory_finish_edits and conversation_search"

NOT_THERE: Mapping[str, str] = {
    "open_files": _READS_FILES,
    "grep_files": _READS_FILES,
    "semantic_search_files": _READS_FILES,
    "store_memories": _OF_VOICE,
    "rethink_user_memory": _OF_VOICE,
    "finish_rethinking_memory": _OF_VOICE,
    "search_memory": _OF_VOICE,
}
"""Tools that other servers have in addition, and advice for doing without them. It is better to refuse an agent that
depends on one than to create it without the tool."""


# The tools that come with every project: an agent edits its memory and looks into its past with them.
#
# A worker runs them itself: they have no source.


MEMORY_TOOLS = frozenset(
    {
        "core_memory_append", "core_memory_replace", "memory_insert", "memory_replace", "memory_apply_patch",
        "memory_rethink", "memory",
    }
)  # fmt: skip
"""The tools that change memory blocks."""

SPEAKS = "send_message"
SEARCHES_MESSAGES = "conversation_search"
RUNS_CODE = "run_code"
RUNS_CODE_WITH_TOOLS = "run_code_with_tools"

REWRITING = frozenset({"memory_rethink"})
"""The memory tools that replace a whole block, and so could overwrite concurrent changes."""

_CHAT = (SPEAKS, SEARCHES_MESSAGES)
_PRECISE = ("memory_insert", "memory_replace")
_WITHOUT_BASE_TOOLS = ("react_agent", "workflow_agent")
_MODELS_WITHOUT_RULES = ("claude-4-sonnet", "claude-3-5-sonnet", "gpt-5")
ENDS_TURN = frozenset({SPEAKS, "memory_finish_edits"})
"""The base rules of these tools end a run; the base rules of all others continue it."""


_BY_NAME: Mapping[str, BaseTool] = {tool.name: tool for tool in BASE_TOOLS}


def base_tool_arguments(tool: Tool) -> JsonObject:
    """The JSON Schema of the arguments of a base tool."""
    return _BY_NAME[tool.name].arguments if tool.name in _BY_NAME else tool.parameters


def is_base_tool(tool: Tool) -> bool:
    """Whether the worker runs the tool itself."""
    return tool.tool_type.startswith(BASE_TYPES)


def default_base_tools(agent_type: str, *, enable_sleeptime: bool) -> tuple[str, ...]:
    """The names of the tools that an agent of this type gets unless its creator forbids it."""
    if agent_type in _WITHOUT_BASE_TOOLS:
        return ()
    if agent_type == "sleeptime_agent":
        return (*_PRECISE, "memory_rethink", "memory_finish_edits")
    if enable_sleeptime:
        # Another agent edits the memory of this one.
        return _CHAT
    if agent_type == NEWEST_KIND:
        return ("conversation_search", *_PRECISE)
    if agent_type == "memgpt_v2_agent":
        return (*_CHAT, *_PRECISE)
    return (*_CHAT, "core_memory_append", "core_memory_replace", "memory", "memory_apply_patch")


def needs_base_rules(agent_type: str, handle: str) -> bool:
    """Whether an agent with this model gets the rules of its base tools unless its creator decides otherwise.

    Words in the model's name decide, as programs expect it.
    """
    model = handle.partition("/")[2]
    does_without = "mini" not in model and any(word in model for word in _MODELS_WITHOUT_RULES)
    return agent_type == "sleeptime_agent" or not does_without


def base_tool_rules(names: Iterable[str]) -> list[JsonObject]:
    """The rules for base tools of these names: which calls end a run, and which do not."""
    known = {tool.name for tool in BASE_TOOLS if tool.kind != BUILTIN}
    return [
        {"tool_name": name, "type": "exit_loop" if name in ENDS_TURN else "continue_loop", "prompt_template": None}
        for name in names
        if name in known
    ]


def why_missing(names: Iterable[str]) -> list[str]:
    """Returns the advice for the tools among these that only other servers have, each reason once."""
    reasons: dict[str, list[str]] = {}
    for name in names:
        if name in NOT_THERE:
            reasons.setdefault(NOT_THERE[name], []).append(name)
    return [f"{', '.join(known)}: {reason}." for reason, known in reasons.items()]
