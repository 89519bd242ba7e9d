"""A sign-in at an MCP server that somebody abuses: a browser that comes back forged, twice, late or from elsewhere, an
authorization server that is somebody's trap."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import httpx
import httpx2
import pytest
import sqlalchemy as sa

from shared.mcp.authorization import ANSWER_BYTES
from shared.sql.tables import mcp_sign_ins
from tests.kit.mcp.authorizing import AuthorizingServer, Send, answers, authorizing_server, consented
from tests.kit.mcp.signing_in import Connecting, begun, came_back, of_stored, shown, signed_in, stored
from tests.kit.product import Product

KEYS = "default=key-of-the-first-project-1,other=key-of-the-other-project-2"


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"reachable_networks": "127.0.0.0/8"}


@pytest.fixture
async def notes() -> AsyncGenerator[AuthorizingServer]:
    async with authorizing_server() as server:
        yield server


def changed(location: str, **query: str | None) -> str:
    """Where the browser is sent, with other parameters; None takes one away."""
    url = httpx2.URL(location)
    for name, value in query.items():
        url = url.copy_remove_param(name) if value is None else url.copy_set_param(name, value)
    return str(url)


def is_refused(answer: httpx.Response, *, said: str = "") -> bool:
    return answer.status_code == 400 and said in answer.json()["message"]


async def test_a_forged_state_finishes_nothing_and_leaves_the_sign_in_as_it_is(
    product: Product, notes: AuthorizingServer
) -> None:
    server, location = await begun(product, notes)
    for state in (None, "", "forged", "x" * 10_000, "ﬀ"):
        assert is_refused(await came_back(product, changed(location, state=state)), said="is not known here")
    assert notes.grants == []
    assert (await came_back(product, location)).status_code == 200
    assert (await shown(product, server))["sign_in"]["state"] == "signed_in"


async def test_a_browser_that_comes_back_twice_is_served_once(product: Product, notes: AuthorizingServer) -> None:
    _, location = await begun(product, notes)
    notes.answering.clear()
    async with asyncio.TaskGroup() as group:
        both = [group.create_task(came_back(product, location)) for _ in range(2)]
        done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        notes.answering.set()
    assert is_refused(next(iter(done)).result(), said="was used before")
    assert sorted(task.result().status_code for task in both) == [200, 400]
    assert is_refused(await came_back(product, location), said="was used before")
    assert notes.grants == ["authorization_code"]


async def test_an_expired_sign_in_is_refused(product: Product, notes: AuthorizingServer) -> None:
    server = await stored(product, notes)
    connecting = of_stored(product, server)
    async with asyncio.TaskGroup() as group:
        group.create_task(connecting.read())
        location = await consented(await connecting.url)
        ended = product.context.clock.now() - timedelta(seconds=1)
        async with product.context.database.write() as connection:
            await connection.execute(sa.update(mcp_sign_ins).values(expires_at=ended))
        assert is_refused(await came_back(product, location), said="has expired")
    last = connecting.events[-1]
    assert (last["event"], "within 10 minutes" in last["message"]) == ("error", True)
    assert notes.grants == []


@pytest.mark.parametrize("settings", [{"reachable_networks": "127.0.0.0/8", "api_keys": KEYS}])
async def test_a_sign_in_is_of_the_project_that_began_it_also_with_a_key_of_another(
    product: Product, notes: AuthorizingServer
) -> None:
    first, other = (entry.partition("=")[2] for entry in KEYS.split(","))
    product.http.headers["Authorization"] = f"Bearer {first}"
    server, location = await begun(product, notes)

    finished = await came_back(product, location, authorization=f"Bearer {other}")

    assert finished.status_code == 200
    assert (await shown(product, server))["sign_in"]["state"] == "signed_in"
    product.http.headers["Authorization"] = f"Bearer {other}"
    assert (await product.http.get("/v1/mcp-servers")).json() == []
    assert (await product.http.get(f"/v1/mcp-servers/connect/{server['id']}")).status_code == 404
    assert (await product.http.get("/v1/admin/audit")).json() == []


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"error": "access_denied", "code": None}, "access_denied"),
        ({"error": "<b>" + "x" * 100, "code": None}, "an error"),
        ({"code": None}, "no code"),
        ({"code": "guessed"}, "invalid_grant"),
        ({"iss": "https://evil.example"}, "another authorization server"),
    ],
)
async def test_a_browser_that_brings_no_good_code_ends_the_sign_in(
    product: Product, notes: AuthorizingServer, query: dict[str, str | None], said: str
) -> None:
    server = await stored(product, notes)
    connecting = of_stored(product, server)
    async with asyncio.TaskGroup() as group:
        group.create_task(connecting.read())
        location = changed(await consented(await connecting.url), **query)
        assert is_refused(await came_back(product, location), said=said)
    last = connecting.events[-1]
    assert (last["event"], said in last["message"]) == ("error", True)
    assert (await shown(product, server))["sign_in"]["state"] == "needed"
    assert is_refused(await came_back(product, location), said="was used before")


async def test_a_server_that_was_moved_meanwhile_gets_no_token(product: Product, notes: AuthorizingServer) -> None:
    server, location = await begun(product, notes)
    moved = {"config": {"server_url": "http://127.0.0.1:9999/mcp"}}
    assert (await product.http.patch(f"/v1/mcp-servers/{server['id']}", json=moved)).is_success
    assert is_refused(await came_back(product, location), said="address was changed")
    assert (await shown(product, server))["auth_token"] is None


async def last_event(product: Product, notes: AuthorizingServer) -> dict[str, Any]:
    return (await of_stored(product, await stored(product, notes)).read())[-1]


PRIVATE = "http://10.1.2.3"


async def test_a_server_that_names_a_private_authorization_server_has_it_not_asked(
    product: Product, notes: AuthorizingServer
) -> None:
    named = f'{{"resource": "{notes.url}", "authorization_servers": ["{PRIVATE}"]}}'.encode()
    notes.acts["/.well-known/oauth-protected-resource/mcp"] = answers(200, named, content_type="application/json")
    last = await last_event(product, notes)
    assert (last["event"], "not at a public address" in last["message"]) == ("error", True)


async def test_a_redirect_of_an_authorization_server_is_not_followed(
    product: Product, notes: AuthorizingServer
) -> None:
    _, location = await begun(product, notes)
    notes.acts["/token"] = answers(307, b"", location=f"{PRIVATE}/token")
    assert is_refused(await came_back(product, location), said="HTTP 307")
    for path in ("/.well-known/oauth-authorization-server", "/register"):
        notes.acts[path] = answers(307, b"", location=f"{PRIVATE}/")
    again = (await product.http.get("/v1/mcp-servers")).json()[0]
    last = (await of_stored(product, again).read())[-1]
    assert last["event"] == "error"


async def test_a_token_endpoint_at_a_private_address_is_not_asked(product: Product, notes: AuthorizingServer) -> None:
    metadata = (
        f'{{"issuer": "{notes.origin}/", "authorization_endpoint": "{notes.origin}/authorize", '
        f'"registration_endpoint": "{notes.origin}/register", "token_endpoint": "{PRIVATE}/token"}}'
    )
    notes.acts["/.well-known/oauth-authorization-server"] = answers(200, metadata.encode())
    _, location = await begun(product, notes)
    assert is_refused(await came_back(product, location), said="not at a public address")


async def endless(send: Send) -> None:
    """100 MB, if somebody reads them."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    for _ in range(100):
        await send({"type": "http.response.body", "body": b" " * 1_000_000, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (endless, f"more than {ANSWER_BYTES} bytes"),
        (answers(200, b"\x00\xff no token"), "without a token"),
        (answers(200, b'{"access_token": "a", "token_type": "mac"}'), "without a token"),
        (answers(200, b'{"access_token": "a\\nb", "token_type": "bearer"}'), "cannot be sent back"),
        (answers(200, b'{"access_token": "", "token_type": "bearer"}'), "cannot be sent back"),
        (answers(200, b"{}" * 10, content_encoding="gzip"), "compressed"),
        (answers(500, b"secret words of a stranger"), "HTTP 500"),
        (answers(400, b'{"error": "secret words of a stranger"}'), "HTTP 400"),
    ],
    ids=["100 MB", "garbage", "another type", "a line break", "empty", "compressed", "fails", "no code of OAuth's"],
)
async def test_a_token_endpoint_that_answers_badly_signs_nobody_in(
    product: Product, notes: AuthorizingServer, act: Any, said: str
) -> None:
    server, location = await begun(product, notes)
    notes.acts["/token"] = act
    answer = await came_back(product, location)
    assert is_refused(answer, said=said), answer.text
    assert "stranger" not in answer.text
    assert (await shown(product, server))["auth_token"] is None


