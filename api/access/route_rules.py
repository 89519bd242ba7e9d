"""The permission that each route needs, and the agent that a request names. Only an admin's key may use a route that is
missing here.

A key of single agents is for strangers: the page of a chat, a customer's program. It reaches its agents' data through
routes that name the agent, but no data that the whole project shares or that defines an agent. To such a key other
agents do not exist: a request that names one continues as a request of an empty project, so its route answers exactly
as for an unknown id. Answers to such keys omit an agent's instructions and its tools' source.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import chain
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl

from api.access.callers import Caller
from shared.domain.api_keys import Level
from shared.domain.ids import ProjectId, is_id
from shared.sql.access.api_keys import OwnerStore


class Reach(Enum):
    """How a key of single agents may use a route."""

    PROJECT = auto()
    """Never."""
    AGENT = auto()
    """If the path or body names an object of one of the key's agents."""
    QUERY = auto()
    """If the query names one of the key's agents."""
    NOTHING = auto()
    """Always, because the route shows nothing of any agent, or only the key's agents."""


class Rule(NamedTuple):
    """The permission that a route needs."""

    level: Level
    reach: Reach


_A = "/v1/agents/{agent_id}"
_C = "/v1/conversations/{conversation_id}"
_R = "/v1/runs/{run_id}"
_ABSENT = ("folders", "identities", "sources")

_M = "/v1/mcp-servers"
_MS = f"{_M}/{{mcp_server_id}}"
_OLDER_M = "/v1/tools/mcp/servers"
_OLDER_MS = f"{_OLDER_M}/{{mcp_server_name}}"

_W = "/openai/v1/webhook_endpoints"

CHAT = ("/v1/chat/completions", "/v1/chat/completions/chat/completions", "/openai/v1/chat/completions")
"""The `model` in their bodies names an agent or a conversation."""

LEVELS_OF_MCP: Mapping[str, Level] = {
    **dict.fromkeys(("initialize", "ping", "server/discover", "tools/list", "tasks/get"), Level.READ),
    **dict.fromkeys(("tools/call", "tasks/update", "tasks/cancel", "notifications/cancelled"), Level.WRITE),
}
"""The level that each method of the Model Context Protocol needs. All are posted to one path, whose own rule needs the
lowest. Its service shows a key of single agents only those agents and their runs."""

_AG_UI = "/ag-ui/{agent_id}"
_CHAT = "/ai-sdk/{agent_id}/chat"
_CHAT_ID = f"{_CHAT}/{{chat_id:path}}"

_RESPONSES = ("/openai/v1/responses", "/v1/responses")

_OPENAI = "/openai/v1"
_OPENAI_C = f"{_OPENAI}/conversations/{{conversation_id}}"

