"""A key stands for a project; whatever is not a key stands for nothing."""

import pytest
from starlette.exceptions import HTTPException

from api.auth import DEFAULT_PROJECT, ApiKeys
from shared.domain.errors import InvalidRequest


def test_a_key_is_its_project() -> None:
    keys = ApiKeys.parse(" one=k1, two = k=2 ,two=k3")

    assert keys.are_required
    assert keys.project_of("Bearer k1") == "one"
    assert keys.project_of("bearer k=2") == "two"
    assert keys.project_of("Bearer k3") == "two"


@pytest.mark.parametrize("header", [None, "", "k1", "Basic k1", "Bearer", "Bearer K1", "Bearer k1 k1", "Bearer ü"])
def test_anything_else_is_refused(header: str | None) -> None:
    with pytest.raises(HTTPException) as refused:
        ApiKeys.parse("one=k1").project_of(header)
    assert refused.value.status_code == 401
    assert refused.value.headers == {"WWW-Authenticate": "Bearer"}


def test_without_keys_everybody_is_the_default_project() -> None:
    keys = ApiKeys.parse("")
    assert not keys.are_required
    assert keys.project_of(None) == keys.project_of("Bearer anything") == DEFAULT_PROJECT


@pytest.mark.parametrize("text", ["secret", "=secret", "one=", "one=secret,two=secret"])
def test_a_malformed_list_is_refused_without_showing_a_key(text: str) -> None:
    with pytest.raises(InvalidRequest, match="HOLDFAST_API_KEYS, entry") as refused:
        ApiKeys.parse(text)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("text", [",", " ", " , ,", "\n"])
def test_a_list_without_a_key_in_it_does_not_admit_everybody(text: str) -> None:
    """Everybody was let in, on any address: `$KEY_A,$KEY_B` with both of them empty."""
    with pytest.raises(InvalidRequest, match="HOLDFAST_API_KEYS is set, but no key is in it"):
        ApiKeys.parse(text)
