"""The proxy of a call, asked by a client without walls: what it passes on and refuses, and what it leaves behind."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from shared.network.addresses import AllowedHosts
from shared.network.checked_http import NetworkRules
from tests.kit.stream_server import stream_server
from tests.kit.wait_until import wait_until
from worker.proxy.call_proxy import CONNECTIONS, proxy_of_call
from worker.proxy.exchange import EgressDialer, Pace

LOOPBACK = "127.0.0.0/8"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


@dataclass
class Server:
    """Somebody on loopback. `heard` is what each connection has said; it answers each head with `answer`."""

    answer: bytes = ANSWER
    heard: list[bytearray] = field(default_factory=list[bytearray])
    open: int = 0
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = bytearray()
        self.heard.append(said)
        self.open += 1
        try:
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(1 << 16):
                    said += data
                    if said.endswith(b"\r\n\r\n"):
                        writer.write(self.answer)
        finally:
            self.open -= 1
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    async with stream_server(made.serve) as made.port:
        yield made


@asynccontextmanager
async def proxy_for(
    allowed: str, networks: str = LOOPBACK, key: str = "", /, **names: list[str]
) -> AsyncGenerator[int]:
    """The port of a proxy. `names` are the addresses of hosts, by the first label of their names; `key` is the call's
    idempotency key."""

    async def resolve(host: str, _: int) -> list[str]:
        return names.get(host.partition(".")[0], [])

    reach = EgressDialer(AllowedHosts.parse(allowed), NetworkRules.of(networks, "").policy, resolve)
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    async with proxy_of_call(reach, key) as proxy:
        proxy.listen(listening)
        yield port


async def asked(port: int, request: bytes) -> bytes:
    """Everything that the proxy says to a request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    with contextlib.suppress(ConnectionError):
        answer = await reader.read()
        writer.close()
        return answer
    return b""


async def refusal(port: int, request: bytes) -> str:
    """The status line."""
    return (await asked(port, request)).partition(b"\r\n")[0].decode()


async def test_an_absolute_request_is_written_anew_for_the_host_of_its_target(server: Server) -> None:
    """A proxy that passes `Host` on lets a tool speak to a name that was never checked."""
    request = (
        f"POST http://API.example.com.:{server.port}/a?b=c HTTP/1.1\r\nHost: internal.example\r\nX-One: 1\r\n"
        "Proxy-Authorization: Basic eDp5\r\nConnection: X-Hop\r\nX-Hop: 2\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked"
        "\r\n\r\n4\r\n\r\n\r\n\r\n0\r\n\r\n"
    )
    async with proxy_for(f"api.example.com:{server.port}", api=["127.0.0.1"]) as port:
        answer = await asked(port, request.encode())
    assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"hi")
    [heard] = server.heard
    head, _, body = bytes(heard).partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    assert lines[0] == "post /a?b=c http/1.1"
    assert sorted(lines[1:]) == sorted(
        [f"host: api.example.com:{server.port}", "x-one: 1", "transfer-encoding: chunked", "connection: close"]
    )
    assert body.startswith(b"4\r\n\r\n\r\n\r\n")


async def test_a_second_request_behind_the_first_reaches_nobody(server: Server) -> None:
    first = f"GET http://api.example.com:{server.port}/ HTTP/1.1\r\nHost: x\r\n\r\n"
    async with proxy_for(f"api.example.com:{server.port}", api=["127.0.0.1"]) as port:
        answer = await asked(port, (first + "GET /internal HTTP/1.1\r\nHost: internal.example\r\n\r\n").encode())
    assert answer.count(b"HTTP/1.1") == 1
    assert b"internal" not in b"".join(server.heard)


@pytest.mark.parametrize(
    "framing",
    [
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: +5",
        "Content-Length: 5\r\nTransfer-Encoding: xchunked",
        "Transfer-Encoding: chunked, identity",
        "Bad Header: 1",
        "X: 1\r\n folded\x00",
    ],
)
async def test_a_request_that_two_programs_could_read_differently_is_refused(server: Server, framing: str) -> None:
    request = f"POST http://api.example.com:{server.port}/ HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n0\r\n\r\n"
    async with proxy_for(f"api.example.com:{server.port}", api=["127.0.0.1"]) as port:
        said = await refusal(port, request.encode())
    assert said.startswith(("HTTP/1.1 400", "HTTP/1.1 501"))
    assert not server.heard


