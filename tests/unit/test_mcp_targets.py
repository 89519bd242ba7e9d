"""How a stored MCP server is reached: its secrets in their places, and commands that an operator lists."""

from typing import Any

import pytest

from shared.domain.errors import InvalidRequest, UnreadableSecret
from shared.mcp.commands import AllowedCommands
from shared.mcp.targets import target_of
from shared.secret_keys import NO_KEYS, SecretKeys, new_key
from tests.kit.runs.definitions import some_server


@pytest.mark.parametrize(
    ("header", "token", "sent"),
    [
        (None, "abc", {"Authorization": "Bearer abc"}),
        ("authorization", "abc", {"authorization": "Bearer abc"}),
        ("Authorization", "Bearer abc", {"Authorization": "Bearer abc"}),
        ("Authorization", "Basic YTpi", {"Authorization": "Basic YTpi"}),
        ("X-API-Key", "abc", {"X-API-Key": "abc"}),
        (None, "  ", {}),
    ],
)
def test_a_token_goes_into_its_header(header: str | None, token: str, sent: dict[str, str]) -> None:
    """Clients give a token with the word Bearer, or without it."""
    server = some_server(auth_header=header, secrets={"token": token})
    assert target_of(server, NO_KEYS).headers == sent


def test_headers_and_variables_are_those_of_their_names() -> None:
    secrets = {"token": "abc", "header:authorization": "of a header", "header:X-Team": "a", "env:CITY": "Bern"}
    target = target_of(some_server(secrets=secrets), NO_KEYS)
    assert target.headers == {"Authorization": "Bearer abc", "X-Team": "a"}
    assert target.env == {"CITY": "Bern"}


def test_what_the_protocol_says_itself_was_refused() -> None:
    """Programs for Letta's server give `Accept`; the protocol's own is sent."""
    given = {"header:Accept": "application/json", "header:content-type": "text/plain", "header:X-Version": "2.0"}
    assert target_of(some_server(secrets=given), NO_KEYS).headers == {"X-Version": "2.0"}
    with pytest.raises(InvalidRequest, match="'Host' is no header"):
        target_of(some_server(secrets={"header:Host": "elsewhere"}), NO_KEYS)


def test_the_name_of_a_way_to_run_was_taken_for_other_code() -> None:
    AllowedCommands.parse("npx *").refuse_others("npx", ["a"], ["NODE_ENV", "DEBUG"])


def test_secrets_are_read_for_their_own_server_alone() -> None:
    keys = SecretKeys.parse(new_key(), "a test")
    server = some_server()
    sealed = {"token": keys.seal(server.id, "token", "abc")}
    assert target_of(some_server(id=server.id, secrets=sealed), keys).headers == {"Authorization": "Bearer abc"}
    with pytest.raises(UnreadableSecret):
        target_of(some_server(secrets=sealed), keys)


@pytest.mark.parametrize(
    "secrets",
    [
        {"header:Host": "elsewhere"},
        {"header:content-length": "1"},
        {"header:Mcp-Session-Id": "of another"},
        {"header:X Y": "a"},
        {"header:X": "a\r\nHost: elsewhere"},
        {"header:X": "é"},
        {"token": "a\nb"},
        {f"header:X-{number}": "a" for number in range(51)},
    ],
)
def test_headers_that_would_change_the_request_are_refused(secrets: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="headers: ") as refused:
        target_of(some_server(secrets=secrets), NO_KEYS)
    assert "elsewhere" not in refused.value.message


COMMANDS = AllowedCommands.parse("uvx mcp-server-time; /opt/serve 'two words' *\nnpx -y @scope/name")


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("uvx", ["mcp-server-time"]),
        ("/opt/serve", ["two words"]),
        ("/opt/serve", ["two words", "--port", "1"]),
        ("npx", ["-y", "@scope/name"]),
    ],
)
def test_a_listed_command_is_allowed(command: str, args: list[str]) -> None:
    COMMANDS.refuse_others(command, args, ["CITY", "API_KEY"])


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("uvx", []),
        ("uvx", ["mcp-server-time", "--with", "evil"]),
        ("uvx", ["evil"]),
        ("/opt/serve", []),
        ("/opt/serve", ["two", "words"]),
        ("/bin/sh", ["-c", "id"]),
        ("*", []),
    ],
)
def test_any_other_command_is_refused(command: str, args: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="HOLDFAST_MCP_COMMANDS"):
        COMMANDS.refuse_others(command, args, [])
    with pytest.raises(InvalidRequest, match="HOLDFAST_MCP_COMMANDS"):
        AllowedCommands.parse("").refuse_others(command, args, [])


@pytest.mark.parametrize("name", ["PATH", "LD_PRELOAD", "NODE_OPTIONS", "PYTHONPATH", "BASH_ENV", "A=B", "", "1"])
def test_variables_that_choose_code_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="env: ") as refused:
        COMMANDS.refuse_others("uvx", ["mcp-server-time"], [name])
    assert refused.value.field == "env"


@pytest.mark.parametrize("text", ["*", "uvx * --yes", "'uvx"])
def test_a_setting_that_lists_no_command_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match=r"last word|quotation"):
        AllowedCommands.parse(text)
