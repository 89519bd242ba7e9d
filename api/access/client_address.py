"""Where a request comes from: the connection's address, or what a proxy that the operator trusts says of it."""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from starlette.types import Scope

Network = IPv4Network | IPv6Network


def networks_of(text: str) -> list[Network]:
    """Reads a comma list of addresses and CIDRs. Raises `ValueError`."""
    return [ip_network(part, strict=False) for part in text.replace(",", " ").split()]


def client_address(scope: Scope, trusted: Sequence[Network]) -> str:
    """The address of whoever sends the request.

    `X-Forwarded-For` is read from its end, where the nearest proxy wrote: the first address that is no trusted proxy's
    is the client's. What stands before it, anybody may have written.
    """
    client = scope.get("client")
    address: str = client[0] if client else ""
    if not trusted or not _is_among(address, trusted):
        return address
    said = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
    for part in reversed(",".join(said).split(",")):
        forwarded = part.strip()
        if not _is_address(forwarded):
            return address
        address = forwarded
        if not _is_among(address, trusted):
            return address
    return address


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _is_among(text: str, networks: Sequence[Network]) -> bool:
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks if network.version == address.version)
