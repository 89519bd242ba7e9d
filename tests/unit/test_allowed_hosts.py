"""Which hosts a tool may connect to: an operator's list, and every spelling that somebody may try."""

import pytest

from shared.network.addresses import AllowedHosts, plain_host

ALLOWED = AllowedHosts.parse(
    "API.example.com, *.example.org:8443 files.example.net:9000,192.0.2.7,[2001:db8::1]:80 xn--bcher-kva.example"
)


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("api.example.com", 443),
        ("API.Example.COM.", 80),
        ("a.example.org", 8443),
        ("a.b.example.org", 8443),
        ("files.example.net", 9000),
        ("192.0.2.7", 80),
        ("[2001:DB8:0:0::1]", 80),
        ("xn--bcher-kva.example", 443),
    ],
)
def test_what_is_listed_is_allowed(host: str, port: int) -> None:
    assert ALLOWED.allows(plain_host(host), port)


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("example.com", 443),
        ("evil-api.example.com", 443),
        ("api.example.com.evil.example", 443),
        ("api.example.com", 22),
        ("example.org", 8443),
        ("badexample.org", 8443),
        ("a.example.org", 443),
        ("files.example.net", 443),
        ("192.0.2.8", 80),
        ("[2001:db8::1]", 443),
        ("[::ffff:192.0.2.7]", 80),
    ],
)
def test_what_is_not_listed_is_not_allowed(host: str, port: int) -> None:
    assert not ALLOWED.allows(plain_host(host), port)


@pytest.mark.parametrize(
    "host",
    [
        "",
        ".",
        "..",
        "a..b",
        ".api.example.com",
        "api.example.com..",
        "2130706433",
        "127.1",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "127.0.0.01",
        "127.0.0.1.2",
        "1.2.3.0x4",
        "0x",
        "256.0.0.1",
        "::1",
        "[127.0.0.1]",
        "[::1",
        "[fe80::1%eth0]",
        "b\N{LATIN SMALL LETTER U WITH DIAERESIS}cher.example",
        "api.example.com\N{FULLWIDTH FULL STOP}",
        "api.example.com\0.evil.example",
        "api example",
        "api.example.com/",
        "a@b",
        "-a.example",
        "a" * 64 + ".example",
        "a." * 126 + "ab",
        "*.example.org",
    ],
)
def test_a_spelling_that_a_resolver_may_read_in_another_way_is_no_host(host: str) -> None:
    with pytest.raises(ValueError, match="it is n"):
        plain_host(host)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("https://api.example.com", "without a scheme"),
        ("api.example.com/v1", "not a host name"),
        ("api.example.com:0", "between 1 and 65535"),
        ("api.example.com:70000", "between 1 and 65535"),
        ("*", "not a host name"),
        ("a.*.example.com", "not a host name"),
        ("*.192.0.2.7", "nothing below an address"),
        ("::1", "an IPv6 address in brackets"),
        ("10.0.0.0/8", "not a host name"),
        ("b\N{LATIN SMALL LETTER U WITH DIAERESIS}cher.example", "write its ASCII form, xn--bcher-kva.example"),
    ],
)
def test_an_entry_that_cannot_be_is_named_with_what_to_write(entry: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        AllowedHosts.parse(f"api.example.com,{entry}")
    assert repr(entry) in str(caught.value)


def test_a_list_says_what_it_allows_and_an_empty_one_allows_nothing() -> None:
    assert not AllowedHosts.parse(" , ")
    assert str(ALLOWED).startswith("api.example.com, *.example.org:8443, files.example.net:9000, 192.0.2.7, [2001:")
