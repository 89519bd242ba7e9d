"""Wrong keys are counted by address; the right keys of others who share it go on."""

from api.access.accepted_keys import BURST, MOST_ADDRESSES, MOST_COUNTED, PER_SECOND, FailedKeys, network_of
from tests.kit.clocks import FrozenClock

PROXY = "10.0.0.1"


def flooded(clock: FrozenClock) -> FailedKeys:
    failed = FailedKeys(clock)
    for _ in range(MOST_COUNTED):
        failed.note(PROXY)
    return failed


def test_an_address_that_sends_many_wrong_keys_is_told_to_wait() -> None:
    clock = FrozenClock()
    failed = FailedKeys(clock)

    answers = [failed.note(PROXY) for _ in range(BURST + 1)]

    assert answers == [None] * BURST + [1 / PER_SECOND]
    assert failed.note("10.0.0.2") is None, "another address"
    clock.advance(1_000)
    assert failed.note(PROXY) is not None
    clock.advance(10_000)
    assert failed.note(PROXY) is None


def test_an_address_that_stops_is_soon_free() -> None:
    clock = FrozenClock()
    failed = FailedKeys(clock)
    for _ in range(10_000):
        failed.note(PROXY)
    clock.advance(63_000)
    assert failed.note(PROXY) is None


def test_a_short_key_is_not_found_by_trying() -> None:
    """Failed keys were not limited."""
    assert flooded(FrozenClock()).wait_for(PROXY, "k") is not None
    assert flooded(FrozenClock()).wait_for("10.0.0.2", "k") is None


def test_a_short_key_that_was_used_before_is_not_locked_out_by_others_behind_its_proxy() -> None:
    clock = FrozenClock()
    failed = FailedKeys(clock)
    assert failed.wait_for(PROXY, "k") is None
    for _ in range(MOST_COUNTED):
        failed.note(PROXY)
    assert failed.wait_for(PROXY, "k") is None
    assert failed.wait_for(PROXY, "other") is not None


def test_what_is_remembered_is_bounded() -> None:
    failed = flooded(FrozenClock())
    for number in range(MOST_ADDRESSES):
        failed.note(f"address {number}")
        failed.wait_for(f"address {number}", "k")
    assert failed.note(PROXY) is None, "forgotten for newer ones"


def test_a_machine_has_one_count_for_all_its_addresses_of_ipv6() -> None:
    assert network_of("2001:db8:1:2:3::4") == network_of("2001:db8:1:2:ffff::1") != network_of("2001:db8:1:3::1")
    assert network_of("10.0.0.1") == "10.0.0.1"
    assert network_of("") == ""
