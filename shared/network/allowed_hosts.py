"""The hosts that tools with a network may connect to: an operator's list, and what a tool may write for one of them.

A name is compared as text, and never resolved here. So every spelling of a host that is not its plain one is refused:
what is compared is what is resolved afterwards.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Self

from shared.network.addresses import WEB_PORTS

LONGEST_NAME = 253
"""RFC 1035, without the dot at the end."""

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""A name whose last label is one is an IPv4 address to some resolver: 127.1, 2130706433, 0x7f.1, 0177.0.0.1."""
_ENTRY = re.compile(r"(?P<host>\[[^\[\]]*\]|[^\[\]:]*)(:(?P<port>[0-9]{1,5}))?")
_ANY_BELOW = "*."


@dataclass(frozen=True)
class AllowedHosts:
    """Names, `*.` and a name for every name below it, and addresses; each with its ports."""

    entries: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """A comma list of `host` or `host:port`; without a port it is 80 and 443. Raises `ValueError` naming the entry
        and what to write instead."""
        return cls(tuple(map(_entry, text.replace(",", " ").split())))

    def __bool__(self) -> bool:
        return bool(self.entries)

    def allows(self, host: str, port: int) -> bool:
        """`host` as `plain_host` writes it."""
        return any(port in ports and matches(pattern, host) for pattern, ports in self.entries)

    def __str__(self) -> str:
        return ", ".join(_written(self.entries))


def matches(pattern: str, host: str) -> bool:
    """Whether an entry means the host. `*.example.org` does not mean `example.org` itself."""
    if pattern.startswith(_ANY_BELOW):
        return host.endswith(pattern[1:]) and len(host) >= len(pattern)
    return host == pattern


def plain_host(text: str) -> str:
    """A host in the one spelling in which it is compared, resolved and logged: lower case, no dot at the end, an IPv6
    address without its brackets. Raises `ValueError` with the reason for what is no host, or has another spelling."""
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
    """What an operator should write for a name in another alphabet; empty when it is none."""
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
