"""Authenticates a request by its key, stream token or page token, limits wrong keys per address, and checks the key's
permissions.

This happens before the request's body is read, except for what a body may name. Later code finds the caller in the
request's state, and its project in a context variable.
"""

import hmac
import json
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, cast
from urllib.parse import parse_qsl

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Scope
from structlog.contextvars import bind_contextvars

from api.access.accepted_keys import AcceptedKeys, FailedKeys, StreamTokens, TokenSignatures
from api.access.callers import ANONYMOUS, Caller
from api.access.route_rules import CHAT, OF_ADMINS, OF_PAGES, RULES, AgentReach, Reach, refused_field
from api.direct_route import RouteIndex
from api.errors import SHOULD_RETRY, Refused, refused
from api.request_log import client_address, is_of_api
from shared.concurrency import Clock
from shared.domain.api_keys import Level, Scopes
from shared.domain.errors import ErrorCode, HoldfastError
from shared.domain.ids import UUID4_PATTERN, AgentId, IdMaker, ProjectId, RunId, ThreadId
from shared.network.addresses import Network
from shared.sql.access.audit import Asker, AuditLog, asked_by

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


# Tokens with which a web page opens one conversation, for a limited time. A page must not have an API key, because
# every visitor could read the key there.
#
# Like a stream token, a page token names its key, which signs it; nothing is stored. It expires at its time, or with
# its key. A page's requests count as requests of its key: the key's limits and budgets hold, and it owns the runs.


MayDo = Literal["read", "chat"]
"""A page's permission in its conversation: to read it, or also to send messages, answer waiting calls and stop runs."""

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
    """The conversation that a token opens, and the page's permission there."""

    agent_id: AgentId
    thread_id: ThreadId
    may: MayDo


class PageTokens:
    """Makes and reads tokens."""

    def __init__(self, keys: AcceptedKeys) -> None:
        self._keys = keys
        self._signatures = TokenSignatures(b"holdfast page tokens")

    async def make(self, caller: Caller, reach: PageReach, expires_at: datetime) -> str:
        """Returns a token; its time is cut to whole seconds. Raises a 403 if the caller's key lacks the permission that
        the token would give, and a 401 if the key has become invalid since it was checked."""
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
        """Returns the page with this token as a caller. Raises a 401 for an invalid token."""
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
        return replace(key, scopes=scopes, thread_id=reach.thread_id)


def page_token_of(scope: Scope) -> str | None:
    """Returns the page token of a request, from its query or from the place of the key."""
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


KEPT = 200
"""Characters of a header that the audit log keeps."""

_STREAM = re.compile(r"/v1/runs/([^/]+)/stream")
_ADMIN = "/v1/admin/"


# Authenticates a request, and keeps its caller.


@dataclass(frozen=True, kw_only=True)
class Access:
    """The services that decide whether a request is admitted."""

    keys: AcceptedKeys
    tokens: StreamTokens
    page_tokens: PageTokens
    failed: FailedKeys
    reach: AgentReach
    audit: AuditLog
    clock: Clock
    ids: IdMaker
    proxies: Sequence[Network]
    """The proxies whose `X-Forwarded-For` the API trusts."""


