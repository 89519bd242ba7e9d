"""The official package's own authorization server with an MCP server that it protects, on loopback. A browser that
opens the address of a sign-in consents at once."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import httpx2
from mcp.server import MCPServer
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl

from tests.kit.free_ports import free_port
from tests.kit.mcp.official import App, Message, Receive, Send, served

Act = Callable[[Send], Awaitable[None]]
Scope = MutableMapping[str, Any]


class _Provider(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """Rotates refresh tokens. A token that is used twice ends the sign-in, as RFC 9700 demands."""

    def __init__(self, server: "AuthorizingServer") -> None:
        self._server = server
        self._codes: dict[str, AuthorizationCode] = {}
        self._refresh: dict[str, RefreshToken] = {}
        self._used: set[str] = set()

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self._server.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self._server.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        code = AuthorizationCode(
            code=secrets.token_urlsafe(24),
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        self._codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self._codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self._codes[authorization_code.code]
        return self._issued(client, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        if refresh_token in self._used:
            self._server.reused += 1
            self._refresh.clear()
            self._server.access.clear()
        return self._refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        if self._refresh.pop(refresh_token.token, None) is None:
            raise TokenError("invalid_grant")
        self._used.add(refresh_token.token)
        return self._issued(client, scopes, refresh_token.resource)

    async def load_access_token(self, token: str) -> AccessToken | None:
        found = self._server.access.get(token)
        return None if found is None or (found.expires_at or 0) < time.time() else found

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self._refresh.pop(token.token, None)

    async def exchange_identity_assertion(self, client: Any, params: Any) -> OAuthToken:
        raise TokenError("unsupported_grant_type")

    def forget(self) -> None:
        """Ends every sign-in."""
        self._refresh.clear()
        self._server.access.clear()

    def _issued(self, client: OAuthClientInformationFull, scopes: list[str], resource: str | None) -> OAuthToken:
        server = self._server
        access, refresh = f"access-{secrets.token_urlsafe(24)}", f"refresh-{secrets.token_urlsafe(24)}"
        ends = int(time.time() + server.lifetime_s)
        server.access[access] = AccessToken(
            token=access, client_id=client.client_id, scopes=scopes, expires_at=ends, resource=resource
        )
        self._refresh[refresh] = RefreshToken(
            token=refresh, client_id=client.client_id, scopes=scopes, resource=resource
        )
        server.issued += [access, refresh]
        return OAuthToken(
            access_token=access,
            refresh_token=refresh if server.refreshes else None,
            expires_in=server.said_lifetime_s,
            scope=" ".join(scopes),
        )


@dataclass
class AuthorizingServer:
    """A running server, the tokens that it has issued, and its deviations from the protocol."""

    port: int
    path: str
    clients: dict[str, OAuthClientInformationFull] = field(default_factory=dict[str, OAuthClientInformationFull])
    access: dict[str, AccessToken] = field(default_factory=dict[str, AccessToken])
    """The valid access tokens."""
    issued: list[str] = field(default_factory=list[str])
    """Every issued token."""
    grants: list[str] = field(default_factory=list[str])
    """The type of each request for a token, in order."""
    calls: list[str] = field(default_factory=list[str])
    reused: int = 0
    """How often a refresh token was used a second time."""
    lifetime_s: float = 3600
    said_lifetime_s: int | None = 3600
    refreshes: bool = True
    answering: asyncio.Event = field(default_factory=asyncio.Event)
    """Not set: requests for a token wait."""
    acts: dict[str, Act] = field(default_factory=dict[str, Act])
    """The behaviour for some paths; the server answers all others correctly."""
    forget: Callable[[], None] = lambda: None
    """Ends every sign-in."""

    @property
    def url(self) -> str:
        return f"{self.origin}/{self.path}"

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def authorizing_server(path: str = "mcp") -> AsyncGenerator[AuthorizingServer]:
    """The server, for the block. `sse` is the path of one that speaks the protocol's first version."""
    server = AuthorizingServer(free_port(), path)
    server.answering.set()
    provider = _Provider(server)
    server.forget = provider.forget
    mcp = MCPServer(
        "notes",
        log_level="CRITICAL",
        auth_server_provider=provider,
        auth=AuthSettings(
            issuer_url=AnyHttpUrl(server.origin),
            resource_server_url=AnyHttpUrl(server.url),
            required_scopes=["notes"],
            client_registration_options=ClientRegistrationOptions(
                enabled=True, valid_scopes=["notes"], default_scopes=["notes"]
            ),
            validate_token_resource=True,
        ),
    )

    @mcp.tool()
    def note(text: str) -> str:
        """Takes a note."""
        server.calls.append(text)
        return f"noted {text}"

    app = mcp.sse_app() if path == "sse" else mcp.streamable_http_app(stateless_http=True)
    async with served(_watched(app, server), server.port):
        yield server
        server.answering.set()


def _watched(app: App, server: AuthorizingServer) -> App:
    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        act = server.acts.get(scope.get("path", ""))
        if act is not None:
            await act(send)
            return
        if scope.get("path") != "/token":
            await app(scope, receive, send)
            return
        body = await receive()
        server.grants.append(dict(parse_qsl(body["body"].decode()))["grant_type"])
        await server.answering.wait()
        sent = [body]

        async def again() -> Message:
            return sent.pop() if sent else await receive()

        await app(scope, again, send)

    return watched


async def consented(url: str) -> str:
    """Opens the address of a sign-in as a browser does, and returns where the person is sent."""
    async with httpx2.AsyncClient(trust_env=False) as browser:
        answer = await browser.get(url)
    assert answer.status_code == 302, answer.text
    return answer.headers["location"]


def answers(status: int, content: bytes, **headers: str) -> Act:
    """A behaviour that sends this answer."""

    async def answer(send: Send) -> None:
        named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": named})
        await send({"type": "http.response.body", "body": content})

    return answer