_READ: dict[Reach, Iterable[str]] = {
    Reach.AGENT: (
        f"GET {_A}",
        f"GET {_A}/events",
        *(f"GET {_A}/{part}" for part in ("core-memory", "tools", "messages", "archival-memory")),
        *(
            f"GET {_A}/{part}"
            for part in ("archival-memory/search", "files", "groups", "mcp-servers", "repositories", *_ABSENT)
        ),
        *(f"GET {_A}/core-memory/blocks{part}" for part in ("", "/{block_label}")),
        *(f"GET {_C}{part}" for part in ("", "/messages", "/events")),
        f"POST {_C}/stream",
        *(f"GET {_R}{part}" for part in ("", "/messages", "/steps", "/usage", "/metrics", "/trace", "/stream")),
        f"GET {_R}/effects",
        *(f"POST {_R}/{part}" for part in ("stream", "stream-token")),
        # A token for more than the key may do is refused by the route.
        f"POST {_A}/page-token",
        *(f"GET /v1/steps/{{step_id}}{part}" for part in ("", "/messages", "/metrics", "/trace")),
        "GET /v1/approvals/{approval_id}",
        "GET /v1/messages/{message_id}",
        *(f"GET {path}/{{response_id}}{part}" for path in _RESPONSES for part in ("", "/input_items")),
        *(f"POST {path}/input_tokens" for path in _RESPONSES),
        *(f"GET {_OPENAI_C}{part}" for part in ("", "/items", "/items/{item_id}")),
        f"GET {_OPENAI}/models/{{model:path}}",
        f"GET {_AG_UI}/connect",
        "POST /ag-ui/agent/{agent_id}/connect",
        *(f"GET {_CHAT_ID}{part}" for part in ("", "/stream")),
    ),
    Reach.QUERY: (*(f"GET /v1/{nouns}" for nouns in ("conversations", "runs", "runs/active", "steps", "approvals")),),
    Reach.NOTHING: (
        *(f"GET /v1/{nouns}" for nouns in ("models", "models/embedding", "jobs", "jobs/active", "providers")),
        *(f"GET /v1/{nouns}" for nouns in ("shared-agents", *_ABSENT)),
        *(f"GET /v1/{nouns}/count" for nouns in _ABSENT),
        "GET /openai/v1/webhook_event_types",
        f"GET {_OPENAI}/models",
        # `LEVELS_OF_MCP` has the levels of its methods.
        "POST /mcp",
        "GET /ag-ui/info",
    ),
    Reach.PROJECT: (
        *(f"GET /v1/{nouns}" for nouns in ("agents", "tools", "blocks", "archives", "messages", "tags", "events")),
        *(f"GET /v1/{nouns}/count" for nouns in ("agents", "tools", "blocks")),
        *(f"GET /v1/{noun}s/{{{noun}_id}}" for noun in ("tool", "block", "archive")),
        *(f"GET /v1/{noun}s/{{{noun}_id}}/agents" for noun in ("block", "archive")),
        *(f"GET {_A}/{part}" for part in ("secrets", "context", "export")),
        f"POST {_A}/export",
        # The inner steps of the operator's code, and the names of workers.
        *(f"GET {_R}/{part}" for part in ("journal", "replay")),
        "GET /v1/code-agents",
        *(f"POST /v1/{nouns}/search" for nouns in ("messages", "passages")),
        *(f"GET {path}" for path in (_W, f"{_W}/{{webhook_id}}")),
        *(f"GET {path}" for path in (_M, _OLDER_M, f"{_OLDER_MS}/tools")),
        *(f"GET {_MS}{part}" for part in ("", "/tools", "/tools/{tool_id}")),
        *(f"GET /v1/groups{part}" for part in ("", "/count", "/{group_id}", "/{group_id}/messages")),
    ),
}

_WRITE: dict[Reach, Iterable[str]] = {
    Reach.AGENT: (
        *(f"POST {_A}/messages{part}" for part in ("", "/stream", "/async", "/cancel")),
        f"PATCH {_A}/reset-messages",
        *(f"POST {_A}/{part}" for part in ("summarize", "archival-memory")),
        f"DELETE {_A}/archival-memory/{{memory_id}}",
        f"PATCH {_A}/core-memory/blocks/{{block_label}}",
        *(f"{method} {_C}" for method in ("PATCH", "DELETE")),
        *(f"POST {_C}/{part}" for part in ("messages", "cancel", "compact", "fork")),
        f"DELETE {_R}",
        *(f"POST {_R}/{part}" for part in ("cancel", "inject")),
        "POST /v1/approvals/{approval_id}",
        "PATCH /v1/steps/{step_id}/feedback",
        *(f"POST {path}" for path in CHAT),
        *(f"POST {path}{part}" for path in _RESPONSES for part in ("", "/compact", "/{response_id}/cancel")),
        *(f"DELETE {path}/{{response_id}}" for path in _RESPONSES),
        f"POST {_OPENAI}/conversations",
        *(f"{method} {_OPENAI_C}" for method in ("POST", "DELETE")),
        f"POST {_OPENAI_C}/items",
        f"DELETE {_OPENAI_C}/items/{{item_id}}",
        *(f"POST {_AG_UI}{part}" for part in ("", "/stop")),
        *(f"POST /ag-ui/agent/{{agent_id}}/{part}" for part in ("run", "stop/{thread_id:path}")),
        f"POST {_CHAT}",
        f"POST {_CHAT_ID}/stop",
    ),
    Reach.QUERY: ("POST /v1/conversations",),
    Reach.PROJECT: (
        # An operator decides this, never a browser.
        f"POST {_R}/effects/{{call_id}}",
        *(f"POST /v1/{nouns}" for nouns in ("agents", "agents/import", "tools", "tools/add-base-tools")),
        *(f"{method} {_A}" for method in ("PATCH", "DELETE")),
        *(f"PATCH {_A}/tools/{part}" for part in ("attach/{tool_id}", "detach/{tool_id}", "approval/{tool_name}")),
        f"POST {_A}/tools/{{tool_name}}/run",
        # The caller replaces the agent's instructions.
        f"POST {_A}/generate",
        # The caller dictates the agent's answer.
        f"POST {_A}/messages/capture",
        *(f"POST {which}/recompile" for which in (_A, _C)),
        *(f"PATCH {_A}/core-memory/blocks/{part}/{{block_id}}" for part in ("attach", "detach")),
        *(f"PATCH {_A}/archives/{part}/{{archive_id}}" for part in ("attach", "detach")),
        "PUT /v1/tools",
        *(f"POST /v1/{nouns}" for nouns in ("blocks", "archives")),
        *(f"{m} /v1/{noun}s/{{{noun}_id}}" for m in ("PATCH", "DELETE") for noun in ("tool", "block", "archive")),
        *(f"POST /v1/archives/{{archive_id}}/passages{part}" for part in ("", "/batch")),
        "DELETE /v1/archives/{archive_id}/passages/{passage_id}",
        *(f"POST {_W}{part}" for part in ("", "/{webhook_id}", "/{webhook_id}/rotate_secret", "/{webhook_id}/test")),
        f"DELETE {_W}/{{webhook_id}}",
        *(f"POST /v1/groups{part}" for part in ("", "/{group_id}/messages", "/{group_id}/messages/stream")),
        *(f"{method} /v1/groups/{{group_id}}" for method in ("PATCH", "DELETE")),
        f"POST {_M}",
        # A person who signs in gives the project an account.
        f"GET {_M}/connect/{{mcp_server_id}}",
        *(f"{method} {path}" for method in ("PATCH", "DELETE") for path in (_MS, _OLDER_MS)),
        f"PATCH {_MS}/refresh",
        f"POST {_MS}/tools/{{tool_id}}/run",
        f"PUT {_OLDER_M}",
        *(f"POST {_OLDER_M}/{part}" for part in ("test", "connect")),
        *(f"POST {_OLDER_MS}/{part}" for part in ("resync", "{mcp_tool_name}", "tools/{mcp_tool_name}/execute")),
    ),
}

