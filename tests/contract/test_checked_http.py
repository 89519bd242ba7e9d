"""The client for callers' addresses, against servers on this machine's loopback network."""

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from shared.network.addresses import AddressPolicy, ForbiddenAddress
from shared.network.checked_http import (
    MOST_REDIRECTS,
    CallersHttp,
    Found,
    NameLookups,
    NetworkRules,
    TooLarge,
    Unreachable,
)
from tests.kit.certificates import SelfSigned
from tests.kit.plain_answers import answering, ok, redirect
from tests.kit.product.callback_receiver import CallbackReceiver
from tests.kit.wait_until import HANGS_S, wait_until

HERE = AddressPolicy(networks=(ip_network("127.0.0.1/32"),))
"""One address is the internet, every other one of this machine is what must not be reached."""

MANY_NAMES = 40
"""More than the threads that an event loop has for lookups."""


@asynccontextmanager
async def client(policy: AddressPolicy = HERE, ca_file: str = "") -> AsyncGenerator[CallersHttp]:
    http = CallersHttp(NetworkRules(policy, ca_file))
    try:
        yield http
    finally:
        await http.aclose()


def redirecting(url: str) -> AbstractAsyncContextManager[tuple[str, list[bytes]]]:
    """A server that sends everybody there, with a cookie."""
    return answering(redirect(url, "set-cookie: a=b\r\n"))


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f000001", "0", "0x0", "127.0.0.1."])
async def test_a_name_is_checked_by_what_it_resolves_to(host: str) -> None:
    async with client(AddressPolicy()) as http, CallbackReceiver() as receiver:
        with pytest.raises(ForbiddenAddress, match=r"is not at a public address"):
            await http.post(f"http://{host}:{receiver.port}/", b"", {})
    assert receiver.received == []


async def test_a_refusal_told_callers_the_private_address_of_an_internal_name() -> None:
    async with client(AddressPolicy()) as http:
        with pytest.raises(ForbiddenAddress) as caught:
            await http.get("http://localhost:8000/", max_bytes=1)
    assert "127." not in str(caught.value)
    assert "::1" not in str(caught.value)


async def test_every_redirect_is_checked() -> None:
    inside = answering(ok(), host="127.0.0.2")
    async with client() as http, inside as (inner, asked), answering(redirect(inner)) as (outer, _):
        with pytest.raises(ForbiddenAddress):
            await http.get(outer, max_bytes=100)
    assert asked == []


@pytest.mark.parametrize("target", ["ftp://127.0.0.1/x", "file:///etc/passwd", "http://127.0.0.1:22/", "gopher://a:1"])
async def test_a_redirect_to_what_is_no_web_server_is_refused(target: str) -> None:
    async with answering(redirect(target)) as (url, _), client() as http:
        with pytest.raises(ForbiddenAddress):
            await http.get(url, max_bytes=100)


async def test_a_redirect_is_followed_and_the_name_is_said_to_the_server() -> None:
    async with client() as http, answering(ok()) as (there, asked), redirecting(there) as (url, _):
        assert await http.get(url, max_bytes=100) == Found(200, b"here", "image/png")
    assert f"Host: {there.removeprefix('http://')}".encode() in asked[0]
    assert b"ookie" not in asked[0]


async def test_a_circle_of_redirects_ends() -> None:
    async with answering(b"") as (nowhere, _), answering(redirect("/again")) as (url, asked), client() as http:
        with pytest.raises(Unreachable, match="redirects"):
            await http.get(url, max_bytes=100)
        with pytest.raises(Unreachable):
            await http.get(nowhere, max_bytes=100)
    assert len(asked) == MOST_REDIRECTS + 1


async def test_a_name_that_changes_its_address_gains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    def rebinding(host: str, port: int, **_: Any) -> list[Any]:
        looks.append(host)
        address = "127.0.0.1" if len(looks) == 1 else "127.0.0.2"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    async with answering(ok()) as (url, asked), client() as http:
        monkeypatch.setattr(socket, "getaddrinfo", rebinding)
        found = await http.get(url.replace("127.0.0.1", "rebinds.example"), max_bytes=100)
        assert found.status_code == 200
        assert (looks, len(asked)) == (["rebinds.example"], 1)
        with pytest.raises(ForbiddenAddress):
            await http.get(url.replace("127.0.0.1", "rebinds.example"), max_bytes=100)
    assert len(asked) == 1


async def test_one_private_address_among_public_ones_is_enough_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(_host: str, port: int, **_: Any) -> list[Any]:
        return [(2, 1, 6, "", (address, port)) for address in ("127.0.0.1", "127.0.0.2")]

    async with answering(ok()) as (url, asked), client() as http:
        monkeypatch.setattr(socket, "getaddrinfo", both)
        with pytest.raises(ForbiddenAddress):
            await http.get(url.replace("127.0.0.1", "two.example"), max_bytes=100)
    assert asked == []


