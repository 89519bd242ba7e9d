"""The addresses of the public internet, and the rules for callers' URLs.

A caller chooses the address of a callback or an image, so it must not reach services that only this machine can reach.
The tables are copied from IANA's registries, because Python's versions differ in the addresses that they call global.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Literal, Self
from urllib.parse import urlsplit

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

Kind = Literal["public", "private", "special"]
"""`private`: this machine and an operator's own networks. `special`: addresses that are never allowed, above all a
cloud's metadata, even if private addresses are allowed."""

# https://www.iana.org/assignments/iana-ipv4-special-registry, https://www.iana.org/assignments/multicast-addresses
_IPV4: Mapping[str, Kind] = {
    "0.0.0.0/0": "public",
    "0.0.0.0/8": "special",  # this network, RFC 791: connecting to 0.0.0.0 leads to this machine
    "10.0.0.0/8": "private",  # RFC 1918
    "100.64.0.0/10": "private",  # shared between a carrier and its customers, RFC 6598
    "127.0.0.0/8": "private",  # loopback, RFC 1122
    "169.254.0.0/16": "special",  # link-local, RFC 3927, with the metadata of most clouds
    "172.16.0.0/12": "private",  # RFC 1918
    "192.0.0.0/24": "special",  # IETF protocol assignments, RFC 6890, with Oracle's 192.0.0.192
    "192.0.2.0/24": "special",  # documentation, RFC 5737
    "192.31.196.0/24": "special",  # AS112-v4, RFC 7535
    "192.52.193.0/24": "special",  # AMT, RFC 7450
    "192.88.99.0/24": "special",  # relays of 6to4, RFC 7526
    "192.168.0.0/16": "private",  # RFC 1918
    "192.175.48.0/24": "special",  # AS112, RFC 7534
    "198.18.0.0/15": "special",  # benchmarks, RFC 2544
    "198.51.100.0/24": "special",  # documentation, RFC 5737
    "203.0.113.0/24": "special",  # documentation, RFC 5737
    "224.0.0.0/4": "special",  # multicast, RFC 5771
    "240.0.0.0/4": "special",  # reserved, RFC 1112, with the broadcast address
    # Services for the machines of one cloud, inside public or private networks.
    "100.100.100.200/32": "special",  # Alibaba's metadata
    "168.63.129.16/32": "special",  # Azure's wire server
}

# https://www.iana.org/assignments/iana-ipv6-special-registry; all allocated unicast addresses are in 2000::/3, RFC 4291
_IPV6: Mapping[str, Kind] = {
    "::/0": "special",  # includes ::/96 (IPv4-compatible), 64:ff9b:1::/48 (RFC 8215), fe80::/10, fec0::/10, ff00::/8
    "2000::/3": "public",
    "::1/128": "private",  # loopback, RFC 4291
    "fc00::/7": "private",  # unique local, RFC 4193
    "2001::/23": "special",  # IETF protocol assignments, RFC 2928, with Teredo (RFC 4380), ORCHID and benchmarks
    "2001:db8::/32": "special",  # documentation, RFC 3849
    "2002::/16": "special",  # 6to4, deprecated by RFC 7526
    "2620:4f:8000::/48": "special",  # AS112, RFC 7534
    "3fff::/20": "special",  # documentation, RFC 9637
    # Metadata of clouds, inside private networks.
    "fd00:ec2::/32": "special",  # Amazon
    "fd20:ce::/32": "special",  # Google
    "fd00:42::42/128": "special",  # Scaleway
}

_NAT64 = IPv6Network("64:ff9b::/96")
"""RFC 6052: a translator connects to the IPv4 address in the last 32 bits."""

