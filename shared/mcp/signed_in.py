"""Sends requests to MCP servers with the tokens of people's sign-ins, and renews these tokens.

The process that needs a token renews it: the API or a worker. A refresh token may be valid for one use, and a second
use may end the whole sign-in. So a process claims the renewal in the database before it sends it, and other processes
wait for the outcome. A renewal that was sent is finished and stored even if no caller waits for it any more.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import structlog
from msgspec.structs import replace

from shared.concurrency import Clock
from shared.domain.errors import McpSignInNeeded, NotFound, Unavailable
from shared.domain.ids import McpServerId, ProjectId
from shared.domain.mcp_servers import Begun, Grant, McpServer, McpTarget, SignIn, SignInRequest
from shared.mcp.failures import SignInFailed, SignInRefused
from shared.mcp.targets import THE_TOKEN, grant_of, target_of, with_grant
from shared.network.checked_http import CheckedTransport, NetworkRules
from shared.secret_keys import SecretKeys

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

EARLY = timedelta(seconds=10)
"""How long before its expiry a token is renewed."""
ANSWER_S = 15.0
"""Seconds for all requests to an authorization server together."""
CLAIM = timedelta(seconds=60)
"""The longest wait of other processes if the claiming process dies. That process sends its renewal within `ANSWER_S` of
its claim, or not at all."""
LOOK_S = 0.25
"""Seconds between two checks whether another process has renewed."""

Answer = TypeVar("Answer")
Change = Callable[[McpServer], McpServer]


class GrantStore(Protocol):
    """The part of the servers' store that this module uses."""

    async def get(self, project_id: ProjectId, server_id: McpServerId) -> McpServer:
        """Returns a server of this project. Raises `NotFound`."""
        ...

    async def update(
        self, project_id: ProjectId, server_id: McpServerId, change: Change, *, now: datetime, action: str = ""
    ) -> McpServer:
        """Changes the stored server. Raises `NotFound`."""
        ...

    async def claim_renewal(
        self, server: McpServer, holder: str, *, now: datetime, until: datetime
    ) -> McpServer | None:
        """Claims the renewal of a server's token until `until`, and returns the server as stored. None: another holder
        has the claim. Raises `NotFound`."""
        ...

    async def settle_renewal(self, server: McpServer, holder: str, change: Change, *, now: datetime) -> McpServer:
        """Changes the stored server and releases the claim, if the holder still has it. Returns the server as stored.
        Raises `NotFound`."""
        ...


class Authorization(Protocol):
    """The interface of `shared.mcp.authorization.Authorization`."""

    async def begin(self, target: McpTarget, redirect_uri: str, known: Grant | None) -> Begun: ...

    async def redeem(self, request: SignInRequest, code: str, now: datetime) -> Grant: ...

    async def renew(self, grant: Grant, now: datetime) -> Grant: ...