async def test_an_endless_or_compressed_answer_is_not_taken() -> None:
    answers = [ok(b"x" * 101), ok(b"", "content-encoding: gzip"), ok(b"x" * 100)]
    async with answering(*answers) as (url, asked), client() as http:
        with pytest.raises(TooLarge):
            await http.get(url, max_bytes=100)
        with pytest.raises(Unreachable, match="compressed"):
            await http.get(url, max_bytes=100)
        assert len((await http.get(url, max_bytes=100)).content) == 100
    assert b"Accept-Encoding: identity" in asked[0]


NO_ANSWERS = [
    b"",
    b"\0\xff",
    b"HTTP/1.1 two hundred\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx",
    b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000,
    redirect("http://\xff/"),
]


@pytest.mark.parametrize("answer", NO_ANSWERS)
async def test_what_is_no_answer_is_said_so(answer: bytes) -> None:  # fmt: skip
    async with answering(answer) as (url, _), client() as http:
        with pytest.raises((Unreachable, ForbiddenAddress)):
            await http.get(url, max_bytes=100)


async def test_proxies_and_logins_of_the_operator_stay_with_the_operator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login operator password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    async with answering(ok()) as (url, asked), answering(ok()) as (proxy, proxied), client() as http:
        monkeypatch.setenv("HTTP_PROXY", proxy)
        monkeypatch.setenv("ALL_PROXY", proxy)
        await http.get(url, max_bytes=100)
    assert b"uthorization" not in asked[0]
    assert proxied == []


async def test_a_certificate_of_an_internal_authority_could_not_be_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SelfSigned.of(tmp_path, "127.0.0.1")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.certificate, made.key)
    headers: Mapping[str, str] = {}
    async with CallbackReceiver(tls=server) as receiver:
        async with client() as http:
            with pytest.raises(Unreachable, match="certificate verify failed"):
                await http.post(receiver.url, b"{}", headers)
        async with client(ca_file=made.certificate) as http:
            assert await http.post(receiver.url, b"{}", headers) == 200
        monkeypatch.setenv("SSL_CERT_FILE", made.certificate)
        async with client() as http:
            assert await http.post(receiver.url, b"{}", headers) == 200
    assert len(receiver.received) == 2


async def test_slow_names_of_callers_delayed_every_lookup_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two names of one project, whose name server answers nothing, kept all model calls of all projects waiting."""
    answers, waiting, real = threading.Event(), list[str](), socket.getaddrinfo

    def slow(host: str, *more: Any, **named: Any) -> Any:
        if host.endswith(".slow.example"):
            waiting.append(host)
            answers.wait(HANGS_S)
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return real(host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    async with client() as http, answering(ok()) as (url, _):
        async with asyncio.TaskGroup() as group:
            asked = [
                group.create_task(_failure(http, f"http://{number}.slow.example:8080/")) for number in range(MANY_NAMES)
            ]
            await wait_until(lambda: len(waiting) == MANY_NAMES, description="the lookups to be under way")
            loop = asyncio.get_running_loop()
            assert await loop.getaddrinfo("127.0.0.1", 80), "the operator's own services are found"
            assert await asyncio.to_thread(str, 1) == "1", "what needs a thread gets one"
            assert (await http.get(url, max_bytes=100)).status_code == 200, "other callers are served"
            answers.set()
        assert {type(one.result()) for one in asked} == {Unreachable}


async def test_lookups_that_nobody_waits_for_any_more_keep_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a caller that gives up at once could have as many threads as it likes."""
    answers, under_way = threading.Event(), list[str]()

    def slow(host: str, _port: int, **_more: Any) -> Any:
        under_way.append(host)
        answers.wait(HANGS_S)
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    lookups = NameLookups(at_once=2)
    asked = [asyncio.ensure_future(lookups.addresses(f"{number}.example", 80)) for number in range(4)]
    await wait_until(lambda: len(under_way) == 2, description="two lookups to be under way")
    for one in asked[:3]:
        one.cancel()
    await asyncio.wait(asked[:3])
    assert (len(under_way), asked[3].done()) == (2, False)
    answers.set()
    with pytest.raises(OSError, match="no such name"):
        await asked[3]
    assert under_way[2:] == ["3.example"]


async def test_each_lookup_that_got_no_thread_kept_a_place_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = NameLookups(at_once=1)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="can't start new thread"):
            await lookups.addresses("127.0.0.1", 80)
    async with asyncio.timeout(HANGS_S):
        assert await lookups.addresses("127.0.0.1", 80) == ["127.0.0.1"]


async def _failure(http: CallersHttp, url: str) -> Exception | None:
    try:
        await http.get(url, max_bytes=100)
    except Unreachable as error:
        return error
    return None
