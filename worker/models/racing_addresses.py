"""A socket that is connected to a host of which some addresses may lead nowhere, after RFC 8305 ("Happy Eyeballs")."""

import asyncio
import socket
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

NEXT_AFTER_S = 0.25
"""Seconds that an address gets before the next one is tried beside it, as the RFC has it."""


class _Address(NamedTuple):
    family: int
    place: Any
    """What `connect` wants, which differs by family."""


async def connected_socket(host: str, port: int) -> socket.socket:
    """A socket at the first address that answers. Raises `OSError` when none does."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    first: asyncio.Future[socket.socket] = loop.create_future()
    failures: list[OSError] = []
    try:
        async with asyncio.TaskGroup() as group:
            await _race(group, _alternating([_Address(each[0], each[4]) for each in found]), first, failures)
    except BaseException:
        if first.done():
            first.result().close()
        raise
    if first.done():
        return first.result()
    raise OSError("; ".join(map(str, failures)) or f"{host} has no address")


async def _race(
    group: asyncio.TaskGroup,
    addresses: Sequence[_Address],
    first: "asyncio.Future[socket.socket]",
    failures: list[OSError],
) -> None:
    """Returns when one address has answered, or none will."""
    attempts: list[asyncio.Task[None]] = []
    for address in addresses:
        attempts.append(group.create_task(_attempt(address, first, failures), name="connect to a server"))
        await asyncio.wait([first, attempts[-1]], timeout=NEXT_AFTER_S, return_when=asyncio.FIRST_COMPLETED)
        if first.done():
            break
    while not first.done() and (trying := [attempt for attempt in attempts if not attempt.done()]):
        await asyncio.wait([first, *trying], return_when=asyncio.FIRST_COMPLETED)
    for attempt in attempts:
        attempt.cancel()


async def _attempt(address: _Address, first: "asyncio.Future[socket.socket]", failures: list[OSError]) -> None:
    trying = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        trying.setblocking(False)
        await asyncio.get_running_loop().sock_connect(trying, address.place)
        if not first.done():
            first.set_result(trying)
            return
    except OSError as error:
        failures.append(error)
    except BaseException:
        trying.close()
        raise
    trying.close()


def _alternating(addresses: Sequence[_Address]) -> list[_Address]:
    """The addresses, of both families in turn: mostly, it is a family as a whole that leads nowhere."""
    families = {
        address.family: [other for other in addresses if other.family == address.family] for address in addresses
    }
    turns = zip_longest(*families.values())
    return [address for turn in turns for address in turn if address is not None]
