"""Connections to callers' addresses that are kept for the next request: they weaken nothing that is checked."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from ipaddress import ip_network
from typing import Any

import httpx2
import pytest

from shared.network.addresses import AddressPolicy, ForbiddenAddress
from shared.network.checked_http import CheckedTransport, NetworkRules
from tests.kit.plain_answers import Served, says, says_hello, serving
from tests.kit.wait_until import wait_until

HERE = NetworkRules(AddressPolicy(networks=(ip_network("127.0.0.1/32"), ip_network("127.0.0.3/32"))))
"""Two addresses are the internet, every other one of this machine is what must not be reached."""


@asynccontextmanager
async def client(kept_s: float = 60) -> AsyncGenerator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(transport=CheckedTransport(HERE, kept_s=kept_s), timeout=10) as http:
        yield http


class Names:
    """The one resolver of these tests: every name has this address."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, address: str = "127.0.0.1") -> None:
        self.address = address
        monkeypatch.setattr(socket, "getaddrinfo", self._resolve)

    def _resolve(self, _host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (self.address, port))]


def named(served: Served, name: str = "kept.example") -> str:
    return f"http://{name}:{served.port}/"


async def test_a_connection_serves_the_requests_that_follow() -> None:
    async with serving(says_hello) as served:
        async with client() as http:
            for _ in range(3):
                assert (await http.get(served.url)).text == "hello"
        assert len(set(served.asked_over)) == 1
        await wait_until(lambda: len(served.left) == 1, description="the connection to be closed with its client")


async def test_none_is_kept_unless_that_is_asked_for() -> None:
    async with serving(says_hello) as served, client(kept_s=0) as http:
        for _ in range(3):
            await http.get(served.url)
        assert len(set(served.asked_over)) == 3


async def test_a_kept_connection_is_not_used_when_its_time_is_over() -> None:
    async with serving(says_hello) as served, client(kept_s=0.01) as http:
        await http.get(served.url)

        async def is_new() -> bool:
            await http.get(served.url)
            return len(set(served.asked_over)) > 1

        await wait_until(is_new, description="a new connection", every=0.02)


async def test_a_connection_that_the_server_has_closed_costs_no_request() -> None:
    async def say_goodbye(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says(b"hello"))
        await writer.drain()
        writer.close()

    async with serving(say_goodbye) as served, client() as http:
        await http.get(served.url)
        await wait_until(lambda: len(served.left) == 1, description="the server to hang up")
        assert (await http.get(served.url)).text == "hello"
        assert len(set(served.asked_over)) == 2


async def test_a_name_that_leads_inside_now_is_refused_although_a_connection_to_it_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(says_hello) as served, client() as http:
        names = Names(monkeypatch)
        await http.get(named(served))
        names.address = "127.0.0.2"
        with pytest.raises(ForbiddenAddress):
            await http.get(named(served))
    assert len(served.asked_over) == 1


async def test_a_name_that_has_moved_is_asked_at_its_new_address(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(says_hello) as served, client() as http:
        names = Names(monkeypatch)
        await http.get(named(served))
        names.address = "127.0.0.3"
        with pytest.raises(httpx2.ConnectError):
            await http.get(named(served))
    assert len(served.asked_over) == 1


async def test_another_name_at_the_same_address_gets_no_kept_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate of a kept connection was checked for the first name."""
    async with serving(says_hello) as served, client() as http:
        Names(monkeypatch)
        await http.get(named(served))
        with pytest.raises(ForbiddenAddress, match=r"kept for kept\.example"):
            await http.get(named(served, "other.example"))
    assert len(served.asked_over) == 1
