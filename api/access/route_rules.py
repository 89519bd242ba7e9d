"""What a key needs for each route, and which agent a request is about. The API refuses a route that is not listed here
to every key but an admin's.

A key of single agents is a key for strangers: the page of a chat, a customer's program. It reaches its agents' data by
a route that names the agent, and nothing that the whole project shares or that makes an agent what it is. To such a key
other agents do not exist: a request that names one goes on as a request of a project that has nothing, and its route
answers as for an unknown id, in every detail. Where such a route shows an agent, a tool or a history, the answer leaves
out what the project has written into it.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import chain
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl

from starlette.responses import Response
from starlette.types import Scope

from api.access.callers import Caller
from api.errors import refused
from shared.domain.api_keys import Level
from shared.domain.errors import ErrorCode
from shared.domain.ids import ProjectId, is_id
from shared.sql.access.api_keys import OwnerStore


class Reach(Enum):
    """How a route is open to a key of single agents."""

    PROJECT = auto()
    """Not at all."""
    AGENT = auto()
    """Its path, or its body, names what belongs to an agent: one of the key's."""
    QUERY = auto()
    """Its query has to name the agent."""
    NOTHING = auto()
    """It shows nothing of any agent."""


class Rule(NamedTuple):
    """What a key needs for a route."""

    level: Level
    reach: Reach


_A = "/v1/agents/{agent_id}"
_C = "/v1/conversations/{conversation_id}"
_R = "/v1/runs/{run_id}"
_ABSENT = ("folders", "groups", "identities", "sources")

_M = "/v1/mcp-servers"
_MS = f"{_M}/{{mcp_server_id}}"
_OLDER_M = "/v1/tools/mcp/servers"
_OLDER_MS = f"{_OLDER_M}/{{mcp_server_name}}"

_W = "/openai/v1/webhook_endpoints"

CHAT = ("/v1/chat/completions", "/v1/chat/completions/chat/completions")
"""Their bodies name an agent, or a conversation, as a model."""

_RESPONSES = ("/openai/v1/responses", "/v1/responses")

_OPENAI = "/openai/v1"
_OPENAI_C = f"{_OPENAI}/conversations/{{conversation_id}}"

