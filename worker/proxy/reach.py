"""Connects to what a call asks for, if its operator allows that: the name by a list, the address by the usual policy.

A name is resolved once, here, and the connection is made to the very addresses that were checked: a name that answers
with another address the next time gains nothing.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from shared.network.addresses import AddressPolicy
from shared.network.allowed_hosts import AllowedHosts
from worker.proxy.destination import Destination, Refused

SETTING = "HOLDFAST_TOOL_NETWORK"
RESOLVE_S = 10.0
CONNECT_S = 10.0
"""For all addresses of a host together."""
LOOKUPS_AT_ONCE = 4
"""On threads of their own: names that resolve slowly hold up nothing but tools."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host. Raises `OSError` when it has none."""


class Reach:
    """Where tools may connect to. Closed once, by whoever made it."""

    def __init__(self, allowed: AllowedHosts, policy: AddressPolicy, resolve: Resolve | None = None) -> None:
        """`resolve`: in the place of the system's resolver."""
        self._allowed = allowed
        self._policy = policy
        self._resolve = resolve or self._ask_system
        self._threads = ThreadPoolExecutor(LOOKUPS_AT_ONCE, thread_name_prefix="names-for-tools")

    def check(self, destination: Destination) -> None:
        """Raises `Refused` when the operator's list does not have it. Resolves nothing."""
        if not self._allowed.allows(*destination):
            host, port = destination
            raise Refused(403, f"{host} port {port} is not among the hosts that the operator allows ({SETTING})")

    async def connect(self, destination: Destination, *, buffer_bytes: int) -> Streams:
        """Raises `Refused`."""
        self.check(destination)
        addresses = await self._addresses(destination)
        if not all(map(self._policy.allows, addresses)):
            # Which address it is would tell a tool about the operator's network.
            raise Refused(
                403,
                f"{destination.host} is not at a public address; an operator can allow its network in "
                "HOLDFAST_REACHABLE_NETWORKS",
            )
        try:
            async with asyncio.timeout(CONNECT_S):
                return await _connected(addresses, destination.port, buffer_bytes)
        except OSError as error:
            raise Refused(502, f"{destination.host} cannot be reached on port {destination.port}") from error

    def close(self) -> None:
        """Waits for no lookup."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _addresses(self, destination: Destination) -> Sequence[str]:
        try:
            async with asyncio.timeout(RESOLVE_S):
                addresses = await self._resolve(*destination)
        except (OSError, UnicodeError, TimeoutError):
            addresses = ()
        if not addresses:
            raise Refused(502, f"the name {destination.host} was not resolved")
        return addresses

    async def _ask_system(self, host: str, port: int) -> Sequence[str]:
        def look_up() -> Sequence[str]:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return list(dict.fromkeys(str(entry[4][0]) for entry in found))

        return await asyncio.get_running_loop().run_in_executor(self._threads, look_up)


async def _connected(addresses: Sequence[str], port: int, buffer_bytes: int) -> Streams:
    """To the first address that answers. Raises `OSError`."""
    for number, address in enumerate(addresses, start=1):
        try:
            return await asyncio.open_connection(address, port, limit=buffer_bytes)
        except OSError:
            if number == len(addresses):
                raise
    raise OSError("no address")
