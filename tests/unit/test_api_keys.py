"""A configured key stands for a project; whatever is not a key stands for nothing."""

import hashlib
from pathlib import Path

import pytest

from api.access.callers import ConfiguredKeys
from shared.domain.errors import InvalidRequest


def project_of(keys: ConfiguredKeys, secret: str) -> str | None:
    found = keys.find(secret.encode())
    return None if found is None else found.caller.project_id


@pytest.mark.parametrize("secret", ["hunter2", "k1", "correct-horse-battery-staple", "z" * 64])
def test_a_key_could_be_found_by_its_id(secret: str) -> None:
    """The id stands in stream tokens, in URLs of pages. A list of words must not be compared with it at the speed of a
    plain hash."""
    made, again = [ConfiguredKeys.parse(f"default={secret}").find(secret.encode()) for _ in range(2)]
    assert made is not None and again is not None
    assert made.caller.key_id == again.caller.key_id, "every process has the same"
    shown = made.caller.key_id.removeprefix("configured-")
    for name in sorted(hashlib.algorithms_guaranteed - {"shake_128", "shake_256"}):
        for salted in (secret, f"default={secret}", f"{secret}default"):
            cheap = hashlib.new(name, salted.encode(), usedforsecurity=False).hexdigest()
            assert shown not in cheap and cheap[:12] not in shown, name


def test_keys_have_ids_of_their_own() -> None:
    secrets = ("k1", "k2", "K1", "k1 2", "k" * 200)
    found = [ConfiguredKeys.parse(f"default={secret}").find(secret.encode()) for secret in secrets]
    assert len({one.caller.key_id for one in found if one is not None}) == len(secrets)


def test_a_key_is_its_project() -> None:
    keys = ConfiguredKeys.parse(" one=k1, two = k=2 ,two=k3")

    assert keys
    assert [project_of(keys, secret) for secret in ("k1", "k=2", "k3")] == ["one", "two", "two"]
    assert [project_of(keys, secret) for secret in ("K1", "k1 k1", "", "ü")] == [None] * 4
    assert not ConfiguredKeys.parse("")


def test_spaces_around_a_project_or_a_key_are_no_part_of_it() -> None:
    """`a =k` made the project "a ", and `a= k` a key that never fits."""
    keys = ConfiguredKeys.parse("a =k1,b= k2 , c = k3")
    assert [project_of(keys, secret) for secret in ("k1", "k2", "k3")] == ["a", "b", "c"]


@pytest.mark.parametrize("text", ["secret", "=secret", "one=", "one=secret,two=secret", "one=secret\0", "one=secrét"])
def test_a_malformed_list_is_refused_without_showing_a_key(text: str) -> None:
    with pytest.raises(InvalidRequest, match="HOLDFAST_API_KEYS, entry") as refused:
        ConfiguredKeys.parse(text)
    assert "secret" not in str(refused.value)
    assert "secr" not in str(refused.value)


@pytest.mark.parametrize("text", [",", " ", " , ,", "\n"])
def test_a_list_without_a_key_in_it_does_not_admit_everybody(text: str) -> None:
    """Everybody was let in, on any address: `$KEY_A,$KEY_B` with both of them empty."""
    with pytest.raises(InvalidRequest, match="HOLDFAST_API_KEYS is set, but no key is in it"):
        ConfiguredKeys.parse(text)


def test_one_character_keys_are_taken_with_a_warning_that_does_not_show_them() -> None:
    """They were taken without a word."""
    keys = ConfiguredKeys.parse(f"one=x,two={'y' * 20}")

    [warning] = keys.warnings()

    assert project_of(keys, "x") == "one"
    assert "HOLDFAST_API_KEYS, entry 1: the key has 1 characters" in warning
    assert "'x'" not in warning


def test_a_file_of_keys_joins_the_list(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# who has what\n\none = k,1\r\n  two=k=2  \n")
    keys = ConfiguredKeys.parse("three=k3", str(file))
    assert [project_of(keys, secret) for secret in ("k,1", "k=2", "k3")] == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("one=secret\nsecret\n", "HOLDFAST_API_KEYS_FILE, line 2: write it as project=key"),
        ("\none=listed\n", "HOLDFAST_API_KEYS_FILE, line 2: HOLDFAST_API_KEYS, entry 1 has the same key; remove one"),
        ("# nothing\n", "no key is in"),
        ("one=\xff", "it is not UTF-8"),
    ],
)
def test_a_wrong_file_is_refused_by_its_line(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(InvalidRequest) as refused:
        ConfiguredKeys.parse("two=listed", str(file))
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"HOLDFAST_API_KEYS_FILE: .*No such file"):
        ConfiguredKeys.parse("", str(tmp_path / "missing"))