_ADMIN: dict[Reach, Iterable[str]] = {
    Reach.PROJECT: (
        *(f"{method} /v1/admin/keys" for method in ("GET", "POST")),
        *(f"{method} /v1/admin/keys/{{key_id}}" for method in ("GET", "DELETE")),
        "POST /v1/admin/keys/{key_id}/rotate",
        "GET /metrics",
        *(f"GET /v1/admin/{what}" for what in ("audit", "callbacks", "operations", "status", "webhooks")),
        "POST /v1/admin/callbacks/{run_id}/retry",
        "POST /v1/admin/webhooks/{run_id}/{webhook_id}/retry",
    )
}


def _rules() -> Iterator[tuple[str, Rule]]:
    for level, routes in ((Level.READ, _READ), (Level.WRITE, _WRITE), (Level.ADMIN, _ADMIN)):
        for reach, names in routes.items():
            yield from ((name, Rule(level, reach)) for name in names)


RULES = dict(_rules())
"""By method and the route's path."""

OF_ADMINS = Rule(Level.ADMIN, Reach.PROJECT)
"""The rule of routes that are missing in the table."""


OF_PAGES = frozenset(
    [
        *(f"POST {_AG_UI}{part}" for part in ("", "/stop")),
        f"GET {_AG_UI}/connect",
        *(f"POST /ag-ui/agent/{{agent_id}}/{part}" for part in ("run", "connect", "stop/{thread_id:path}")),
        "GET /ag-ui/info",
        f"POST {_CHAT}",
        f"POST {_CHAT_ID}/stop",
        *(f"GET {_CHAT_ID}{part}" for part in ("", "/stream")),
        f"GET {_C}/events",
    ]
)
"""The routes that a page's token opens, for its conversation only. Routes of the pages' dialects find the conversation
with `PageThreads.find`, which refuses any other."""


# The fields of a body that a key of single agents may not send, because they redefine the agent: its instructions,
# model, tools, length of runs and memory blocks belong to the project. A null, an empty list or the usual form of an
# answer changes nothing and is accepted, because some clients send every field.


OF_THE_AGENT = frozenset(
    [
        *("override_model", "override_system", "client_skills", "client_tools", "tools"),
        *("model", "model_settings", "context_window_limit", "compaction_settings", "response_format"),
    ]
)
"""In the body of any route. A chat completion may have `model`, which names the agent there."""