async def test_a_tunnel_carries_bytes_both_ways_and_ends_with_either_side(server: Server) -> None:
    async with proxy_for(f"*.example.org:{server.port}", a=["127.0.0.1"]) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"CONNECT a.example.org:{server.port} HTTP/1.1\r\nHost: x\r\n\r\nearly, ".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.write(b"late\r\n\r\n")
        assert await reader.readexactly(len(ANSWER)) == ANSWER
        writer.close()
        await wait_until(lambda: server.open == 0, description="the server's connection to end")
    assert server.heard == [b"early, late\r\n\r\n"]


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("other.example.com:443", 403),
        ("api.example.com:22", 403),
        ("127.0.0.1:{port}", 403),
        ("2130706433:{port}", 403),
        ("0x7f000001:{port}", 403),
        ("0177.0.0.1:{port}", 403),
        ("[::ffff:127.0.0.1]:{port}", 403),
        ("[::1]:{port}", 403),
        ("api.example.com@127.0.0.1:{port}", 400),
        ("127.0.0.1:{port}@api.example.com:{port}", 400),
        ("api.example.com:{port}/", 400),
        ("api.example.com", 400),
        ("api.example.com:99999", 400),
        ("http://api.example.com:{port}/", 400),
        ("xn--ap-iya.example.com:{port}", 403),
        ("inside.example.com:{port}", 403),
        ("metadata.example.com:{port}", 403),
        ("nowhere.example.com:{port}", 502),
    ],
)
async def test_connect_leads_only_to_what_is_allowed(server: Server, target: str, status: int) -> None:
    """A listed name that resolves to a private address, next to a public one too, is refused as well."""
    listed = ["api", "inside", "metadata", "nowhere"]
    allowed = ",".join(f"{name}.example.com:{server.port}" for name in listed)
    addresses = {"inside": ["192.0.2.1", "127.0.0.1"], "metadata": ["169.254.169.254"], "api": ["127.0.0.1"]}
    async with proxy_for(allowed, "", "", **addresses) as port:
        said = await refusal(port, f"CONNECT {target.format(port=server.port)} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert said.startswith(f"HTTP/1.1 {status} ")
    assert not server.heard


@pytest.mark.parametrize(
    ("request_line", "said"),
    [
        ("GET / HTTP/1.1\r\nHost: api.example.com", "400 this is a proxy"),
        ("GET https://api.example.com/ HTTP/1.1\r\nHost: x", "400 this proxy takes https only by CONNECT"),
        (
            "GET http://evil.example/ HTTP/1.1\r\nHost: api.example.com",
            "403 evil.example port 80 is not among",
        ),
        ("GET http://api.example.com@evil.example/ HTTP/1.1\r\nHost: x", "400 the destination is not host:port"),
        ("GET http://evil.example\\.api.example.com/ HTTP/1.1\r\nHost: x", "400 the destination is not host:port"),
        ("GET ftp://api.example.com/ HTTP/1.1\r\nHost: x", "400 this is a proxy"),
        ("CONNECT api.example.com:443 HTTP/1.1\r\nHost: x\r\nContent-Length: 4", "400 CONNECT has no body"),
        ("X" * 20_000, "400 the request is not HTTP"),
    ],
)
async def test_what_is_refused_is_told_in_the_status_line(request_line: str, said: str) -> None:
    async with proxy_for("api.example.com", api=["127.0.0.1"]) as port:
        assert (await refusal(port, f"{request_line}\r\n\r\n".encode())).startswith(f"HTTP/1.1 {said}")


@pytest.mark.parametrize("answer", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", b""])
async def test_a_server_that_does_not_answer_in_http_is_named(server: Server, answer: bytes) -> None:
    server.answer = answer or b"HTTP/1.1 2\r\n\r\n"
    request = f"GET http://api.example.com:{server.port}/ HTTP/1.1\r\nHost: x\r\n\r\n"
    async with proxy_for(f"api.example.com:{server.port}", api=["127.0.0.1"]) as port:
        assert (await refusal(port, request.encode())).startswith("HTTP/1.1 502 the server")


async def opened(port: int, count: int, said: bytes) -> list[asyncio.StreamWriter]:
    made: list[asyncio.StreamWriter] = []
    for _ in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        made.append(writer)
    return made


async def test_connections_that_a_call_leaves_open_end_with_the_call(server: Server) -> None:
    tunnel = f"CONNECT api.example.com:{server.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    async with proxy_for(f"api.example.com:{server.port}", api=["127.0.0.1"]) as port:
        held = await opened(port, 3, tunnel)
        held += await opened(port, 3, b"GET http://api.exa")  # heads that never end
        await wait_until(lambda: server.open == 3, description="the tunnels to stand")
        before = asyncio.all_tasks()
    await wait_until(lambda: server.open == 0, description="the server's connections to end")
    assert not any("tool" in task.get_name() for task in asyncio.all_tasks() & before if not task.done())
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection("127.0.0.1", port)
    for writer in held:
        writer.close()


async def test_more_connections_than_a_call_may_have_wait_outside(server: Server) -> None:
    tunnel = f"CONNECT api.example.com:{server.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    async with proxy_for(f"api.example.com:{server.port}", api=["127.0.0.1"]) as port:
        held = await opened(port, CONNECTIONS + 4, tunnel)
        await wait_until(lambda: server.open == CONNECTIONS, description="all places to be taken")
        held.pop(0).close()
        await wait_until(lambda: len(server.heard) == CONNECTIONS + 1, description="the next one to be served")
        assert server.open <= CONNECTIONS
        for writer in held:
            writer.close()


async def test_a_name_is_resolved_once_and_connected_to_where_it_was_checked(server: Server) -> None:
    """A resolver that gives a public address to the check and a private one to the connection gains nothing."""
    answers = iter([["127.0.0.1"], ["169.254.169.254"]])
    asked_for: list[str] = []

    async def resolve(host: str, _: int) -> list[str]:
        asked_for.append(host)
        return next(answers)

    reach = EgressDialer(
        AllowedHosts.parse(f"api.example.com:{server.port}"), NetworkRules.of(LOOPBACK, "").policy, resolve
    )
    async with proxy_of_call(reach) as proxy:
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        proxy.listen(listening)
        tunnel = f"CONNECT api.example.com:{server.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        held = await opened(port, 1, tunnel)
        await wait_until(lambda: server.open == 1, description="the connection")
        assert asked_for == ["api.example.com"]
        assert (await refusal(port, tunnel)).startswith("HTTP/1.1 403 api.example.com is not at a public address")
        held[0].close()


def test_a_pace_lets_a_burst_pass_and_then_holds_to_its_rate() -> None:
    pace = Pace(per_s=10, burst=5)
    now = 100.0
    assert [pace.delay(1, now) for _ in range(7)] == pytest.approx([0, 0, 0, 0, 0, 0.1, 0.2])
    assert pace.delay(1, now + 60) == 0
    assert pace.delay(9, now + 60) == pytest.approx(0.5)


async def test_requests_that_are_not_idempotent_get_keys_of_the_call(server: Server) -> None:
    """The same when the call is made again, and one for each request: a service answers two requests with one key as if
    they were one."""
    sent = ("POST /pay", "POST /pay", "PATCH /pay", "GET /pay", "PUT /pay", "POST /refund")

    async def keys(sent: Sequence[str], key: str = "hf-1", header: str = "") -> list[str]:
        server.heard.clear()
        async with proxy_for(f"api.example.com:{server.port}", LOOPBACK, key, api=["127.0.0.1"]) as port:
            for one in sent:
                method, path = one.split()
                url = f"http://api.example.com:{server.port}{path}"
                await asked(port, f"{method} {url} HTTP/1.1\r\nHost: x\r\n{header}Content-Length: 0\r\n\r\n".encode())
        heads = [bytes(one).decode().partition("\r\n\r\n")[0].split("\r\n") for one in server.heard]
        found = [[line for line in head if line.lower().startswith("idempotency-key:")] for head in heads]
        return [lines[0].partition(": ")[2] if lines else "" for lines in found]

    first = await keys(sent)
    assert [bool(one) for one in first] == [True, True, True, False, False, True]
    assert all(one.startswith("hf-1-") for one in first if one)
    assert len(set(first)) == 5, "four keys, and none"
    assert first[1] == f"{first[0]}-2"
    assert await keys(sent) == first
    assert await keys(("POST /refund", "POST /pay")) == [first[5], first[0]], "whichever thread of the tool is first"
    assert await keys(sent[:1], key="hf-2") != first[:1]
    assert await keys(sent[:1], header="idempotency-key: mine\r\n") == ["mine"]
    assert await keys(sent[:1], key="") == [""]
