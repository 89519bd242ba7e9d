"""Callbacks go to public addresses only, however an address is written."""

import pytest

from api.callbacks.addresses import ForbiddenAddress, addresses_of, is_public


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fd00::1", "ff02::1", "::ffff:127.0.0.1",
        "::ffff:169.254.169.254", "2002:7f00:1::1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
    ],
)  # fmt: skip
def test_not_public(address: str) -> None:
    assert not is_public(address)


def test_a_6to4_address_was_public_for_some_versions_of_python() -> None:
    assert not is_public("2002:0808:0808::1")


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f000001", "0"])
async def test_a_name_is_checked_by_what_it_resolves_to(host: str) -> None:
    with pytest.raises(ForbiddenAddress, match="HOLDFAST_CALLBACK_ALLOW_PRIVATE"):
        await addresses_of(host, 80, allow_private=False)
    assert await addresses_of(host, 80, allow_private=True)