OF_A_BLOCK = frozenset(("label", "description", "limit", "read_only", "metadata", "tags"))
"""All fields of a memory block except its value."""

_CHANGES_NOTHING: Sequence[Any] = (None, [], {"type": "text"})

MOST_STEPS = 50
"""The default `max_steps` of a submission."""

_PAGES = ("/ag-ui/", "/ai-sdk/")

_BLOCK = re.compile(r"/v1/agents/[^/]+/core-memory/blocks/[^/]+")


def refused_field(fields: Mapping[str, Any], method: str, path: str, *, is_chat: bool) -> str | None:
    """Returns the first field of this body that such a key may not send, with its value if only that is refused."""
    if is_about_responses(path):
        return refused_in(path, fields)
    if path.startswith(_PAGES):
        return None  # its service refuses fields that redefine the agent: pages send whole histories
    refused = (OF_THE_AGENT - {"model"}) if is_chat else OF_THE_AGENT
    refused |= OF_A_BLOCK if _BLOCK.fullmatch(path) else frozenset()
    # In a PATCH, null removes the project's value.
    is_change = method == "PATCH"
    named = (name for name, value in fields.items() if name in refused and (is_change or value not in _CHANGES_NOTHING))
    return next(chain(named, _beyond(fields, is_chat=is_chat)), None)


def _beyond(fields: Mapping[str, Any], *, is_chat: bool) -> Iterator[str]:
    steps = fields.get("max_steps")
    if steps is not None and not (isinstance(steps, int) and steps <= MOST_STEPS):
        yield f"max_steps above {MOST_STEPS}"
    messages = fields.get("messages")
    # A chat completion uses only users' messages and tools' results from its messages.
    if is_chat or not isinstance(messages, list):
        return
    for number, message in enumerate(cast("list[Any]", messages)):
        role: Any = cast("dict[str, Any]", message).get("role", "user") if isinstance(message, dict) else "user"
        if role != "user":
            yield f"messages[{number}].role {str(role)[:50]!r}"


NO_PROJECT = ProjectId("")
"""An empty project, which no key belongs to."""

_OWNED = ("run_id", "conversation_id", "step_id", "approval_id", "message_id", "response_id", "model")
_DEFAULT = "default"


@dataclass(frozen=True)
class AgentReach:
    """Decides whether the objects that a request names belong to the caller's agents. Raises `Unavailable`."""

    owners: OwnerStore
    own_id: Callable[[str], str]
    """Maps a dialect's form of an id to the stored id, and returns any other text unchanged."""

    async def through_path(self, caller: Caller, reach: Reach, path: Mapping[str, str], query: bytes) -> Caller | None:
        """Returns the caller with which the request continues. None: the query has to name an agent, and does not."""
        if reach is Reach.NOTHING:
            return caller
        named = [value for name, value in _pairs(query) if name in ("agent_id", "agent_ids")]
        if reach is Reach.QUERY and not named:
            return None
        named += [path[name] for name in ("agent_id", *_OWNED) if name in path and path[name] != _DEFAULT]
        if caller.thread_id is not None and "conversation_id" in path:
            threads = named if path["conversation_id"] == _DEFAULT else [path["conversation_id"]]
            if {*threads} != {caller.thread_id}:
                return replace(caller, project_id=NO_PROJECT)
        return await self._as(caller, named)

    async def through_body(self, caller: Caller, path: str, fields: Mapping[str, Any]) -> Caller:
        """Returns the caller with which the request continues, by the agent that its body names."""
        named = [fields["agent_id"]] if fields.get("agent_id") is not None else []
        if path in CHAT:
            named.append(fields.get("model"))
        if is_about_responses(path):
            named += named_in(path, fields)
        return await self._as(caller, named)

    async def _as(self, caller: Caller, named: Iterable[object]) -> Caller:
        for one in named:
            if not (isinstance(one, str) and await self._is_theirs(caller, one)):
                return replace(caller, project_id=NO_PROJECT)
        return caller

    async def _is_theirs(self, caller: Caller, name: str) -> bool:
        if is_id(name, "agent"):
            return name in caller.scopes.agents
        owners = await self.owners.agents_of(caller.project_id, self.own_id(name))
        return bool(owners) and owners <= caller.scopes.agents


def _pairs(query: bytes) -> list[tuple[str, str]]:
    return parse_qsl(query.decode("latin-1"), keep_blank_values=True)


