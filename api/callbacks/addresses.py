"""Where a callback may go. A tenant chooses the URL, so it must not reach what only this machine can reach.

A name is resolved once and the connection made to the very address that was checked: a name that gives a public address
to the check and a private one to the connection gains nothing.
"""

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address

NAT64 = IPv6Network("64:ff9b::/96")
"""RFC 6052: the last 32 bits are an IPv4 address that a translator would connect to."""

SIX_TO_FOUR = IPv6Network("2002::/16")
"""RFC 7526 has given up 6to4: its relays are gone. Some versions of Python still call its addresses global."""


class ForbiddenAddress(Exception):
    """The callback's host is, or resolves to, an address that callbacks may not reach."""


async def addresses_of(host: str, port: int, *, allow_private: bool) -> Sequence[str]:
    """The addresses of a host, in the order in which they should be tried.

    Raises `OSError` when the name does not resolve, and `ForbiddenAddress` when any of its addresses is not public.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    for address in addresses:
        if not allow_private and not is_public(address):
            raise ForbiddenAddress(
                f"{host} is at {address}, which is not a public address; HOLDFAST_CALLBACK_ALLOW_PRIVATE allows it"
            )
    return addresses


def is_public(text: str) -> bool:
    """Whether an address belongs to the public internet, also when it wraps an IPv4 address in one of IPv6."""
    return all(_is_public(address) for address in _with_wrapped(ip_address(text)))


def _is_public(address: Address) -> bool:
    return address.is_global and not address.is_multicast and address not in SIX_TO_FOUR


def _with_wrapped(address: Address) -> Sequence[Address]:
    if isinstance(address, IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    wrapped = [*(address.teredo or ())]
    if address in NAT64:
        wrapped.append(IPv4Address(int(address) & 0xFFFF_FFFF))
    return [address, *wrapped]
