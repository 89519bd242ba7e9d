"""Talks to the authorization server of an MCP server: discovers it, registers a client, and gets tokens (OAuth 2.1).

The official package discovers the authorization server and registers there. It expects one process to do a whole
sign-in, including the person's time in the browser. Here the browser may return to any process. So this module stops
the package once it knows the URL for the browser, and exchanges the returned code itself. It repeats only those codes
of a server's errors that OAuth defines.

Importing the protocol's package takes a second, so other modules import this one at the first sign-in or renewal.
"""

import asyncio
import logging
import re
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, NoReturn
from urllib.parse import urljoin, urlsplit

import httpx2
import msgspec
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, OAuthFlowError, PKCEParameters
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl, ValidationError

from shared.domain.mcp_servers import Begun, Grant, McpTarget, SignInRequest
from shared.mcp.failures import SignInFailed, SignInRefused
from shared.mcp.targets import LONGEST_HEADER
from shared.network.addresses import ForbiddenAddress
from shared.network.checked_http import Unreachable, callers_client

# The package logs the servers' messages, which contain tenants' data. Callers get the important part as an error.
logging.getLogger("mcp").setLevel(logging.CRITICAL + 1)

ANSWER_BYTES = 256_000
"""The limit for one answer of an authorization server."""
MOST_REQUESTS = 20
"""The limit for one sign-in: the package may have to try a dozen URLs to find the authorization server."""
STEP_S = 10.0
MOST_LIFETIME_S = 10 * 365 * 86400

_CODE = re.compile(r"[A-Za-z0-9_.-]{1,60}")
_REFUSALS = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED})
_PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