# The objects that the bodies of OpenAI's Responses and conversations name, and the fields that a key of single agents
# may not send. Pure.
#
# Here `model` names an agent, or a model without one, and every response may bring instructions, tools and options of
# its own. Such a key may send its user's messages, but neither instructions nor answers that the agent has not given.


_OF_RESPONSES = re.compile(r"(?:/openai)?/v1/responses(?:/input_tokens|/compact)?")
_CONVERSATIONS = re.compile(r"/openai/v1/conversations(?:/[^/]+)?(?:/items)?")
_BEGINS_CONVERSATION = "/openai/v1/conversations"

OF_A_RESPONSE = frozenset(
    [
        *("instructions", "tools", "tool_choice", "parallel_tool_calls", "temperature", "top_p"),
        *("max_output_tokens", "reasoning", "text", "context_management"),
    ]
)
"""Fields that replace or extend the agent's own. A value that equals the usual behaviour is accepted."""

_USUAL: Mapping[str, Sequence[Any]] = {
    "parallel_tool_calls": (True,),
    "tool_choice": ("auto",),
    "text": ({"format": {"type": "text"}},),
}

_OWN_ITEMS = ("function_call_output", "custom_tool_call_output", "mcp_approval_response")
_PASSED_OVER = ("reasoning", "mcp_approval_request", "mcp_list_tools")


def is_about_responses(path: str) -> bool:
    """Whether bodies of this path are those of OpenAI's Responses or conversations."""
    return bool(_OF_RESPONSES.fullmatch(path) or _CONVERSATIONS.fullmatch(path))


def named_in(path: str, fields: Mapping[str, Any]) -> list[object]:
    """The ids in the body that belong to an agent: ids of agents, responses and conversations."""
    if _OF_RESPONSES.fullmatch(path):
        conversation = fields.get("conversation")
        if isinstance(conversation, dict):
            conversation = cast("dict[str, Any]", conversation).get("id")
        named = [fields.get("model"), fields.get("previous_response_id"), conversation]
        return [one for one in named if one is not None]
    metadata = fields.get("metadata")
    if path == _BEGINS_CONVERSATION and isinstance(metadata, dict):
        agent_id = cast("dict[str, Any]", metadata).get("agent_id")
        return [] if agent_id is None else [agent_id]
    return []


def refused_in(path: str, fields: Mapping[str, Any]) -> str | None:
    """The first part of the body that such a key may not send, as a phrase that begins with the part's name."""
    return next(_refused(path, fields), None)


def _refused(path: str, fields: Mapping[str, Any]) -> Iterator[str]:
    if _OF_RESPONSES.fullmatch(path):
        model = fields.get("model")
        if isinstance(model, str) and not is_id(model, "agent"):
            yield f"model {model[:100]!r}, which is no agent's id,"
        yield from (name for name in fields if name in OF_A_RESPONSE and _asks(name, fields[name]))
        yield from _items(fields.get("input"), "input")
        return
    if path == _BEGINS_CONVERSATION and not _has_agent(fields.get("metadata")):
        yield "metadata without agent_id"
    yield from _items(fields.get("items"), "items")


def _has_agent(metadata: object) -> bool:
    return isinstance(metadata, dict) and cast("dict[str, Any]", metadata).get("agent_id") is not None


def _asks(name: str, value: Any) -> bool:
    """Whether a field asks for something. Null does not, nor does an object in which every value is null."""
    if name == "reasoning":
        # A summary changes what is shown, but not how the model thinks.
        return isinstance(value, dict) and cast("dict[str, Any]", value).get("effort") is not None
    if isinstance(value, dict):
        value = {key: one for key, one in cast("dict[str, Any]", value).items() if one is not None}
    return value not in (None, [], {}, "") and value not in _USUAL.get(name, ())


def _items(items: object, name: str) -> Iterator[str]:
    if not isinstance(items, list):
        return
    for number, item in enumerate(cast("list[Any]", items)):
        fields = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
        # An item with only an id stands for a stored item, which may be another agent's.
        kind = fields.get("type") or ("message" if fields.keys() - {"id", "type"} else "item_reference")
        if kind == "message":
            role = fields.get("role", "user")
            if role != "user":
                yield f"{name}[{number}].role {str(role)[:50]!r}"
        elif kind not in _OWN_ITEMS and kind not in _PASSED_OVER:
            yield f"{name}[{number}].type {str(kind)[:50]!r}"