class AuthorizationServers:
    """Provides the client of authorization servers, which it makes at the first use. The owner closes it once."""

    def __init__(self, network: NetworkRules, *, within_s: float = ANSWER_S) -> None:
        self._network = network
        self._within_s = within_s
        self._http: CheckedTransport | None = None

    async def ready(self) -> Authorization:
        """Imports the protocol's package on a thread: it takes a second, and most processes never need it."""
        made = await asyncio.to_thread(_imported)
        if self._http is None:
            self._http = CheckedTransport(self._network)
        return made(self._http, self._within_s)

    async def aclose(self) -> None:
        """Closes every connection."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None


def _imported() -> Callable[[CheckedTransport, float], Authorization]:
    from shared.mcp.authorization import Authorization

    return Authorization


class _Claim(NamedTuple):
    """The right to renew one token."""

    holder: str
    stale: str
    """The access token to replace."""
    at: float


class SignedIn:
    """The tokens of servers, for one process. The owner closes it once."""

    def __init__(
        self,
        store: GrantStore,
        servers: AuthorizationServers,
        secret_keys: SecretKeys,
        clock: Clock,
        new_holder: Callable[[], str],
    ) -> None:
        self._store = store
        self._servers = servers
        self._secret_keys = secret_keys
        self._clock = clock
        self._new_holder = new_holder
        self._renewals: dict[tuple[McpServerId, str], asyncio.Task[McpServer]] = {}

    async def asked(self, server: McpServer, ask: Callable[[McpTarget], Awaitable[Answer]]) -> Answer:
        """Calls `ask` with the server's address, headers and a valid token, and returns its result. If the server
        refuses the token, and so has not acted, renews the token and calls `ask` once more.

        Raises the errors of `ask`, `UnreadableSecret`, `InvalidRequest` for a header that cannot be sent, and
        `Unavailable` if the token could not be renewed now. Raises `McpSignInNeeded`, and stores that with the server.
        """
        server = await self._current(server)
        try:
            return await ask(target_of(server, self._secret_keys))
        except McpSignInNeeded:
            grant = grant_of(server, self._secret_keys)
            if grant is None:
                await self._note(server)
                raise
        server = await self._renewed(server, grant.access_token)
        self._refuse_signed_out(server)
        try:
            return await ask(target_of(server, self._secret_keys))
        except McpSignInNeeded:
            await self._note(server)
            raise

    async def aclose(self) -> None:
        """Waits for renewals under way, because their new tokens would be lost."""
        if self._renewals:
            _, late = await asyncio.wait(self._renewals.values(), timeout=2 * ANSWER_S)
            for task in late:
                task.cancel()

    async def _current(self, server: McpServer) -> McpServer:
        """Returns the server with a token that has not expired."""
        grant = grant_of(server, self._secret_keys)
        if grant is None:
            return server
        self._refuse_signed_out(server)
        if grant.expires_at is None or self._clock.now() + EARLY < grant.expires_at:
            return server
        if grant.refresh_token is None and self._clock.now() < grant.expires_at:
            return server
        server = await self._renewed(server, grant.access_token)
        self._refuse_signed_out(server)
        return server

    def _refuse_signed_out(self, server: McpServer) -> None:
        grant = grant_of(server, self._secret_keys)
        if grant is not None and not grant.access_token:
            raise McpSignInNeeded(
                f"The MCP server {server.name!r} was not asked: the sign-in at it has ended, and a person has to "
                "sign in again"
            )

    async def _renewed(self, server: McpServer, stale: str) -> McpServer:
        """Returns the server with a token other than `stale`, or signed out."""
        key = server.id, stale
        task = self._renewals.get(key)
        if task is None:
            renewal = self._renew(server, stale)
            task = asyncio.get_running_loop().create_task(renewal, name="renew an mcp server's token")
            self._renewals[key] = task
            task.add_done_callback(partial(self._forget, key))
        return await asyncio.shield(task)

    def _forget(self, key: tuple[McpServerId, str], task: asyncio.Task[McpServer]) -> None:
        del self._renewals[key]
        if not task.cancelled():
            task.exception()  # marks the error as retrieved: the waiting callers get it, if there are any

    async def _renew(self, server: McpServer, stale: str) -> McpServer:
        authorization = await self._servers.ready()
        holder, clock = self._new_holder(), self._clock
        last = clock.monotonic() + (2 * CLAIM).total_seconds()
        while True:
            now, asked_at = clock.now(), clock.monotonic()
            stored = await self._store.claim_renewal(server, holder, now=now, until=now + CLAIM)
            if stored is not None:
                return await self._claimed(authorization, stored, _Claim(holder, stale, asked_at))
            if clock.monotonic() >= last:
                raise Unavailable(f"the token of the MCP server {server.name!r} is being renewed for too long")
            await asyncio.sleep(LOOK_S)
            stored = await self._store.get(server.project_id, server.id)
            if self._is_other(stored, stale):
                return stored

    async def _claimed(self, authorization: Authorization, server: McpServer, claim: _Claim) -> McpServer:
        """Renews the token under the claim. No other process does so meanwhile."""
        stale = claim.stale
        grant = grant_of(server, self._secret_keys)

        async def settled(change: Change) -> McpServer:
            # Keeps a new sign-in, or another change of the server, that was stored meanwhile.
            def careful(before: McpServer) -> McpServer:
                return before if self._is_other(before, stale) else change(before)

            return await self._store.settle_renewal(server, claim.holder, careful, now=self._clock.now())

        if grant is None or self._is_other(server, stale):
            return await settled(_unchanged)
        if self._clock.monotonic() - claim.at > ANSWER_S:
            # This process was suspended, and the claim may expire before the renewal ends.
            await settled(_unchanged)
            raise Unavailable(f"The MCP server {server.name!r} was not asked: this process was too slow")
        try:
            renewed = await authorization.renew(grant, self._clock.now())
        except SignInRefused as refused:
            log.warning("mcp_sign_in_ended", server=server.id, reason=str(refused))
            return await settled(partial(_signed_out, grant, self._clock.now(), self._secret_keys))
        except SignInFailed as failed:
            await settled(_unchanged)
            raise Unavailable(
                f"The MCP server {server.name!r} was not asked: its token could not be renewed: {failed}"
            ) from failed
        return await settled(partial(_with_new_tokens, renewed, self._clock.now(), self._secret_keys))

    def _is_other(self, server: McpServer, stale: str) -> bool:
        grant = grant_of(server, self._secret_keys)
        return grant is None or grant.access_token != stale

    async def _note(self, server: McpServer) -> None:
        """Stores that the server demands a sign-in, unless it has a client's own token, which the client must
        correct."""
        if THE_TOKEN in server.secrets:
            return
        now = self._clock.now()

        def noted(before: McpServer) -> McpServer:
            if before.secrets != server.secrets or (before.sign_in and before.sign_in.state == "needed"):
                return before
            return replace(before, sign_in=_needed(before, now))

        # The caller gets the error even if this write fails.
        with suppress(NotFound, Unavailable):
            await self._store.update(server.project_id, server.id, noted, now=now, action="")


def _unchanged(server: McpServer) -> McpServer:
    return server


def _needed(server: McpServer, now: datetime) -> SignIn:
    before = server.sign_in
    who = None if before is None else before.authorization_server
    return SignIn(state="needed", authorization_server=who, since=now)


def _signed_out(grant: Grant, now: datetime, secret_keys: SecretKeys, server: McpServer) -> McpServer:
    """Returns the server without tokens. The registration stays for the next sign-in."""
    blank = replace(grant, access_token="", refresh_token=None, expires_at=None)
    return with_grant(server, blank, _needed(server, now), secret_keys)


def _with_new_tokens(grant: Grant, now: datetime, secret_keys: SecretKeys, server: McpServer) -> McpServer:
    since = server.sign_in.since if server.sign_in is not None else now
    return with_grant(server, grant, signed_in(grant, since), secret_keys)


def signed_in(grant: Grant, since: datetime) -> SignIn:
    """The public fields of a grant."""
    return SignIn(
        state="signed_in",
        authorization_server=grant.authorization_server,
        scope=grant.scope,
        since=since,
        expires_at=grant.expires_at,
    )