_READ: dict[Reach, Iterable[str]] = {
    Reach.AGENT: (
        f"GET {_A}",
        *(f"GET {_A}/{part}" for part in ("core-memory", "tools", "messages", "archival-memory")),
        *(f"GET {_A}/{part}" for part in ("archival-memory/search", "files", "mcp-servers", "repositories", *_ABSENT)),
        *(f"GET {_A}/core-memory/blocks{part}" for part in ("", "/{block_label}")),
        *(f"GET {_C}{part}" for part in ("", "/messages")),
        f"POST {_C}/stream",
        *(f"GET {_R}{part}" for part in ("", "/messages", "/steps", "/usage", "/metrics", "/trace", "/stream")),
        *(f"POST {_R}/{part}" for part in ("stream", "stream-token")),
        *(f"GET /v1/steps/{{step_id}}{part}" for part in ("", "/messages", "/metrics", "/trace")),
        "GET /v1/approvals/{approval_id}",
        "GET /v1/messages/{message_id}",
    ),
    Reach.QUERY: (*(f"GET /v1/{nouns}" for nouns in ("conversations", "runs", "runs/active", "steps", "approvals")),),
    Reach.NOTHING: (
        *(f"GET /v1/{nouns}" for nouns in ("models", "models/embedding", "jobs", "jobs/active", "providers")),
        *(f"GET /v1/{nouns}" for nouns in ("shared-agents", *_ABSENT)),
        *(f"GET /v1/{nouns}/count" for nouns in _ABSENT),
        "GET /openai/v1/webhook_event_types",
    ),
    Reach.PROJECT: (
        *(f"GET /v1/{nouns}" for nouns in ("agents", "tools", "blocks", "archives", "messages", "tags")),
        *(f"GET /v1/{nouns}/count" for nouns in ("agents", "tools", "blocks")),
        *(f"GET /v1/{noun}s/{{{noun}_id}}" for noun in ("tool", "block", "archive")),
        *(f"GET /v1/{noun}s/{{{noun}_id}}/agents" for noun in ("block", "archive")),
        *(f"GET {_A}/{part}" for part in ("secrets", "context", "export")),
        f"POST {_A}/export",
        *(f"POST /v1/{nouns}/search" for nouns in ("messages", "passages")),
        *(f"GET {path}/{{response_id}}{part}" for path in _RESPONSES for part in ("", "/input_items")),
        *(f"POST {path}/input_tokens" for path in _RESPONSES),
        *(f"GET {_OPENAI_C}{part}" for part in ("", "/items", "/items/{item_id}")),
        *(f"GET {_OPENAI}/models{part}" for part in ("", "/{model:path}")),
        *(f"GET {path}" for path in (_W, f"{_W}/{{webhook_id}}")),
        *(f"GET {path}" for path in (_M, f"{_M}/connect/{{mcp_server_id}}", _OLDER_M, f"{_OLDER_MS}/tools")),
        *(f"GET {_MS}{part}" for part in ("", "/tools", "/tools/{tool_id}")),
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
    ),
    Reach.QUERY: ("POST /v1/conversations",),
    Reach.PROJECT: (
        *(f"POST /v1/{nouns}" for nouns in ("agents", "agents/import", "tools", "tools/add-base-tools")),
        *(f"{method} {_A}" for method in ("PATCH", "DELETE")),
        *(f"PATCH {_A}/tools/{part}" for part in ("attach/{tool_id}", "detach/{tool_id}", "approval/{tool_name}")),
        f"POST {_A}/tools/{{tool_name}}/run",
        # Its instructions are the caller's, and not the agent's.
        f"POST {_A}/generate",
        # It says what the agent has answered.
        f"POST {_A}/messages/capture",
        *(f"POST {which}/recompile" for which in (_A, _C)),
        *(f"PATCH {_A}/core-memory/blocks/{part}/{{block_id}}" for part in ("attach", "detach")),
        *(f"PATCH {_A}/archives/{part}/{{archive_id}}" for part in ("attach", "detach")),
        "PUT /v1/tools",
        *(f"POST /v1/{nouns}" for nouns in ("blocks", "archives")),
        *(f"{m} /v1/{noun}s/{{{noun}_id}}" for m in ("PATCH", "DELETE") for noun in ("tool", "block", "archive")),
        *(f"POST /v1/archives/{{archive_id}}/passages{part}" for part in ("", "/batch")),
        "DELETE /v1/archives/{archive_id}/passages/{passage_id}",
        *(f"POST {path}{part}" for path in _RESPONSES for part in ("", "/{response_id}/cancel")),
        *(f"DELETE {path}/{{response_id}}" for path in _RESPONSES),
        f"POST {_OPENAI}/conversations",
        *(f"{method} {_OPENAI_C}" for method in ("POST", "DELETE")),
        f"POST {_OPENAI_C}/items",
        f"DELETE {_OPENAI_C}/items/{{item_id}}",
        *(f"POST {_W}{part}" for part in ("", "/{webhook_id}", "/{webhook_id}/rotate_secret", "/{webhook_id}/test")),
        f"DELETE {_W}/{{webhook_id}}",
        f"POST {_M}",
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
        *(f"GET /v1/admin/{what}" for what in ("audit", "callbacks", "operations", "status")),
        "POST /v1/admin/callbacks/{run_id}/retry",
    ),
}


def _rules() -> Iterator[tuple[str, Rule]]:
    for level, routes in ((Level.READ, _READ), (Level.WRITE, _WRITE), (Level.ADMIN, _ADMIN)):
        for reach, names in routes.items():
            yield from ((name, Rule(level, reach)) for name in names)


RULES = dict(_rules())
"""By method and path, as the route has it."""

OF_ADMINS = Rule(Level.ADMIN, Reach.PROJECT)
"""What is not in the table."""


# Which fields of a body a key of single agents may not send: those that replace what the agent is.
#
# Such a key is for strangers. They talk with the agent that the project has made; its instructions, its model, its
# tools, the length of its runs and the shape of its memory are the project's. A field that is null, or an empty list,
# asks for nothing, so that clients which send every field go on working.


OF_THE_AGENT = frozenset(
    [
        *("override_model", "override_system", "client_skills", "client_tools", "tools"),
        *("model", "model_settings", "context_window_limit", "compaction_settings"),
    ]
)
"""In the body of any route; `model` of a chat completion names the agent."""

OF_A_BLOCK = frozenset(("label", "description", "limit", "read_only", "metadata", "tags"))
"""All of a memory block but its value."""

MOST_STEPS = 50
"""What a submission has that does not say `max_steps`."""