class _Redirected(Exception):
    """The package has computed the URL for the browser."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url


class _Registration:
    """Keeps the registration for the package, and no tokens."""

    def __init__(self, client: OAuthClientInformationFull | None) -> None:
        self.client = client

    async def get_tokens(self) -> OAuthToken | None:
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Does nothing: `Authorization.redeem` gets the tokens."""

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class _AuthorizationHttp(httpx2.AsyncBaseTransport):
    """Sends the requests of one sign-in, and limits the answers. `challenged` is the MCP server's URL. Its first answer
    counts as the 401 with which the package begins a sign-in, whatever its status."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, challenged: str | None = None) -> None:
        self._inner = inner
        self._challenged = challenged
        self._requests = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self._requests += 1
        if self._requests > MOST_REQUESTS:
            raise Unreachable("it leads from one place to the next without end")
        headers = httpx2.Headers(request.headers)
        headers["accept-encoding"] = "identity"
        bounded = httpx2.Request(
            request.method,
            request.url,
            headers=headers,
            stream=request.stream,
            extensions={**request.extensions, "timeout": httpx2.Timeout(STEP_S).as_dict()},
        )
        response = await self._inner.handle_async_request(bounded)
        try:
            if self._requests == 1 and self._challenged is not None:
                said = {"www-authenticate": response.headers.get("www-authenticate", "")[:4000]}
                is_asking = response.status_code == HTTPStatus.UNAUTHORIZED
                return httpx2.Response(HTTPStatus.UNAUTHORIZED, headers=said if is_asking else {}, request=request)
            content = await _read(response)
        finally:
            await response.aclose()
        kept = {name: response.headers[name] for name in ("content-type", "location") if name in response.headers}
        return httpx2.Response(response.status_code, headers=kept, content=content, request=request)

    async def aclose(self) -> None:
        """Does nothing, because other sign-ins use `inner`, too."""


class Authorization:
    """Sends requests to authorization servers through `http`, each operation within `within_s` seconds."""

    def __init__(self, http: httpx2.AsyncBaseTransport, within_s: float) -> None:
        self._http = http
        self._within_s = within_s

    async def begin(self, target: McpTarget, redirect_uri: str, known: Grant | None) -> Begun:
        """Finds the authorization server of an MCP server, and registers there unless `known` has a registration for
        this redirect URI. Returns the URL for the person. Raises `SignInFailed` and `SignInRefused`."""
        storage = _Registration(_still_registered(known, redirect_uri))
        provider = _provider(target.url, redirect_uri, storage)
        own = {name: value for name, value in target.headers.items() if name.lower() != "authorization"}
        is_channel = target.transport == "sse"
        http = _AuthorizationHttp(self._http, target.url)
        async with _asking(self._within_s), callers_client(http, timeout_s=STEP_S) as client:
            request = client.build_request(
                "GET" if is_channel else "POST",
                target.url,
                json=None if is_channel else _PING,
                headers={**own, "Accept": "application/json, text/event-stream"},
            )
            try:
                await client.send(request, auth=provider)
            except _Redirected as redirected:
                return _begun(provider.context, redirected.url, redirect_uri)
        raise SignInFailed("it asks for no sign-in")

    async def redeem(self, request: SignInRequest, code: str, now: datetime) -> Grant:
        """Exchanges the code from a person's browser. Raises `SignInFailed` and `SignInRefused`."""
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": request.redirect_uri}
        blank = Grant(
            scope=request.scope,
            token_endpoint=request.token_endpoint,
            resource=request.resource,
            authorization_server=request.authorization_server,
            client=request.client,
            redirect_uri=request.redirect_uri,
        )
        return await self._granted(blank, form | {"code_verifier": request.verifier}, now)

    async def renew(self, grant: Grant, now: datetime) -> Grant:
        """Exchanges the refresh token. Raises `SignInRefused` if a person must sign in again, and `SignInFailed` if the
        authorization server gives no usable answer."""
        if not grant.refresh_token:
            raise SignInRefused("the access token has ended, and no refresh token was granted")
        form = {"grant_type": "refresh_token", "refresh_token": grant.refresh_token}
        return await self._granted(grant, form, now)

    async def _granted(self, before: Grant, form: Mapping[str, str], now: datetime) -> Grant:
        """Sends one request to the token endpoint, and returns the new grant."""
        client = OAuthClientInformationFull.model_validate(before.client)
        context = _provider(before.token_endpoint, before.redirect_uri, _Registration(client)).context
        context.client_info = client
        data = {**form, "client_id": client.client_id}
        if before.resource is not None:
            data["resource"] = before.resource
        http = _AuthorizationHttp(self._http)
        async with _asking(self._within_s), callers_client(http, timeout_s=STEP_S) as own:
            data, headers = context.prepare_token_auth(data, {"Accept": "application/json"})
            response = await own.post(before.token_endpoint, data=data, headers=headers)
        token = _token_in(response)
        return msgspec.structs.replace(
            before,
            access_token=token.access_token,
            # A server that does not rotate refresh tokens omits it, and the old one stays valid.
            refresh_token=token.refresh_token or before.refresh_token,
            expires_at=_end_of(token, now),
            scope=token.scope or before.scope,
        )


def _begun(context: OAuthContext, url: str, redirect_uri: str) -> Begun:
    metadata, client = context.oauth_metadata, context.client_info
    if client is None:
        raise SignInFailed("its authorization server gave no registration")
    if metadata is not None and "S256" not in (metadata.code_challenge_methods_supported or ["S256"]):
        raise SignInFailed("its authorization server does not know PKCE with S256, without which a code is not safe")
    # The package does not expose its verifier, so this replaces the challenge in the URL with one of ours.
    proof, state = PKCEParameters.generate(), secrets.token_urlsafe(32)
    address = httpx2.URL(url).copy_set_param("state", state).copy_set_param("code_challenge", proof.code_challenge)
    parts = urlsplit(context.server_url)
    origin = f"{parts.scheme}://{parts.netloc}"
    request = SignInRequest(
        verifier=proof.code_verifier,
        server_url=context.server_url,
        token_endpoint=str(metadata.token_endpoint) if metadata is not None else urljoin(origin, "/token"),
        resource=address.params.get("resource"),
        scope=context.client_metadata.scope,
        authorization_server=str(metadata.issuer) if metadata is not None else origin,
        issuer=str(metadata.issuer) if metadata is not None else None,
        names_issuer=metadata is not None and bool(metadata.authorization_response_iss_parameter_supported),
        client=client.model_dump(mode="json", exclude_none=True),
        redirect_uri=redirect_uri,
    )
    return Begun(url=str(address), state=state, request=request)


