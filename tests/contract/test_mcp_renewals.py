"""Tokens of sign-ins at MCP servers that are renewed by several processes at once: one refresh token is used once."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from msgspec.structs import replace

from shared.concurrency import SystemClock
from shared.domain.errors import McpSignInNeeded, Unavailable
from shared.domain.mcp_servers import Grant, McpServer, McpTarget
from shared.mcp.signed_in import CLAIM, AuthorizationServers, SignedIn, signed_in
from shared.mcp.targets import grant_of, target_of, with_grant
from shared.network.checked_http import NetworkRules
from shared.secret_keys import SecretKeys
from shared.sql.definitions.mcp_servers import McpServerStore
from shared.sql.engine import Database
from tests.kit.mcp.authorizing import AuthorizingServer, authorizing_server, consented
from tests.kit.runs.definitions import PROJECT, some_server
from tests.kit.services.databases import patient_database
from tests.kit.wait_until import wait_until

LOOPBACK = NetworkRules.of("127.0.0.0/8", "")
KEYS = SecretKeys({"k1": bytes(32)})
CLOCK = SystemClock()
REDIRECT = "http://127.0.0.1:8283/v1/tools/mcp/oauth/callback"
Start = Callable[..., SignedIn]


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    opened = patient_database(database_url)
    yield opened
    await opened.aclose()


@pytest.fixture
async def notes() -> AsyncGenerator[AuthorizingServer]:
    async with authorizing_server() as server:
        yield server


@pytest.fixture
async def store(database: Database) -> McpServerStore:
    return McpServerStore(database)


@pytest.fixture
async def start(store: McpServerStore) -> AsyncGenerator[Start]:
    """Starts what a process has."""
    made: list[tuple[SignedIn, AuthorizationServers]] = []

    def started(**bounds: float) -> SignedIn:
        servers, name = AuthorizationServers(LOOPBACK, **bounds), f"process {len(made)}"
        made.append((SignedIn(store, servers, KEYS, CLOCK, lambda: name), servers))
        return made[-1][0]

    yield started
    for process, servers in made:
        await process.aclose()
        await servers.aclose()


@pytest.fixture
async def server(store: McpServerStore, notes: AuthorizingServer) -> McpServer:
    """A server at which a person has signed in, and whose token has ended."""
    authorization = await AuthorizationServers(LOOPBACK).ready()
    plain = some_server("notes", url=notes.url)
    begun = await authorization.begin(target_of(plain, KEYS), REDIRECT, None)
    code = httpx2.URL(await consented(begun.url)).params["code"]
    grant = await authorization.redeem(begun.request, code, CLOCK.now())
    ended = replace(grant, expires_at=CLOCK.now() - timedelta(seconds=1))
    notes.grants.clear()
    return await store.create(with_grant(plain, ended, signed_in(ended, CLOCK.now()), KEYS))


async def token_of(target: McpTarget) -> str:
    return target.headers["Authorization"].removeprefix("Bearer ")


def stored_grant(server: McpServer) -> Grant:
    grant = grant_of(server, KEYS)
    assert grant is not None
    return grant


async def test_two_processes_used_one_refresh_token_twice(
    start: Start, server: McpServer, notes: AuthorizingServer
) -> None:
    notes.answering.clear()
    processes = [start() for _ in range(4)]
    async with asyncio.TaskGroup() as group:
        # Twice in each process, too.
        asked = [group.create_task(process.asked(server, token_of)) for process in processes for _ in range(2)]
        await wait_until(lambda: len(notes.grants) == 1, description="a renewal to be asked for")
        notes.answering.set()
    assert (notes.grants, notes.reused) == (["refresh_token"], 0)
    [token] = {task.result() for task in asked}
    assert token in notes.access


async def test_a_renewal_that_nobody_waits_for_any_more_is_stored(
    start: Start, server: McpServer, store: McpServerStore, notes: AuthorizingServer
) -> None:
    notes.answering.clear()
    process = start()
    asking = asyncio.get_running_loop().create_task(process.asked(server, token_of))
    await wait_until(lambda: len(notes.grants) == 1, description="a renewal to be asked for")
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    notes.answering.set()
    await process.aclose()
    assert stored_grant(await store.get(PROJECT, server.id)).access_token in notes.access
    assert await start().asked(await store.get(PROJECT, server.id), token_of) in notes.access
    assert (notes.grants, notes.reused) == (["refresh_token"], 0)


async def test_a_claim_of_a_lost_process_ends(start: Start, server: McpServer, store: McpServerStore) -> None:
    now = CLOCK.now()
    assert await store.claim_renewal(server, "lost", now=now - CLAIM, until=now) is not None
    assert await store.claim_renewal(server, "another", now=now - timedelta(seconds=1), until=now) is None
    assert await start().asked(server, token_of)
    late = await store.settle_renewal(server, "lost", lambda before: replace(before, problem="late"), now=now)
    assert late.problem == ""


async def test_a_sign_in_meanwhile_is_not_overwritten(
    start: Start, server: McpServer, store: McpServerStore, notes: AuthorizingServer
) -> None:
    notes.answering.clear()
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(start().asked(server, token_of))
        await wait_until(lambda: len(notes.grants) == 1, description="a renewal to be asked for")
        newer = replace(stored_grant(server), access_token="of-the-person", expires_at=None)

        def again(before: McpServer) -> McpServer:
            return with_grant(before, newer, signed_in(newer, CLOCK.now()), KEYS)

        await store.update(PROJECT, server.id, again, now=CLOCK.now())
        notes.answering.set()
    assert asked.result() == "of-the-person"


async def test_what_is_refused_ends_the_sign_in_for_every_process(
    start: Start, server: McpServer, store: McpServerStore, notes: AuthorizingServer
) -> None:
    notes.forget()
    for process in (start(), start()):
        with pytest.raises(McpSignInNeeded, match="sign in again"):
            await process.asked(server, token_of)
    assert notes.grants == ["refresh_token"]
    after = await store.get(PROJECT, server.id)
    assert after.sign_in is not None
    assert (after.sign_in.state, stored_grant(after).refresh_token) == ("needed", None)


async def test_an_authorization_server_that_never_answers_is_given_up(
    start: Start, server: McpServer, notes: AuthorizingServer
) -> None:
    notes.answering.clear()
    began = time.monotonic()
    with pytest.raises(Unavailable, match=r"has not answered within 0\.2 s"):
        await start(within_s=0.2).asked(server, token_of)
    assert time.monotonic() - began < 10


async def test_a_claim_whose_answer_was_lost_is_made_again(store: McpServerStore, server: McpServer) -> None:
    now = CLOCK.now()
    claims: list[Awaitable[Any]] = [store.claim_renewal(server, "one", now=now, until=now + CLAIM) for _ in range(2)]
    assert [await claim is not None for claim in claims] == [True, True]
    changed = [
        await store.settle_renewal(server, "one", lambda before: replace(before, problem="once"), now=now)
        for _ in range(2)
    ]
    assert [one.problem for one in changed] == ["once", "once"]
    assert await store.claim_renewal(server, "two", now=now, until=now + CLAIM) is not None
