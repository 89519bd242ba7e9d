"""Secrets are encrypted for one agent and one name, with keys that have ids."""

import base64
import os

import pytest

from shared.domain.agents import changed_secrets, is_sealed
from shared.domain.errors import InvalidRequest, UnreadableSecret
from shared.domain.ids import AgentId
from shared.secret_keys import NO_KEYS, SecretKeys, key_id_of, new_key

ADA, BOB = AgentId("agent-ada"), AgentId("agent-bob")
OLD, NEW = os.urandom(32), os.urandom(32)
KEYS = SecretKeys({"new": NEW, "old": OLD})


def test_the_first_key_encrypts_and_every_key_decrypts() -> None:
    before = SecretKeys({"old": OLD}).seal(ADA, "TOKEN", "swordfish ✓")
    after = KEYS.seal(ADA, "TOKEN", "swordfish ✓")

    assert [key_id_of(before), key_id_of(after)] == ["old", "new"]
    assert [KEYS.open(ADA, "TOKEN", stored) for stored in (before, after)] == ["swordfish ✓"] * 2
    assert KEYS.seal(ADA, "TOKEN", "swordfish ✓") != after, "equal values are not seen to be equal"


@pytest.mark.parametrize(
    ("agent_id", "name", "keys"),
    [(BOB, "TOKEN", KEYS), (ADA, "OTHER", KEYS), (ADA, "TOKEN", SecretKeys({"new": OLD, "old": NEW}))],
)
def test_a_value_that_is_moved_or_meets_another_key_is_not_read(agent_id: AgentId, name: str, keys: SecretKeys) -> None:
    with pytest.raises(UnreadableSecret, match=f"'{name}' cannot be read: the key 'new' is not the one"):
        keys.open(agent_id, name, KEYS.seal(ADA, "TOKEN", "swordfish"))


def test_each_change_of_what_is_stored_is_noticed() -> None:
    stored = KEYS.seal(ADA, "TOKEN", "swordfish")
    start = stored.rindex(":") + 1
    for place in range(start, len(stored), 5):
        changed = stored[:place] + ("A" if stored[place] != "A" else "B") + stored[place + 1 :]
        with pytest.raises(UnreadableSecret):
            KEYS.open(ADA, "TOKEN", changed)
    for cut in ("holdfast-sealed:", "holdfast-sealed:1:new", stored[:-4], stored.replace(":1:", ":2:", 1)):
        with pytest.raises(UnreadableSecret):
            KEYS.open(ADA, "TOKEN", cut)


def test_a_key_that_is_not_configured_is_named() -> None:
    stored = KEYS.seal(ADA, "TOKEN", "swordfish")
    for keys in (NO_KEYS, SecretKeys({"old": OLD})):
        with pytest.raises(UnreadableSecret, match="the key 'new', which is not configured"):
            keys.open(ADA, "TOKEN", stored)


def test_what_was_stored_before_there_was_a_key_is_read_on() -> None:
    assert KEYS.open(ADA, "TOKEN", "plain") == "plain"
    assert NO_KEYS.seal(ADA, "TOKEN", "plain") == "plain"
    assert KEYS.seal(ADA, "TOKEN", "") == ""


def test_keys_are_written_as_they_are_generated() -> None:
    one, two = new_key(), new_key()
    keys = SecretKeys.parse(f"{one}, {two}\n", "HERE")
    assert keys.current == one.partition(":")[0]
    stored = SecretKeys.parse(two, "HERE").seal(ADA, "TOKEN", "swordfish")
    assert keys.open(ADA, "TOKEN", stored) == "swordfish"
    plain = base64.urlsafe_b64encode(OLD).decode().rstrip("=")
    assert SecretKeys.parse(f"a:{plain}", "HERE").current == "a", "as `openssl` and other programs write them"


@pytest.mark.parametrize(
    "text", ["swordfish", "a:", ":QUJD", "a:swordfish", "a b:QUJD", f"a:{'Q' * 42}", "x" * 65 + f":{'A' * 43}="]
)
def test_a_key_that_is_none_is_refused_by_its_place_and_not_shown(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"HERE, entry \d: .*generate-key") as refused:
        SecretKeys.parse(text, "HERE")
    assert text not in str(refused.value)


def test_a_list_without_a_key_left_secrets_in_plain_text() -> None:
    """Two empty variables make such a list."""
    with pytest.raises(InvalidRequest, match="no key is in it"):
        SecretKeys.parse(" , ", "HERE")
    key = new_key()
    with pytest.raises(InvalidRequest, match=r"entry 2: the key id .* is there twice"):
        SecretKeys.parse(f"{key},{key}", "HERE")


BEFORE = {"A": "sealed-a", "B": "sealed-b"}


def test_names_without_values_that_are_sent_back_wipe_nothing() -> None:
    assert changed_secrets(BEFORE, {"A": "", "B": None, "C": "c", "D": ""}, sees_values=True) == {
        **BEFORE,
        "C": "c",
        "D": "",
    }


def test_a_name_that_is_left_out_is_removed_by_a_client_that_sees_it() -> None:
    assert changed_secrets(BEFORE, {"A": "new"}, sees_values=True) == {"A": "new"}
    assert changed_secrets(BEFORE, {}, sees_values=True) == {}
    assert changed_secrets(BEFORE, {"A": "new"}, sees_values=False) == {"A": "new", "B": "sealed-b"}


def test_no_value_of_a_client_is_taken_for_an_encrypted_one() -> None:
    stored = KEYS.seal(ADA, "TOKEN", "swordfish")
    assert is_sealed(stored)
    with pytest.raises(InvalidRequest, match="secrets: the value of 'TOKEN'"):
        changed_secrets({}, {"TOKEN": stored}, sees_values=True)


def test_a_fingerprint_tells_two_keys_of_one_id_apart_and_no_key() -> None:
    [old, new] = SecretKeys({"k1": OLD, "k2": NEW}).fingerprints
    assert SecretKeys({"k1": OLD}).fingerprints == [old], "it is the same in each process"
    assert SecretKeys({"k1": NEW}).fingerprints != [old]
    assert SecretKeys({"k3": OLD}).fingerprints != [old]
    assert (old.partition(":")[0], len(old), new.partition(":")[0]) == ("k1", len("k1:") + 12, "k2")
    assert OLD.hex()[:12] not in old
    assert NO_KEYS.fingerprints == []
