"""What a key needs for each route. A route that is not here is refused to every key but an admin's.

A key of single agents is a key for strangers: the page of a chat, a customer's program. It reaches what is its agents'
by a route that names it, and nothing that the whole project shares or that makes an agent what it is. Where such a
route shows an agent, a tool or a history, the answer leaves out what the project has written into it.
"""

from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import NamedTuple

from shared.domain.api_keys import Level


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
_ABSENT = ("folders", "groups", "identities", "mcp-servers", "sources")

CHAT = ("/v1/chat/completions", "/v1/chat/completions/chat/completions")
"""Their bodies name an agent, or a conversation, as a model."""

_READ: dict[Reach, Iterable[str]] = {
    Reach.AGENT: (
        f"GET {_A}",
        *(f"GET {_A}/{part}" for part in ("core-memory", "tools", "messages", "archival-memory")),
        *(f"GET {_A}/{part}" for part in ("archival-memory/search", "files", "repositories", *_ABSENT)),
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
        *(f"GET /v1/{nouns}" for nouns in ("shared-agents", "tools/mcp/servers", *_ABSENT)),
        *(f"GET /v1/{nouns}/count" for nouns in _ABSENT if nouns != "mcp-servers"),
    ),
    Reach.PROJECT: (
        *(f"GET /v1/{nouns}" for nouns in ("agents", "tools", "blocks", "archives", "messages", "tags")),
        *(f"GET /v1/{nouns}/count" for nouns in ("agents", "tools", "blocks")),
        *(f"GET /v1/{noun}s/{{{noun}_id}}" for noun in ("tool", "block", "archive")),
        *(f"GET /v1/{noun}s/{{{noun}_id}}/agents" for noun in ("block", "archive")),
        *(f"GET {_A}/{part}" for part in ("secrets", "context", "export")),
        f"POST {_A}/export",
        *(f"POST /v1/{nouns}/search" for nouns in ("messages", "passages")),
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