class Authentication:
    """Finds the caller of every request to the API, and checks that the key permits the request."""

    def __init__(self, *, access: Access, routes: Sequence[BaseRoute]) -> None:
        self._access = access
        self._routes = RouteIndex(routes)

    async def let_in(self, scope: Scope) -> Asker:
        """Puts the caller into the request's state. Returns the caller as the audit log records it. Raises `Refused`,
        and a domain error if the key cannot be checked now."""
        request, address = Request(scope), client_address(scope, self._access.proxies)
        caller = await self._identified(request, address)
        bind_contextvars(project=caller.project_id, key=caller.key_id)
        asker = self._asker(request, caller, address)
        with asked_by(asker):
            scope.setdefault("state", {})["caller"] = await self._admitted(request, caller)
        return asker

    async def _identified(self, request: Request, address: str) -> Caller:
        """Returns the caller by the request's token or key."""
        access, token = self._access, stream_token_of(request.scope)
        page_token = page_token_of(request.scope)
        if page_token is not None:
            return await access.page_tokens.caller_of(page_token, access.clock.now())
        if token is not None:
            return await access.tokens.caller_of(token.text, token.run_id, access.clock.now())
        if not await access.keys.are_required():
            return ANONYMOUS
        return await self._of_key(request, address)

    async def _of_key(self, request: Request, address: str) -> Caller:
        """Returns the caller of the request's key. Raises a 401, or a 429 if its address sent too many wrong keys."""
        given = dict(request.scope["headers"]).get(b"authorization", b"")
        scheme, _, secret = given.partition(b" ")
        if scheme.lower() != b"bearer" or not secret.strip():
            raise _invalid_key() if given else _unauthorized(ErrorCode.MISSING_API_KEY, "An API key is needed")
        found = await self._access.keys.find(secret.strip())
        if found is None:
            wait_s = self._access.failed.note(address)
            raise _invalid_key() if wait_s is None else _too_many(wait_s)
        wait_s = self._access.failed.wait_for(address, found.caller.key_id) if found.is_guessable else None
        if wait_s is not None:
            raise _too_many(wait_s)
        return found.caller

    async def _admitted(self, request: Request, caller: Caller) -> Caller:
        """Returns the caller with which the request continues. Raises a 403 if the key does not permit the request."""
        if caller.scopes.level is Level.ADMIN:
            return caller
        scope = request.scope
        match, found = self._routes.matches(scope)
        if match is not Match.FULL:
            return caller  # the router answers unknown paths
        route = f"{request.method} {found['route'].path}"
        rule = RULES.get(route, OF_ADMINS)
        if caller.thread_id is not None and route not in OF_PAGES:
            raise _forbidden(request, caller, "is not for pages, whose token opens one conversation: use a key")
        if not caller.scopes.include(rule.level):
            await self._note_refusal(request, caller)
            raise _forbidden(request, caller, f"needs a key with the scope {rule.level}")
        if not caller.scopes.agents:
            return caller
        if rule.reach is Reach.PROJECT:
            raise _forbidden(
                request, caller, f"is not for keys of single agents: use one with only the scope {rule.level}"
            )
        path, query = found["path_params"], scope["query_string"]
        seen_as = await self._access.reach.through_path(caller, rule.reach, path, query)
        if seen_as is None:
            raise _forbidden(request, caller, "needs agent_id in its query, for a key of single agents")
        return seen_as

    async def _note_refusal(self, request: Request, caller: Caller) -> None:
        """Records a refused request to a route of administrators."""
        if request.url.path.startswith(_ADMIN):
            said = f"{request.method} {request.url.path}"[:KEPT]
            try:
                await self._access.audit.add(caller.project_id, "admin.asked", said, outcome="refused")
            except HoldfastError as error:
                # The request is refused even if this cannot be recorded.
                log.warning("refusal_not_recorded", key_id=caller.key_id, error=str(error))

    def _asker(self, request: Request, caller: Caller, address: str) -> Asker:
        headers = request.headers
        return Asker(
            key_id=caller.key_id,
            key_name=caller.key_name,
            at=self._access.clock.now(),
            ids=self._access.ids,
            address=address,
            user_agent=_kept(headers.get("user-agent", "")),
            request_id=_kept(headers.get("x-request-id", "")),
        )


SIGN_IN_RETURN = "/v1/tools/mcp/oauth/callback"
"""The path to which a browser returns after a sign-in at an MCP server. It has no key, but a secret that only this
browser knows."""

METRICS = "/metrics"
"""The path of the metrics. It is not a route of the API, but needs an administrator's key, too."""


@dataclass(frozen=True)
class StreamToken:
    """A token as the client sent it, and its run."""

    text: str
    run_id: RunId


