"""Callers' URLs lead to public addresses only, however an address is written."""

from ipaddress import ip_network

import pytest
from pydantic import ValidationError

from shared.network.addresses import AddressPolicy, flaw_of_url
from shared.process.settings import Settings

PUBLIC_ONLY = AddressPolicy()


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8", "1.0.0.1", "100.128.0.1", "172.32.0.1", "192.0.1.1", "223.255.255.1", "2606:4700:4700::1111",
        "2a00:1450:4001:830::200e", "::ffff:8.8.8.8", "64:ff9b::808:808", "2a00::5efe:808:808",
    ],
)  # fmt: skip
def test_public(address: str) -> None:
    assert PUBLIC_ONLY.allows(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.1", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1",
        "169.254.169.254", "169.254.170.2", "100.64.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1",
        "224.0.0.1", "240.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fe80::1%lo", "fd00::1", "ff02::1",
        "::ffff:127.0.0.1", "::ffff:169.254.169.254", "2002:7f00:1::1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
        "2001:0:53aa:64c:0:fff:8080:1", "2001:db8::1", "2001:2::1", "3fff::1", "5f00::1", "100::1", "4000::1",
        "fd00:ec2::254", "fd20:ce::254",
    ],
)  # fmt: skip
def test_not_public(address: str) -> None:
    assert not PUBLIC_ONLY.allows(address)


@pytest.mark.parametrize(
    "address",
    [
        "168.63.129.16", "192.0.0.192", "fec0::1", "64:ff9b:1::808:808", "fe80::5efe:7f00:1", "2a00::5efe:7f00:1",
        "2a00::200:5efe:a9fe:a9fe", "::127.0.0.1", "::ffff:168.63.129.16", "::ffff:0:7f00:1", "64:ff9b::a83f:8110",
    ],
)  # fmt: skip
def test_addresses_of_clouds_and_of_old_tunnels_were_public(address: str) -> None:
    assert not PUBLIC_ONLY.allows(address)
    assert not AddressPolicy(allow_private=True).allows(address)


def test_a_6to4_address_was_public_for_some_versions_of_python() -> None:
    assert not PUBLIC_ONLY.allows("2002:0808:0808::1")


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "192.168.1.1", "100.64.0.1", "::1", "fd00::1"])
def test_private_addresses_can_be_allowed(address: str) -> None:
    assert AddressPolicy(allow_private=True).allows(address)


@pytest.mark.parametrize("address", ["169.254.169.254", "100.100.100.200", "fd00:ec2::254", "0.0.0.1", "fe80::1"])
def test_allowing_private_addresses_allowed_the_metadata_of_a_cloud(address: str) -> None:
    assert not AddressPolicy(allow_private=True).allows(address)


def test_an_operator_can_allow_one_network() -> None:
    policy = AddressPolicy(networks=(ip_network("10.2.0.0/16"), ip_network("fd00:1::/64")))
    assert [policy.allows(one) for one in ("10.2.3.4", "::ffff:10.2.3.4", "fd00:1::5")] == [True] * 3
    assert [policy.allows(one) for one in ("10.3.0.1", "127.0.0.1", "fd00:2::5", "64:ff9b::a02:304")] == [False] * 4


@pytest.mark.parametrize("url", ["http://a/", "https://a", "http://a:80/", "https://a:8443/x", "http://[::1]:65535/"])
def test_urls_that_may_lead_somewhere(url: str) -> None:
    assert flaw_of_url(url) is None


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a/", "file:///etc/passwd", "a", "http://", "http://[::1", "http://a:0/", "http://a:99999/",
        "http://a b/", "http://a/\n", "http://a:22/", "http://a:25/", "http://a:6379/", "http://a:5432/", "http://a:6000/",
    ],
)  # fmt: skip
def test_urls_that_lead_nowhere(url: str) -> None:
    assert flaw_of_url(url)


@pytest.mark.parametrize(
    "given", [{"reachable_networks": "10.0.0.1/8"}, {"reachable_networks": "lan"}, {"ca_file": "/none"}]
)
def test_a_network_or_file_that_is_none_ends_the_process_at_its_start(given: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match=next(iter(given))):
        Settings.model_validate(given)
