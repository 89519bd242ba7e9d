"""Tokens with which a web page opens one conversation, for a limited time. A page must not have an API key, because
anybody can read it there.

As a stream token, a page token names its key, which signs it; nothing is stored. It ends at its time, or with its key.
What a page does, its key does: the key's limits and budgets hold, and the runs are the key's.
"""

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import parse_qsl

from starlette.types import Scope

from api.access.accepted_keys import AcceptedKeys, TokenSignatures
from api.access.callers import Caller
from api.errors import Refused
from shared.domain.api_keys import Level, Scopes
from shared.domain.errors import ErrorCode
from shared.domain.ids import UUID4_PATTERN, AgentId, ThreadId

MayDo = Literal["read", "chat"]
"""What the page may do in its conversation: read it, or also send messages, answer calls that wait and stop runs."""

LEVELS: Mapping[MayDo, Level] = {"read": Level.READ, "chat": Level.WRITE}
"""The scope that a key needs to permit it."""

_TOKEN = re.compile(
    rf"page\.(?P<expires>\d{{1,11}})\.(?P<may>read|chat)\.(?P<agent>agent-{UUID4_PATTERN})"
    rf"\.(?P<thread>(?:conv|agent)-{UUID4_PATTERN})\.(?P<key>[!-~]{{1,200}})\.(?P<signature>[A-Za-z0-9_-]{{43}})",
    re.ASCII,
)
_PLACES = re.compile(r"/ag-ui/.*|/ai-sdk/.*|/v1/conversations/[^/]+/events")
"""Paths that take a token in the query of a GET, because an EventSource sends no headers of its own."""


@dataclass(frozen=True)
class PageReach:
    """What a token opens."""

    agent_id: AgentId
    thread_id: ThreadId
    may: MayDo


class PageTokens:
    """Makes and reads tokens."""

    def __init__(self, keys: AcceptedKeys) -> None:
        self._keys = keys
        self._signatures = TokenSignatures(b"holdfast page tokens")

    async def make(self, caller: Caller, reach: PageReach, expires_at: datetime) -> str:
        """Returns a token; its time is cut to whole seconds. Raises a 403 if the caller's key does not permit itself
        what the token would, and a 401 if the key has become invalid since it was checked."""
        if not _permits(caller.scopes, reach):
            needed = f"a token with may={reach.may} needs a key with the scope {LEVELS[reach.may]}"
            raise Refused(403, ErrorCode.FORBIDDEN, f"FORBIDDEN: {needed}", field="may")
        signer = await self._keys.signer(caller.key_id)
        if signer is None:
            raise _refusal("The key of this request is no longer valid")
        said = f"{int(expires_at.timestamp())}.{reach.may}.{reach.agent_id}.{reach.thread_id}"
        signature = self._signatures.of(signer, f"{said} {caller.project_id}")
        return f"page.{said}.{caller.key_id}.{signature}"

    async def caller_of(self, token: str, now: datetime) -> Caller:
        """Returns the caller that a page with this token is. Raises a 401 for an invalid token."""
        parts = _TOKEN.fullmatch(token)
        if parts is None:
            raise _refusal("The page token is not valid")
        if datetime.fromtimestamp(int(parts["expires"]), UTC) <= now:
            raise _refusal("The page token has expired")
        signer = await self._keys.signer(parts["key"])
        if signer is None:
            raise _refusal("The page token is not valid: its key is unknown or no longer valid")
        key = signer.caller
        said = ".".join(parts[name] for name in ("expires", "may", "agent", "thread"))
        if not hmac.compare_digest(self._signatures.of(signer, f"{said} {key.project_id}"), parts["signature"]):
            raise _refusal("The page token is not valid")
        may: MayDo = "chat" if parts["may"] == "chat" else "read"
        reach = PageReach(AgentId(parts["agent"]), ThreadId(parts["thread"]), may)
        if not _permits(key.scopes, reach):
            raise _refusal("The page token is not valid: its key does not permit this any more")
        scopes = Scopes(LEVELS[may], frozenset([reach.agent_id]))
        return Caller(key.project_id, key.key_id, scopes, key.key_name, reach.thread_id)


def page_token_of(scope: Scope) -> str | None:
    """Returns the page token of a request: the one in its query, or the one that it sends in place of a key."""
    if scope["method"] == "GET" and _PLACES.fullmatch(scope["path"]):
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        if "token" in query:
            return query["token"]
    scheme, _, sent = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
    secret = sent.strip().decode("latin-1")
    return secret if scheme.lower() == b"bearer" and _TOKEN.fullmatch(secret) else None


def _permits(scopes: Scopes, reach: PageReach) -> bool:
    return scopes.include(LEVELS[reach.may]) and (not scopes.agents or reach.agent_id in scopes.agents)


def _refusal(reason: str) -> Refused:
    said = f"{reason}: ask for a new one, POST /v1/agents/{{agent_id}}/page-token with an API key"
    return Refused(401, ErrorCode.INVALID_PAGE_TOKEN, said, headers={"WWW-Authenticate": "Bearer"})