def needs_key(path: str) -> bool:
    """Returns whether a request to this path needs a caller."""
    return (is_of_api(path) and path.rstrip("/") != SIGN_IN_RETURN) or path == METRICS


def stream_token_of(scope: Scope) -> StreamToken | None:
    """Returns the token that a request for a stream sends in place of a key; None without one."""
    path = _STREAM.fullmatch(scope["path"]) if scope["method"] == "GET" else None
    if path is None:
        return None
    query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
    return StreamToken(query["token"], RunId(path[1])) if "token" in query else None


def _invalid_key() -> Refused:
    return _unauthorized(ErrorCode.INVALID_API_KEY, "The API key is not valid")


def _unauthorized(code: ErrorCode, reason: str) -> Refused:
    said = f"{reason}: send it as 'Authorization: Bearer <key>'"
    return Refused(401, code, said, field="header.Authorization", headers={"WWW-Authenticate": "Bearer"})


def _too_many(wait_s: int) -> Refused:
    said = f"RATE_LIMITED: too many wrong API keys came from this address; try again in {wait_s} seconds"
    headers = {"Retry-After": str(wait_s), SHOULD_RETRY: "true"}
    return Refused(429, ErrorCode.RATE_LIMITED, said, headers=headers)


def _forbidden(request: Request, caller: Caller, needed: str) -> Refused:
    has = ", ".join(caller.scopes.texts())
    said = f"FORBIDDEN: {request.method} {request.url.path} {needed}; this key has {has}"
    return Refused(403, ErrorCode.FORBIDDEN, said)


def _kept(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)[:KEPT]


async def caller_within_reach(reach: AgentReach, scope: Scope, body: bytes) -> Response | None:
    """Checks the body of a request whose key is for single agents, and puts the caller with which the request continues
    into its state. Returns a 403 for a field that such a key may not send; otherwise None."""
    caller: Caller | None = scope.get("state", {}).get("caller")
    if caller is None or not caller.scopes.agents or scope["method"] in ("GET", "HEAD"):
        return None
    fields, method, path = _fields(body), scope["method"], scope["path"]
    found = refused_field(fields, method, path, is_chat=path in CHAT)
    if found is not None:
        said = f"FORBIDDEN: {found} needs a key of the project; this key may only talk with the agent as it is"
        return refused(403, ErrorCode.FORBIDDEN, said, field=found.partition(" ")[0])
    scope["state"]["caller"] = await reach.through_body(caller, path, fields)
    return None


def _fields(body: bytes) -> dict[str, Any]:
    """Returns the fields of a body that is a JSON object; none for other bodies."""
    try:
        given: Any = json.loads(body) if body else None
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", given) if isinstance(given, dict) else {}


# The second wall between projects. Routes and services name the project in their queries. Independently, the stores'
# database reads the project of the request's key here, at each use. Work outside of requests has no project and is
# refused; work of the API for all projects uses another database object.


NO_TENANT = "\x1f"
"""The tenant of a request whose key may see nothing. No project has this name; an empty name means all projects."""

_PROJECT: ContextVar[ProjectId | None] = ContextVar("project of the request", default=None)


def project_of_request() -> str:
    """Returns the project for which the current task acts. Raises `LookupError` if it acts for none."""
    project_id = _PROJECT.get()
    if project_id is None:
        raise LookupError("this task acts for no project: it is outside of a request, or before authentication")
    return project_id or NO_TENANT


def act_for(project_id: ProjectId | None) -> Token[ProjectId | None]:
    """Makes the current task act for a project, or for none. `ContextVar.reset` with the token reverts this."""
    return _PROJECT.set(project_id)


@contextmanager
def acting_for(project_id: ProjectId | None) -> Generator[None]:
    """Applies `act_for` to a block."""
    before = act_for(project_id)
    try:
        yield
    finally:
        _PROJECT.reset(before)