def _token_in(response: httpx2.Response) -> OAuthToken:
    if response.status_code not in (HTTPStatus.OK, HTTPStatus.CREATED):
        code = _code_in(response.content)
        if response.status_code in _REFUSALS and code:
            raise SignInRefused(f"its authorization server refuses: {code}")
        raise SignInFailed(f"its authorization server answers a request for a token with HTTP {response.status_code}")
    try:
        token = OAuthToken.model_validate_json(response.content)
    except ValidationError as error:
        raise SignInFailed("its authorization server answers a request for a token without a token") from error
    sent = (token.access_token, token.refresh_token or "-")
    if not all(one.isascii() and one.isprintable() and 0 < len(one) < LONGEST_HEADER - 10 for one in sent):
        raise SignInFailed("its authorization server sends a token that cannot be sent back")
    return token


def _end_of(token: OAuthToken, now: datetime) -> datetime | None:
    if token.expires_in is None:
        return None
    return now + timedelta(seconds=min(max(token.expires_in, 0), MOST_LIFETIME_S))


def _code_in(content: bytes) -> str:
    """Returns OAuth's error code; empty if the content has none."""
    try:
        said = msgspec.json.decode(content, type=dict[str, Any]).get("error")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return said if isinstance(said, str) and _CODE.fullmatch(said) else ""


def _still_registered(known: Grant | None, redirect_uri: str) -> OAuthClientInformationFull | None:
    """Returns the registration if it is valid for this redirect URI."""
    if known is None or known.redirect_uri != redirect_uri:
        return None
    client = OAuthClientInformationFull.model_validate(known.client)
    # If the client's secret expires, the client registers again. 0 means that it does not expire.
    return None if client.client_secret_expires_at else client


def _provider(server_url: str, redirect_uri: str, storage: _Registration) -> OAuthClientProvider:
    is_here = urlsplit(redirect_uri).hostname in ("localhost", "127.0.0.1", "::1")
    about = OAuthClientMetadata(
        client_name="Holdfast", redirect_uris=[AnyUrl(redirect_uri)], application_type="native" if is_here else "web"
    )

    async def stop(url: str) -> None:
        raise _Redirected(url)

    async def never() -> AuthorizationCodeResult:
        raise OAuthFlowError("the browser comes back elsewhere")

    return OAuthClientProvider(server_url, about, storage, stop, never)


@asynccontextmanager
async def _asking(within_s: float) -> AsyncGenerator[None]:
    """Converts the errors of the package and the network within the block to `SignInFailed`."""
    try:
        async with asyncio.timeout(within_s):
            yield
    except TimeoutError as error:
        raise SignInFailed(f"its authorization server has not answered within {within_s:g} s") from error
    except (ForbiddenAddress, Unreachable) as error:
        raise SignInFailed(f"its authorization server cannot be asked: {error}") from error
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, UnicodeError) as error:
        raise SignInFailed(f"its authorization server cannot be reached ({type(error).__name__})") from error
    except OAuthFlowError as error:
        _refuse(error)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SignInFailed(f"its authorization server does not keep to OAuth ({type(error).__name__})") from error


def _refuse(error: OAuthFlowError) -> NoReturn:
    """Raises an error that names the failed step. The package's own text quotes the servers."""
    said = str(error)
    if "egistration" in type(error).__name__ or "egistration" in said:
        raise SignInRefused(
            "its authorization server registers no program by itself: get a token from the server's provider, and give "
            "it as auth_token"
        ) from error
    if "mismatch" in said or "does not match" in said:
        raise SignInRefused("its authorization server calls itself otherwise than the MCP server does") from error
    raise SignInFailed(f"its authorization server does not keep to OAuth ({type(error).__name__})") from error


async def _read(response: httpx2.Response) -> bytes:
    if response.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
        raise Unreachable("its answer is compressed, which was not asked for")
    content = bytearray()
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) > ANSWER_BYTES:
            raise Unreachable(f"its answer has more than {ANSWER_BYTES} bytes")
    return bytes(content)