_BLOCK = re.compile(r"/v1/agents/[^/]+/core-memory/blocks/[^/]+")


def refused_field(fields: Mapping[str, Any], method: str, path: str, *, is_chat: bool) -> str | None:
    """The first field of this body that such a key may not send, as a person would name it."""
    refused = (OF_THE_AGENT - {"model"}) if is_chat else OF_THE_AGENT
    refused |= OF_A_BLOCK if _BLOCK.fullmatch(path) else frozenset()
    # In a change null is a value: it takes away what the project has set.
    is_change = method == "PATCH"
    named = (name for name, value in fields.items() if name in refused and (is_change or value not in (None, [])))
    return next(chain(named, _beyond(fields, is_chat=is_chat)), None)


def _beyond(fields: Mapping[str, Any], *, is_chat: bool) -> Iterator[str]:
    steps = fields.get("max_steps")
    if steps is not None and not (isinstance(steps, int) and steps <= MOST_STEPS):
        yield f"max_steps above {MOST_STEPS}"
    messages = fields.get("messages")
    # Of a chat completion only users' messages and results of tools become input.
    if is_chat or not isinstance(messages, list):
        return
    for number, message in enumerate(cast("list[Any]", messages)):
        role: Any = cast("dict[str, Any]", message).get("role", "user") if isinstance(message, dict) else "user"
        if role != "user":
            yield f"messages[{number}].role {str(role)[:50]!r}"


NOBODY = ProjectId("")
"""A project that no key is of, and that has nothing."""

_OWNED = ("run_id", "conversation_id", "step_id", "approval_id", "message_id")
_DEFAULT = "default"


@dataclass(frozen=True)
class AgentReach:
    """Decides whether what a request names belongs to the caller's agents. Raises `Unavailable`."""

    owners: OwnerStore

    async def through_path(self, caller: Caller, reach: Reach, path: Mapping[str, str], query: bytes) -> Caller | None:
        """The caller as whom the request goes on. None: its query has to name the agent, and does not."""
        if reach is Reach.NOTHING:
            return caller
        named = [value for name, value in _pairs(query) if name in ("agent_id", "agent_ids")]
        if reach is Reach.QUERY and not named:
            return None
        named += [path[name] for name in ("agent_id", *_OWNED) if name in path and path[name] != _DEFAULT]
        return await self._as(caller, named)

    async def through_body(self, caller: Caller, path: str, fields: Mapping[str, Any]) -> Caller:
        """The caller as whom the request goes on, by what its body names."""
        named = [fields["agent_id"]] if fields.get("agent_id") is not None else []
        if path in CHAT:
            named.append(fields.get("model"))
        return await self._as(caller, named)

    async def _as(self, caller: Caller, named: Iterable[object]) -> Caller:
        for one in named:
            if not (isinstance(one, str) and await self._is_theirs(caller, one)):
                return replace(caller, project_id=NOBODY)
        return caller

    async def _is_theirs(self, caller: Caller, name: str) -> bool:
        if is_id(name, "agent"):
            return name in caller.scopes.agents
        owners = await self.owners.agents_of(caller.project_id, name)
        return bool(owners) and owners <= caller.scopes.agents


def _fields(body: bytes) -> dict[str, Any]:
    """The fields of a body that is a JSON object; of another one there are none."""
    try:
        given: Any = json.loads(body) if body else None
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", given) if isinstance(given, dict) else {}


def _pairs(query: bytes) -> list[tuple[str, str]]:
    return parse_qsl(query.decode("latin-1"), keep_blank_values=True)


async def caller_within_reach(reach: AgentReach, scope: Scope, body: bytes) -> Response | None:
    """Looks at what the body of a request names and changes, when its key sees single agents only. Puts the caller as
    whom the request goes on into its state. The 403 for a field that such a key may not send; None for all others."""
    caller: Caller | None = scope.get("state", {}).get("caller")
    if caller is None or not caller.scopes.agents or scope["method"] in ("GET", "HEAD"):
        return None
    fields, method, path = _fields(body), scope["method"], scope["path"]
    found = refused_field(fields, method, path, is_chat=path in CHAT)
    if found is not None:
        said = f"FORBIDDEN: {found} is for keys of the project; this key is for talking with the agent as it is"
        return refused(403, ErrorCode.FORBIDDEN, said, field=found.partition(" ")[0])
    scope["state"]["caller"] = await reach.through_body(caller, path, fields)
    return None
