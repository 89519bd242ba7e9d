"""The HTTP clients of the product: one for addresses that callers choose, and the parts that other clients share.

A caller's host is resolved once per request, and the client connects to the checked address. So a name that resolves to
a public address for the check and to a private one for the connection gains nothing. Each redirect is a new request and
is checked like the first. The request carries nothing of the operator's: no proxy, no cookie, no key.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from ipaddress import ip_network
from threading import Thread
from typing import NamedTuple, Self

import httpx2

from shared.network.addresses import AddressPolicy, ForbiddenAddress, flaw_of_port

MOST_REDIRECTS = 5
REQUEST_S = 15.0
"""Seconds for one request of a caller, including its redirects and the whole answer."""
_STEP_TIMEOUT_S = 10.0
_MOST_KEPT = 10
"""Connections of one transport that wait for its next request."""
_PORTS = {"http": 80, "https": 443}
LOOKUPS_AT_ONCE = 64


class NameLookups:
    """Looks up names that callers have chosen, each on a thread of its own. A name server may block a lookup for half a
    minute, and the event loop needs its few threads for the operator's services and model providers."""

    def __init__(self, at_once: int = LOOKUPS_AT_ONCE) -> None:
        self._places = asyncio.Semaphore(at_once)

    async def addresses(self, host: str, port: int) -> list[str]:
        """The addresses of a host, each once. Raises `OSError` and `UnicodeError`."""
        await self._places.acquire()
        found, loop = Future[list[str]](), asyncio.get_running_loop()
        found.set_running_or_notify_cancel()  # a lookup that no task waits for any more keeps its place to its end
        found.add_done_callback(lambda _: loop.is_closed() or loop.call_soon_threadsafe(self._places.release))
        try:
            Thread(target=_look_up, args=(found, host, port), name="look up a name", daemon=True).start()
        except RuntimeError as error:  # this process may have no further thread now
            found.set_exception(OSError(str(error)))
        return await asyncio.wrap_future(found)


def _look_up(found: Future[list[str]], host: str, port: int) -> None:
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        found.set_result(list(dict.fromkeys(str(entry[4][0]) for entry in entries)))
    except (OSError, UnicodeError) as error:
        found.set_exception(error)


class Unreachable(Exception):
    """A caller's URL gave no HTTP answer. A later request may succeed."""


class TooLarge(Exception):
    """The content of a caller's URL has more bytes than allowed."""


class Found(NamedTuple):
    """The content of a URL."""

    status_code: int
    content: bytes
    media_type: str
    """Without parameters, in lower case; empty if the server does not send it."""


@dataclass(frozen=True)
class NetworkRules:
    """The operator's rules for outgoing connections."""

    policy: AddressPolicy = field(default_factory=AddressPolicy)
    ca_file: str = ""
    """A file of certificates that are trusted besides the system's."""
    lookups: NameLookups = field(default_factory=NameLookups, compare=False)

    @classmethod
    def of(cls, networks: str, ca_file: str, *, allow_private: bool = False) -> Self:
        """The rules of the settings: `networks` is a comma list."""
        listed = tuple(map(ip_network, networks.replace(",", " ").split()))
        return cls(AddressPolicy(allow_private, listed), ca_file)

    def tls(self) -> ssl.SSLContext:
        """The trusted certificates. Takes 20 ms, so a client that may never be used creates it at its first use."""
        context = httpx2.create_ssl_context()
        if self.ca_file:
            context.load_verify_locations(cafile=self.ca_file)
        return context


PUBLIC_ONLY = NetworkRules()
"""The default rules."""


def operators_client(network: NetworkRules, *, timeout_s: float) -> httpx2.AsyncClient:
    """A client for addresses that the operator chose. It carries the operator's keys, so it follows no redirects."""
    return httpx2.AsyncClient(timeout=timeout_s, verify=network.tls(), follow_redirects=False, trust_env=False)


def callers_client(
    transport: httpx2.AsyncBaseTransport, *, timeout_s: float, headers: Mapping[str, str] | None = None
) -> httpx2.AsyncClient:
    """A client for addresses that callers chose. It follows no redirects by itself, and keeps no cookies, because they
    would pass from one caller to another."""
    return httpx2.AsyncClient(
        transport=transport,
        headers=headers,
        timeout=timeout_s,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        follow_redirects=False,
        trust_env=False,
    )