async def test_a_renewal_that_fails_is_no_end_of_the_sign_in(product: Product, notes: AuthorizingServer) -> None:
    server = await signed_in(product, notes)
    notes.access.clear()
    notes.acts["/token"] = answers(503, b"")
    refresh = f"/v1/mcp-servers/{server['id']}/refresh"
    failed = await product.http.patch(refresh)
    assert (failed.status_code, failed.json()["code"]) == (502, "mcp_server_unavailable")
    assert (await shown(product, server))["sign_in"]["state"] == "signed_in"
    del notes.acts["/token"]
    assert (await product.http.patch(refresh)).status_code == 200


async def test_an_authorization_server_that_registers_nobody_is_said(
    product: Product, notes: AuthorizingServer
) -> None:
    notes.acts["/register"] = answers(403, b"secret words of a stranger")
    last = await last_event(product, notes)
    assert (last["event"], "auth_token" in last["message"], "stranger" in last["message"]) == ("error", True, False)


@pytest.mark.parametrize("settings", [{"reachable_networks": "127.0.0.0/8", "api_keys": KEYS}])
async def test_a_key_that_may_only_read_signed_the_project_in_with_an_account_of_its_own(
    product: Product, notes: AuthorizingServer
) -> None:
    """Every agent of the project then sent what it wrote to that account."""
    product.http.headers["Authorization"] = f"Bearer {KEYS.split(',')[0].partition('=')[2]}"
    server = await stored(product, notes)

    async def key(scope: str) -> dict[str, str]:
        made = await product.http.post("/v1/admin/keys", json={"name": scope, "scopes": [scope]})
        return {"Authorization": f"Bearer {made.json()['key']}"}

    path = f"/v1/mcp-servers/connect/{server['id']}"
    async with product.http.stream("GET", path, headers=await key("read")) as refused:
        assert refused.status_code == 403, "no sign-in was begun"
        assert b"needs a key with the scope write" in await refused.aread()
    assert (notes.grants, (await shown(product, server))["sign_in"]["state"]) == ([], "needed")

    writing = await key("write")
    connecting = Connecting(product, "GET", path, headers=writing)
    async with asyncio.TaskGroup() as group:
        group.create_task(connecting.read())
        assert (await came_back(product, await consented(await connecting.url))).status_code == 200
    assert (await shown(product, server))["sign_in"]["state"] == "signed_in"
