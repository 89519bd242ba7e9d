"""Whose address a request has: nobody chooses it by a header, but a proxy that the operator trusts."""

from typing import Any

import pytest
from pydantic import ValidationError

from api.request_log import client_address, networks_of
from shared.process.settings import Settings

TRUSTED = "10.0.0.0/8, 192.0.2.7 fd00::/8"


def address(client: str, *forwarded: str, trusted: str = TRUSTED) -> str:
    headers = [(b"x-forwarded-for", text.encode("latin-1")) for text in forwarded]
    scope: dict[str, Any] = {"type": "http", "client": (client, 1), "headers": headers}
    return client_address(scope, networks_of(trusted))


@pytest.mark.parametrize(
    ("client", "forwarded", "expected"),
    [
        ("203.0.113.1", ["198.51.100.1"], "203.0.113.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        # What the client itself has written stands in front.
        ("10.0.0.1", ["6.6.6.6, 198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["6.6.6.6, 198.51.100.1, 192.0.2.7"], "198.51.100.1"),
        ("10.0.0.1", ["6.6.6.6", "198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", ["nonsense"], "10.0.0.1"),
        ("10.0.0.1", ["6.6.6.6, nonsense, 10.0.0.3"], "10.0.0.3"),
        ("fd00::1", ["2001:db8::1"], "2001:db8::1"),
        ("::ffff:10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("unix", ["198.51.100.1"], "unix"),
    ],
)
def test_the_address_is_the_first_from_the_right_that_is_no_proxys(
    client: str, forwarded: list[str], expected: str
) -> None:
    assert address(client, *forwarded) == expected


def test_without_the_setting_no_header_is_believed() -> None:
    assert address("127.0.0.1", "198.51.100.1", trusted="") == "127.0.0.1"


def test_a_wrong_setting_is_refused() -> None:
    with pytest.raises(ValidationError, match="trusted_proxies"):
        Settings(trusted_proxies="10.0.0.0/8, proxy.internal")