_ISATAP = (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe")
"""RFC 5214: with these bytes before its last 32 bits, an IPv6 address is a tunnel to the IPv4 address in them."""

_TABLE: Mapping[Network, Kind] = {ip_network(text): kind for text, kind in (*_IPV4.items(), *_IPV6.items())}
_ROWS = sorted(_TABLE.items(), key=lambda row: row[0].prefixlen, reverse=True)
"""The narrowest first: if several networks contain an address, the narrowest decides."""

WEB_PORTS = (80, 443)
"""The only ports below 1024 that a caller's URL may name. The others belong to known services of other kinds."""

OTHER_SERVICES = frozenset(
    # Ports that browsers block, https://fetch.spec.whatwg.org/#port-blocking
    {1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080}
    # Databases, which would take a request for commands, or never receive callbacks: ours, and similar ones
    | {1433, 1521, 3306, 5432, 6379, 6432, 9042, 11211, 27017}
)


class ForbiddenAddress(Exception):
    """A caller's URL leads to an address that callers may not use."""


@dataclass(frozen=True)
class AddressPolicy:
    """Addresses that callers' URLs may use besides the public internet."""

    allow_private: bool = False
    networks: Sequence[Network] = ()
    """The operator's exceptions, which override the tables."""

    def allows(self, text: str) -> bool:
        """Whether a caller may make this process connect to the address."""
        address = _plain(text)
        if any(address in network for network in self.networks):
            return True
        kind = _kind_of(address)
        return kind == "public" or (self.allow_private and kind == "private")


def flaw_of_url(url: str) -> str | None:
    """Why a caller's URL is invalid, judged by its text alone. None: it may be valid."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "is not a valid URL"
    if parts.scheme not in ("http", "https") or not host:
        return "must be an http:// or https:// URL with a host"
    if port == 0 or any(character.isspace() or not character.isprintable() for character in url):
        return "is not a valid URL"
    return None if port is None else flaw_of_port(port)


def flaw_of_port(port: int) -> str | None:
    """Why a caller's URL must not name the port. None: it may."""
    if port in OTHER_SERVICES or (port < 1024 and port not in WEB_PORTS):
        return f"names port {port}, which is not one of a web server: use 80, 443 or one above 1023"
    return None


def _plain(text: str) -> Address:
    """The address without its zone. An IPv4 address that is mapped into IPv6 becomes plain, because sockets connect to
    that."""
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _kind_of(address: Address) -> Kind:
    if address in _NAT64 or address.packed[8:12] in _ISATAP:
        wrapped = _kind_of(IPv4Address(address.packed[12:]))
        around = "public" if address in _NAT64 else _kind_in_table(address)
        return "public" if wrapped == around == "public" else "special"
    return _kind_in_table(address)


def _kind_in_table(address: Address) -> Kind:
    return next(kind for network, kind in _ROWS if address in network)


# The hosts to which tools with network access may connect: the operator's list, and the form in which a tool may write
# one of them. Names are compared as text and not resolved here. So a host must be in its canonical form: the compared
# name is the one that is resolved later.


LONGEST_NAME = 253
"""RFC 1035, without the final dot."""

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""Some resolvers treat a name whose last label matches as an IPv4 address: 127.1, 2130706433, 0x7f.1, 0177.0.0.1."""
_ENTRY = re.compile(r"(?P<host>\[[^\[\]]*\]|[^\[\]:]*)(:(?P<port>[0-9]{1,5}))?")
_ANY_BELOW = "*."


@dataclass(frozen=True)
class AllowedHosts:
    """Names, addresses, and `*.` with a name for every name below it; each with its ports."""

    entries: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses a comma list of `host` or `host:port`; the default ports are 80 and 443. Raises `ValueError`, which
        names the entry and the correct form."""
        return cls(tuple(map(_entry, text.replace(",", " ").split())))

    def __bool__(self) -> bool:
        return bool(self.entries)

    def allows(self, host: str, port: int) -> bool:
        """`host` in the form that `plain_host` returns."""
        return any(port in ports and matches(pattern, host) for pattern, ports in self.entries)

    def __str__(self) -> str:
        return ", ".join(_written(self.entries))


def matches(pattern: str, host: str) -> bool:
    """Whether an entry matches the host. `*.example.org` does not match `example.org` itself."""
    if pattern.startswith(_ANY_BELOW):
        return host.endswith(pattern[1:]) and len(host) >= len(pattern)
    return host == pattern


def plain_host(text: str) -> str:
    """A host in the canonical form in which it is compared, resolved and logged: lower case, no final dot, an IPv6
    address without brackets. Raises `ValueError` with the reason if it is no host or has another form."""
    if text.startswith("["):
        if not text.endswith("]") or "%" in text:
            raise ValueError("it is not an IPv6 address in brackets")
        return _address(text[1:-1], version=6)
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    if not name or len(name) > LONGEST_NAME or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError("it is not a host name: those are of ASCII letters, digits and hyphens, with dots between")
    if _NUMBER.fullmatch(labels[-1]):
        return _address(name, version=4)
    return name


def _address(text: str, *, version: int) -> str:
    try:
        address = ip_address(text)
    except ValueError:
        address = None
    if address is None or address.version != version or (version == 4 and str(address) != text):
        raise ValueError("it is neither a host name nor an IP address in its usual form")
    return str(address)


def _entry(text: str) -> tuple[str, tuple[int, ...]]:
    found = _ENTRY.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r}: write it as name or name:port, an IPv6 address in brackets, without a scheme")
    host, port = found["host"], int(found["port"] or 0)
    if found["port"] and not 0 < port < 65536:
        raise ValueError(f"{text!r}: a port is between 1 and 65535")
    below = _ANY_BELOW if host.startswith(_ANY_BELOW) else ""
    try:
        plain = plain_host(host.removeprefix(below))
    except ValueError as error:
        raise ValueError(f"{text!r}: {_ascii_form(host) or error}") from error
    if below and _NUMBER.fullmatch(plain.rpartition(".")[2]):
        raise ValueError(f"{text!r}: there is nothing below an address")
    return below + plain, (port,) if port else WEB_PORTS


def _ascii_form(host: str) -> str:
    """The form for an operator to write if the name is in another alphabet; otherwise empty."""
    if host.isascii():
        return ""
    try:
        return f"write its ASCII form, {host.encode('idna').decode()}"
    except UnicodeError:
        return ""


def _written(entries: tuple[tuple[str, tuple[int, ...]], ...]) -> Iterator[str]:
    for host, ports in entries:
        shown = f"[{host}]" if ":" in host else host
        yield shown if ports == WEB_PORTS else f"{shown}:{ports[0]}"