class CallersHttp:
    """Sends requests to addresses that callers chose. Its owner closes it once."""

    def __init__(self, network: NetworkRules) -> None:
        self._network = network
        self._client: httpx2.AsyncClient | None = None

    async def post(self, url: str, content: bytes, headers: Mapping[str, str]) -> int:
        """Returns the answer's status. Does not read the answer, and follows no redirect.

        Raises `ForbiddenAddress` and `Unreachable`.
        """
        async with self._answer(self._request("POST", url, headers, content)) as response:
            return response.status_code

    async def get(self, url: str, *, max_bytes: int) -> Found:
        """The content of the URL, after redirects. Raises `ForbiddenAddress`, `Unreachable` and `TooLarge`."""
        try:
            async with asyncio.timeout(REQUEST_S):
                return await self._behind_redirects(url, max_bytes)
        except TimeoutError as error:
            raise Unreachable(f"no whole answer within {REQUEST_S:.0f} s") from error

    async def _behind_redirects(self, url: str, max_bytes: int) -> Found:
        # A compressed answer would grow beyond the counted bytes.
        request: httpx2.Request | None = self._request("GET", url, {"Accept-Encoding": "identity"})
        for _ in range(1 + MOST_REDIRECTS):
            async with self._answer(request) as response:
                request = response.next_request
                if request is None:
                    return await _read(response, max_bytes)
        raise Unreachable(f"more than {MOST_REDIRECTS} redirects")

    async def aclose(self) -> None:
        """Closes every connection."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    @asynccontextmanager
    async def _answer(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Response]:
        if self._client is None:
            self._client = callers_client(CheckedTransport(self._network), timeout_s=_STEP_TIMEOUT_S)
        try:
            response = await self._client.send(request, stream=True)
            try:
                yield response
            finally:
                await response.aclose()
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            raise ForbiddenAddress(_described(error)) from error
        except (httpx2.HTTPError, OSError, UnicodeError) as error:
            raise Unreachable(_described(error)) from error

    @staticmethod
    def _request(method: str, url: str, headers: Mapping[str, str], content: bytes | None = None) -> httpx2.Request:
        try:
            return httpx2.Request(method, url, headers=headers, content=content)
        except (httpx2.InvalidURL, UnicodeError) as error:
            raise ForbiddenAddress(_described(error)) from error


class CheckedTransport(httpx2.AsyncBaseTransport):
    """Resolves the host of each request, checks all of its addresses, and sends the request to one of them.

    `kept_s`: for how many seconds a connection is kept for the next request. The connection serves that request only if
    the host still has its address, and may have it. A transport that keeps connections sends to one host and no other:
    the pool identifies connections by address, and a certificate was checked for one name only.
    """

    def __init__(self, network: NetworkRules, *, tls: ssl.SSLContext | None = None, kept_s: float = 0.0) -> None:
        self._policy, self._lookups = network.policy, network.lookups
        self._is_keeping = kept_s > 0
        self._host = ""
        kept = _MOST_KEPT if self._is_keeping else 0
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=kept, keepalive_expiry=kept_s)
        self._transport = httpx2.AsyncHTTPTransport(verify=tls or network.tls(), trust_env=False, limits=limits)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        host = request.url.raw_host.decode("ascii").rstrip(".")
        self._host = self._host or host
        if self._is_keeping and host != self._host:
            raise ForbiddenAddress(f"{host} may not be asked over connections that are kept for {self._host}")
        addresses = await self._addresses(host, request.url)
        for number, address in enumerate(addresses, start=1):
            to_address = httpx2.Request(
                request.method,
                request.url.copy_with(host=address),
                headers=request.headers,
                stream=request.stream,
                # The certificate must be valid for the name, although the connection goes to the address.
                extensions={**request.extensions, "sni_hostname": host},
            )
            try:
                return await self._transport.handle_async_request(to_address)
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                if number == len(addresses):
                    raise
        raise Unreachable(f"{host} has no address")

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def _addresses(self, host: str, url: httpx2.URL) -> list[str]:
        """The addresses of a host, in the order in which to try them."""
        port = url.port or _PORTS.get(url.scheme)
        if port is None:
            raise httpx2.UnsupportedProtocol("a caller's URL is http:// or https://")
        flaw = flaw_of_port(port)
        if flaw is not None:
            raise ForbiddenAddress(f"the URL {flaw}")
        addresses = await self._lookups.addresses(host, port)
        if not all(map(self._policy.allows, addresses)):
            # The address itself would tell a caller about the operator's network.
            raise ForbiddenAddress(
                f"{host} is not at a public address; an operator can allow its network in HOLDFAST_REACHABLE_NETWORKS"
            )
        return addresses


async def _read(response: httpx2.Response, max_bytes: int) -> Found:
    if response.headers.get("content-encoding", "identity") != "identity":
        raise Unreachable("the answer is compressed, which was not asked for")
    content = bytearray()
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) > max_bytes:
            raise TooLarge(f"it has more than {max_bytes} bytes")
    media_type = str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()
    return Found(response.status_code, bytes(content), media_type)


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
