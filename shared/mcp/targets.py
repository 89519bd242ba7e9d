"""Makes the target of a stored MCP server: decrypts its secrets, and puts them where the server expects them."""

import re
from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from shared.domain.errors import InvalidRequest
from shared.domain.mcp_servers import THE_GRANT, Grant, McpServer, McpTarget, SignIn
from shared.secret_keys import SecretKeys

THE_TOKEN, HEADER, VARIABLE = "token", "header:", "env:"
"""The names of a server's secrets; the last two are prefixes."""

MOST_HEADERS = 50
LONGEST_HEADER = 16_000
"""Characters of one header's value."""

_AUTHORIZATION = "Authorization"
_TOKEN_OF_HTTP = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_OURS = re.compile(
    r"host|content-.*|transfer-encoding|connection|keep-alive|upgrade|te|trailer|expect|accept|accept-encoding"
    r"|mcp-.*|last-event-id|proxy-.*|cookie2?",
    re.IGNORECASE,
)
"""Headers that the protocol itself sets."""
_SAID_ANYWAY = frozenset({"accept", "content-type"})
"""The headers among them that many programs set. Holdfast stores and shows them, but sends the protocol's own."""


def target_of(server: McpServer, secret_keys: SecretKeys) -> McpTarget:
    """The server with its secrets decrypted. Raises `UnreadableSecret`, and `InvalidRequest` if a header cannot be
    sent."""
    values = secret_keys.open_all(server.id, server.secrets)
    headers = _behind(HEADER, values)
    grant = _decoded(values[THE_GRANT]) if THE_GRANT in values else None
    token = values.get(THE_TOKEN, "").strip() if grant is None else grant.access_token
    if token:
        name = (server.auth_header if grant is None else None) or _AUTHORIZATION
        headers = {kept: value for kept, value in headers.items() if kept.lower() != name.lower()}
        headers[name] = _credentials(name, token)
    refuse_headers(headers)
    headers = {name: value for name, value in headers.items() if name.lower() not in _SAID_ANYWAY}
    return McpTarget(
        project_id=server.project_id,
        server_id=server.id,
        server_name=server.name,
        transport=server.transport,
        url=server.url,
        headers=headers,
        command=server.command,
        args=server.args,
        env=_behind(VARIABLE, values),
    )


def grant_of(server: McpServer, secret_keys: SecretKeys) -> Grant | None:
    """Returns the grant of a sign-in at the server, if it has one. Raises `UnreadableSecret`."""
    stored = server.secrets.get(THE_GRANT)
    return None if stored is None else _decoded(secret_keys.open(server.id, THE_GRANT, stored))


def with_grant(server: McpServer, grant: Grant, sign_in: SignIn, secret_keys: SecretKeys) -> McpServer:
    """Returns the server with a sign-in's grant in place of its token."""
    sealed = secret_keys.seal(server.id, THE_GRANT, msgspec.json.encode(grant).decode())
    kept = {name: value for name, value in server.secrets.items() if name != THE_TOKEN}
    return replace(server, auth_header=None, secrets={**kept, THE_GRANT: sealed}, sign_in=sign_in)


def _decoded(stored: str) -> Grant:
    return msgspec.json.decode(stored, type=Grant)


def refuse_headers(headers: Mapping[str, str]) -> None:
    """Raises `InvalidRequest` for headers that cannot be sent to an MCP server. The error contains no values."""
    _refuse_header_names(headers)
    for name, value in headers.items():
        if len(value) > LONGEST_HEADER or not value.isascii() or not value.isprintable():
            raise InvalidRequest(
                f"headers: the value of {name!r} must be printable ASCII on one line, of up to {LONGEST_HEADER} "
                "characters",
                field="custom_headers",
            )


def _refuse_header_names(names: Iterable[str]) -> None:
    given = list(names)
    if len(given) > MOST_HEADERS:
        raise InvalidRequest(f"headers: {len(given)} headers; {MOST_HEADERS} are the most", field="custom_headers")
    for name in given:
        is_ours = _OURS.fullmatch(name) and name.lower() not in _SAID_ANYWAY
        if is_ours or not _TOKEN_OF_HTTP.fullmatch(name):
            raise InvalidRequest(
                f"headers: {name[:100]!r} is no header that can be set: the protocol sets it itself, or it is no "
                "header's name",
                field="custom_headers",
            )


def _credentials(header: str, token: str) -> str:
    """Adds the scheme if the client omitted it. Only `Authorization` has schemes."""
    return token if header.lower() != _AUTHORIZATION.lower() or " " in token else f"Bearer {token}"


def _behind(beginning: str, values: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(beginning): value for name, value in values.items() if name.startswith(beginning)}
