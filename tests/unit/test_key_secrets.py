"""What a stored key's secret looks like, and what scopes mean."""

import hashlib
import re
from datetime import UTC, datetime, timedelta

import pytest

from shared.domain.api_keys import (
    SECRET_BYTES,
    Level,
    Scopes,
    check_new_key,
    is_well_formed,
    new_secret,
)
from shared.domain.errors import InvalidRequest
from shared.domain.ids import AgentId

AGENT = "agent-11111111-1111-4111-8111-111111111111"
NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize("random", [bytes(SECRET_BYTES), b"\xff" * SECRET_BYTES, bytes(range(SECRET_BYTES))])
def test_a_secret_is_recognised_and_only_its_hash_is_kept(random: bytes) -> None:
    secret = new_secret(random)

    assert re.fullmatch(r"holdfast_[0-9A-Za-z]{49}", secret.text)
    assert secret.text.startswith(secret.prefix)
    assert len(secret.prefix) < 15
    assert secret.digest == hashlib.sha256(secret.text.encode()).hexdigest()
    assert is_well_formed(secret.text.encode())


def test_256_random_bits_are_all_in_a_secret() -> None:
    secrets = {new_secret(bit.to_bytes(SECRET_BYTES)).text for bit in (1 << place for place in range(256))}
    assert len(secrets) == 256


def test_a_mistyped_secret_is_known_for_one_without_asking_anybody() -> None:
    text = new_secret(bytes(range(SECRET_BYTES))).text
    for wrong in (
        text[:-1],
        text + "0",
        text.replace("holdfast_", "holdfast-"),
        "",
        "holdfast_",
        "holdfast_" + "é" * 49,
    ):
        assert not is_well_formed(wrong.encode())
    for place in range(len("holdfast_"), len(text)):
        other = "0" if text[place] != "0" else "1"
        assert not is_well_formed((text[:place] + other + text[place + 1 :]).encode())


def test_each_level_includes_those_before_it() -> None:
    allowed = {level: [needed for needed in Level if Scopes(level).include(needed)] for level in Level}
    assert allowed == {
        Level.READ: [Level.READ],
        Level.WRITE: [Level.READ, Level.WRITE],
        Level.ADMIN: [Level.READ, Level.WRITE, Level.ADMIN],
    }


def test_scopes_are_read_and_written() -> None:
    scopes = Scopes.parse([f"agent:{AGENT}", "write", "read"])
    assert scopes == Scopes(Level.WRITE, frozenset({AgentId(AGENT)}))
    assert Scopes.parse(scopes.texts()) == scopes
    assert scopes.texts() == ["write", f"agent:{AGENT}"]


@pytest.mark.parametrize(
    "texts",
    [
        [],
        ["Admin"],
        ["read", "everything"],
        ["read", "agent:"],
        ["read", "agent:agent-1"],
        # Each of these would be a key of the whole project if what follows the word were not looked at.
        ["write", f"agents:{AGENT}"],
        ["write", AGENT],
        ["write", f"agent {AGENT}"],
        [f"agent:{AGENT}"],
        ["admin", f"agent:{AGENT}"],
    ],
)
def test_what_is_no_scope_is_refused(texts: list[str]) -> None:
    with pytest.raises(InvalidRequest):
        Scopes.parse(texts)


@pytest.mark.parametrize(
    ("name", "expires_at"),
    [("", None), ("  ", None), ("a\nb", None), ("a" * 201, None), ("page", NOW), ("page", NOW - timedelta(days=1))],
)
def test_a_key_that_cannot_be_meant_is_refused(name: str, expires_at: datetime | None) -> None:
    with pytest.raises(InvalidRequest):
        check_new_key(name, expires_at, NOW)
