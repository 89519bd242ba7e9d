"""Sign-ins at MCP servers (OAuth). A caller begins a sign-in, and a person's browser finishes it, at any API process.

The database stores a begun sign-in, encrypted, for minutes and for one return of a browser. A returning browser has no
API key. It acts for the project and the key that began the sign-in, and can only finish this sign-in.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from api.access.authentication import acting_for
from api.mcp_servers import McpServers, ServerChange
from shared.domain.errors import HoldfastError, InvalidRequest, McpServerUnavailable, McpSignInNeeded, UnreadableSecret
from shared.domain.ids import McpSignInId, ProjectId
from shared.domain.mcp_servers import Grant, McpServer, PendingSignIn, RemoteTool, SignInRequest, SignInSession
from shared.mcp.failures import SignInFailed, SignInRefused
from shared.mcp.signed_in import AuthorizationServers, signed_in
from shared.mcp.targets import grant_of, target_of, with_grant
from shared.sql.access.audit import ASKER, Asker, asked_by
from shared.sql.definitions.mcp_servers import McpSignInStore

EXPIRES = timedelta(minutes=10)
"""The time limit for the person."""
LOOK_S = 0.5
QUIET_S = 10.0
"""Seconds between two keep-alive events while a person signs in."""
LONGEST_STATE = 200
LONGEST_CODE = 10_000

_PENDING = "sign-in"
_UNKNOWN = "This sign-in is not known here, was used before, or has expired: begin it again"
_STAYS = "begin it again"


class Attempt(NamedTuple):
    """The API is connecting to the server."""

    server: McpServer


class Needed(NamedTuple):
    """The server demands a sign-in."""


class Opened(NamedTuple):
    """The person must open this URL in a browser."""

    url: str
    session_id: McpSignInId


class Pause(NamedTuple):
    """Nothing new has happened."""


class Reached(NamedTuple):
    """The server lists its tools."""

    tools: Sequence[RemoteTool]


class Failed(NamedTuple):
    """The connection has failed, or the sign-in did."""

    reason: str


SignInEvent = Attempt | Needed | Opened | Pause | Reached | Failed


class BrowserReturn(NamedTuple):
    """The parameters that a browser brings from an authorization server."""

    state: str = ""
    code: str = ""
    error: str = ""
    issuer: str | None = None


class Finished(NamedTuple):
    """The outcome of a sign-in, for the person at the browser."""

    server: McpServer
    tools: int | None
    """The number of the server's tools in the project now. None: the API could not list them, and the server's
    `problem` has the reason."""


@dataclass(frozen=True, kw_only=True)
class McpSignIns:
    """Begins and finishes sign-ins."""

    servers: McpServers
    store: McpSignInStore
    unscoped: McpSignInStore
    """The store for all projects: a browser does not name its project."""
    authorization: AuthorizationServers
    public_url: str
    """The URL at which browsers reach the API. Empty: the URL that the request used."""

    def unstored(self, project_id: ProjectId, wanted: ServerChange) -> McpServer:
        """Returns the server that a request describes, with its secrets encrypted. Raises `InvalidRequest`."""
        return self.servers.sealed(self.servers.made(project_id, wanted))

    async def connect(self, server: McpServer, asked_at: str, *, is_stored: bool) -> AsyncGenerator[SignInEvent]:
        """Connects to a server. If it demands a sign-in, asks a person for one and waits for it. `asked_at` is the URL
        at which the request reached the API. A server that is not stored is stored after the sign-in."""
        yield Attempt(server)
        try:
            tools = await (self.servers.listed if is_stored else self.servers.listed_once)(server)
        except McpSignInNeeded:
            yield Needed()
        except HoldfastError as error:
            yield Failed(error.message)
            return
        else:
            yield Reached(tools)
            return
        try:
            opened = await self._begun(server, asked_at, is_stored=is_stored)
            yield opened
            yield Pause()
            async for event in self._end_of(server, opened.session_id):
                yield event
        except HoldfastError as error:
            yield Failed(error.message)

    async def finish(self, returned: BrowserReturn) -> Finished:
        """Finishes the sign-in of a browser that has returned. A sign-in can be finished only once, whatever the
        result. Raises `InvalidRequest` with a sentence for the person."""
        is_sane = 0 < len(returned.state) <= LONGEST_STATE and len(returned.code) <= LONGEST_CODE
        now = self.servers.clock.now()
        session = await self.unscoped.take(_hash_of(returned.state), now) if is_sane else None
        if session is None:
            raise InvalidRequest(_UNKNOWN, field="state")
        asker = Asker(**session.begun_by, at=now, ids=self.servers.ids)
        with acting_for(session.project_id), asked_by(asker):
            try:
                server = await self._redeemed(session, returned)
            except HoldfastError as error:
                await self.store.finish(session, error.message)
                raise
            taken = await self.servers.taken(server)
            await self.store.finish(session, "")
            tools = await self.servers.store.tools(session.project_id, server.id)
        return Finished(taken.server, None if taken.changes is None else len(tools))

    async def _begun(self, server: McpServer, asked_at: str, *, is_stored: bool) -> Opened:
        """Stores a new sign-in. Raises `InvalidRequest` and `McpServerUnavailable`."""
        keys, now = self.servers.secret_keys, self.servers.clock.now()
        redirect_uri = f"{self.public_url or asked_at}/v1/tools/mcp/oauth/callback"
        try:
            known = grant_of(server, keys)
            authorization = await self.authorization.ready()
            begun = await authorization.begin(target_of(server, keys), redirect_uri, known)
        except (SignInRefused, SignInFailed) as error:
            raise McpServerUnavailable(_sign_in_fails(server, error)) from error
        except UnreadableSecret as error:
            raise McpServerUnavailable(f"{error.message}. Send the secret anew") from error
        session_id = self.servers.ids.mcp_sign_in()
        pending = PendingSignIn(request=begun.request, draft=None if is_stored else server)
        await self.store.create(
            SignInSession(
                id=session_id,
                project_id=server.project_id,
                server_id=server.id,
                state_hash=_hash_of(begun.state),
                sealed=keys.seal(session_id, _PENDING, msgspec.json.encode(pending).decode()),
                begun_by=_asker(),
                created_at=now,
                expires_at=now + EXPIRES,
            )
        )
        return Opened(begun.url, session_id)

    async def _end_of(self, server: McpServer, session_id: McpSignInId) -> AsyncGenerator[SignInEvent]:
        """Waits until a browser finishes the sign-in, at any API process."""
        clock = self.servers.clock
        paused_at = clock.monotonic()
        while True:
            session = await self.store.get(server.project_id, session_id)
            if session.status == "done":
                stored = await self.servers.store.named(server.project_id, server.name)
                yield Reached(await self.servers.listed(stored or server))
                return
            if session.status == "failed":
                yield Failed(session.problem)
                return
            if clock.now() >= session.expires_at:
                yield Failed(f"nobody has signed in within {EXPIRES.total_seconds() / 60:.0f} minutes: {_STAYS}")
                return
            if clock.monotonic() - paused_at >= QUIET_S:
                paused_at = clock.monotonic()
                yield Pause()
            await asyncio.sleep(LOOK_S)

    async def _redeemed(self, session: SignInSession, returned: BrowserReturn) -> McpServer:
        """Exchanges the code, and stores the grant. Raises `InvalidRequest`, `NotFound` and `Conflict`."""
        keys = self.servers.secret_keys
        try:
            text = keys.open(session.id, _PENDING, session.sealed)
        except UnreadableSecret as error:
            raise InvalidRequest(f"This sign-in cannot be finished here: {error.reason}") from error
        pending = msgspec.json.decode(text, type=PendingSignIn)
        _refuse_return(pending.request, returned)
        now = self.servers.clock.now()
        try:
            authorization = await self.authorization.ready()
            grant = await authorization.redeem(pending.request, returned.code, now)
        except (SignInRefused, SignInFailed) as error:
            raise InvalidRequest(f"Nobody is signed in: {error}: {_STAYS}") from error
        return await self._stored(session, pending, grant)

    async def _stored(self, session: SignInSession, pending: PendingSignIn, grant: Grant) -> McpServer:
        servers = self.servers
        now = servers.clock.now()

        def granted(before: McpServer) -> McpServer:
            if before.url != pending.request.server_url:
                raise InvalidRequest(f"The server's address was changed since the sign-in was begun: {_STAYS}")
            return with_grant(before, grant, signed_in(grant, now), servers.secret_keys)

        draft = pending.draft
        if draft is not None:
            known = await servers.store.named(session.project_id, draft.name)
            if known is None:
                made = await servers.store.create(granted(draft))
                await servers.audit.add(session.project_id, "mcp_server.signed_in", made.id)
                return made
            session = replace(session, server_id=known.id)
        return await servers.store.update(
            session.project_id, session.server_id, granted, now=now, action="mcp_server.signed_in"
        )


def _refuse_return(request: SignInRequest, returned: BrowserReturn) -> None:
    """Raises `InvalidRequest` if the browser brings no code, or comes from another authorization server (RFC 9207)."""
    if returned.error:
        said = returned.error if returned.error.isprintable() and len(returned.error) <= 60 else "an error"
        raise InvalidRequest(f"Nobody is signed in: the authorization server says {said!r}")
    is_missing = returned.issuer is None and request.names_issuer
    if is_missing or (returned.issuer is not None and returned.issuer != request.issuer):
        raise InvalidRequest(f"Nobody is signed in: another authorization server has answered than was asked: {_STAYS}")
    if not returned.code:
        raise InvalidRequest("Nobody is signed in: the authorization server has sent no code", field="code")


def _sign_in_fails(server: McpServer, error: Exception) -> str:
    return f"Nobody can sign in at the MCP server {server.name!r} now: {error}"


def _asker() -> dict[str, str]:
    """The caller that begins the sign-in, for the audit log."""
    asker = ASKER.get()
    if asker is None:
        return {"key_id": "", "key_name": ""}
    names = ("key_id", "key_name", "address", "user_agent", "request_id")
    return {name: getattr(asker, name) for name in names}


def _hash_of(state: str) -> str:
    return hashlib.sha256(state.encode(errors="replace")).hexdigest()
