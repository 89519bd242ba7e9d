"""docs/models.md has the providers of the code: each with its variables, its address and what it speaks. So has
docker-compose.yml, as far as variables go."""

import re
from itertools import groupby
from typing import NamedTuple

import pytest

from shared.domain.models import NOT_SERVED, PROVIDERS
from tests.kit.project.documents import ROOT

_TEXT = (ROOT / "docs/models.md").read_text(encoding="utf-8")
_IN_BACKTICKS = re.compile(r"`([^`]+)`")

SPOKEN = {"chat": "OpenAI", "anthropic": "Anthropic", "google": "Gemini", "builtin": "played by the worker"}


class Row(NamedTuple):
    """A line of the table."""

    provider: str
    urls: list[str]
    keys: list[str]
    needs_key: bool
    default: str | None
    speaks: str
    variables: list[str]
    """Of the last column."""


def _rows() -> list[Row]:
    """The lines of the table; a line without a handle belongs to the provider of the line above."""
    rows: list[Row] = []
    for line in _TEXT[_TEXT.index("| handle | address |") :].splitlines()[2:]:
        if not line.startswith("|"):
            break
        handle, url, key, default, speaks = (cell.strip() for cell in line.strip("|").split("|"))
        named = _IN_BACKTICKS.findall(handle)
        rows.append(
            Row(
                provider=named[0].removesuffix("/…") if named else rows[-1].provider,
                urls=_IN_BACKTICKS.findall(url),
                keys=_IN_BACKTICKS.findall(key),
                needs_key=bool(_IN_BACKTICKS.findall(key)) and "if it asks" not in key,
                default=next(iter(_IN_BACKTICKS.findall(default)), None),
                speaks=speaks,
                variables=[name for name in _IN_BACKTICKS.findall(speaks) if name.isupper()],
            )
        )
    return rows


TABLE = {name: list(rows) for name, rows in groupby(_rows(), key=lambda row: row.provider)}


def test_the_document_has_every_provider() -> None:
    assert set(TABLE) == set(PROVIDERS)
    for name in NOT_SERVED:
        assert f"`{name}/…`" in _TEXT


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_providers_line_says_what_the_code_does(name: str) -> None:
    provider, rows = PROVIDERS[name], TABLE[name]
    if name not in ("builtin", "code"):
        assert [(row.urls, row.keys) for row in rows] == [
            ([address.url_variable], list(address.key_variables)) for address in provider.addresses
        ]
        versions = [[address.version_variable] if address.version_variable else [] for address in provider.addresses]
        assert [row.variables for row in rows] == versions
    assert rows[0].default == provider.default_url
    assert rows[0].needs_key is provider.needs_key
    assert rows[0].speaks.startswith(SPOKEN[provider.wire])


_PASSED_ON = re.compile(r"^  (\w+): \$\{(\w+):-\}$", re.MULTILINE)


def test_compose_passed_on_three_keys_of_a_dozen() -> None:
    """Whoever had another provider's key saw its models fail in the containers."""
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    block = text[text.index("\nx-model-providers: &model-providers") :].partition("\n\n")[0]
    passed = _PASSED_ON.findall(block)
    assert len(passed) == len(block.strip().splitlines()) - 1, "each line passes on one variable"
    assert all(name == source for name, source in passed)
    addresses = [address for provider in PROVIDERS.values() for address in provider.addresses]
    assert {name for name, _ in passed} == {
        name
        for address in addresses
        for name in (address.url_variable, *address.key_variables, address.version_variable)
        if name is not None
    }
    for service in ("api", "worker"):
        described = text[text.index(f"\n  {service}:\n") :].partition("\n\n")[0]
        assert "<<: [*environment, *model-providers]" in described
