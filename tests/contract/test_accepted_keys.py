"""Keys as a process knows them: without a query per request, never for longer than it should, and never opened by
mistake."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from sqlalchemy.engine import make_url

from api.access.accepted_keys import FRESH_S, AcceptedKeys
from api.access.callers import ANONYMOUS, ConfiguredKeys
from shared.domain.errors import Unavailable
from shared.sql.access.api_keys import ApiKeyStore
from shared.sql.engine import Database
from tests.kit.clocks import FrozenClock
from tests.kit.keys import KeyMaker, bearer, credential_of, issuer_of
from tests.kit.product.in_process import api_client
from tests.kit.services.databases import open_database, statements
from tests.kit.services.tcp_proxy import TcpProxy

FRESH_MS = int(FRESH_S * 1000)


@asynccontextmanager
async def behind_proxy(postgres_url: str) -> AsyncGenerator[tuple[Database, TcpProxy]]:
    """The database, by way of a proxy that can cut it off."""
    url = make_url(postgres_url)
    async with TcpProxy(url.port or 5432).serving() as proxy:
        by_proxy = url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
        async with open_database(by_proxy) as database:
            yield database, proxy


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    async with open_database(database_url) as database:
        yield database


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


def keys_of(database: Database, clock: FrozenClock, configured: str = "") -> AcceptedKeys:
    """Those of another process each time."""
    return AcceptedKeys(ConfiguredKeys.parse(configured), ApiKeyStore(database), clock)


async def is_known(keys: AcceptedKeys, secret: str) -> bool:
    return await keys.find(secret.encode()) is not None


async def test_a_known_key_costs_no_query(database: Database, clock: FrozenClock) -> None:
    issued, keys = await KeyMaker(database, clock=clock)("write"), keys_of(database, clock)
    assert await is_known(keys, issued.secret)
    assert await keys.are_required()
    with statements() as asked:
        for _ in range(1000):
            assert await is_known(keys, issued.secret)
            assert await keys.are_required()
    assert asked == []
    clock.advance(FRESH_MS)
    with statements() as asked:
        for _ in range(1000):
            assert await is_known(keys, issued.secret)
    assert len(asked) == 1


async def test_every_process_learns_of_a_revocation_in_time(database: Database, clock: FrozenClock) -> None:
    issued = await KeyMaker(database, clock=clock)("write")
    first, second = keys_of(database, clock), keys_of(database, clock)
    assert await is_known(first, issued.secret)
    assert await is_known(second, issued.secret)

    await ApiKeyStore(database).revoke(None, issued.key.id, clock.now())
    first.forget()

    assert not await is_known(first, issued.secret), "the process that revoked it knows at once"
    clock.advance(FRESH_MS)
    assert not await is_known(second, issued.secret)


@pytest.mark.parametrize(
    ("change", "is_secret_valid", "is_token_valid"),
    [
        pytest.param("none", True, True, id="no change"),
        pytest.param("revoke", False, False, id="revoked"),
        pytest.param("expire", False, False, id="expired"),
        pytest.param("rotate", False, False, id="rotated at once"),
        pytest.param("rotate with grace", True, True, id="within the grace of a rotation"),
        pytest.param("grace is over", False, True, id="after the grace of a rotation"),
    ],
)
async def test_what_a_stream_was_opened_with_held_for_as_long_as_the_stream(
    database: Database, clock: FrozenClock, change: str, is_secret_valid: bool, is_token_valid: bool
) -> None:
    issued = await KeyMaker(database, clock=clock)("read", expires_at=clock.now() + timedelta(hours=1))
    keys = keys_of(database, clock)
    found, signer = await keys.find(issued.secret.encode()), await keys.signer(issued.key.id)
    assert found is not None
    assert signer is not None

    if change == "revoke":
        await ApiKeyStore(database).revoke(None, issued.key.id, clock.now())
    elif change == "rotate":
        await issuer_of(database, clock).rotate(None, issued.key.id, 0)
    elif change != "none":
        await issuer_of(database, clock).rotate(None, issued.key.id, 60)
    clock.advance({"expire": 3_600_000, "grace is over": 60_000}.get(change, FRESH_MS))

    assert await keys.still_hold(credential_of(found.caller)) is is_secret_valid
    assert await keys.still_hold(credential_of(signer.caller)) is is_token_valid


async def test_streams_of_configured_keys_stay_and_those_of_an_open_server_end_with_its_first_key(
    database: Database, clock: FrozenClock
) -> None:
    configured, opened = keys_of(database, clock, "ours=a-secret"), keys_of(database, clock)
    found = await configured.find(b"a-secret")
    assert found is not None
    assert await configured.still_hold(credential_of(found.caller))
    assert await opened.still_hold(credential_of(ANONYMOUS))
    await KeyMaker(database, clock=clock)("read")
    clock.advance(FRESH_MS)
    assert not await opened.still_hold(credential_of(ANONYMOUS))


async def test_a_known_key_ends_by_its_time_without_a_query(database: Database, clock: FrozenClock) -> None:
    expires = await KeyMaker(database, clock=clock)("read", expires_at=clock.now() + timedelta(seconds=1))
    rotated = await KeyMaker(database, clock=clock)("read")
    await issuer_of(database, clock).rotate(None, rotated.key.id, 1)
    keys = keys_of(database, clock)
    assert await is_known(keys, expires.secret)
    assert await is_known(keys, rotated.secret)
    clock.advance(1000)
    with statements() as asked:
        assert not await is_known(keys, expires.secret)
        assert not await is_known(keys, rotated.secret)
    assert asked == []


async def test_a_mistyped_key_costs_no_query(database: Database, clock: FrozenClock) -> None:
    issued = await KeyMaker(database, clock=clock)("read")
    keys = keys_of(database, clock)
    with statements() as asked:
        for wrong in ("", "secret", issued.secret[:-1], issued.secret.swapcase()):
            assert not await is_known(keys, wrong)
    assert asked == []


async def test_known_keys_go_on_while_the_database_is_away_and_unknown_ones_are_no_401(
    postgres_url: str, clock: FrozenClock
) -> None:
    async with behind_proxy(postgres_url) as (database, proxy):
        maker = KeyMaker(database, clock=clock)
        known, unknown = await maker("read"), await maker("read")
        keys = keys_of(database, clock)
        assert await is_known(keys, known.secret)
        assert await keys.are_required()
        proxy.refuse()
        for _ in range(3):
            clock.advance(FRESH_MS)
            assert await is_known(keys, known.secret)
            assert await keys.are_required()
        with pytest.raises(Unavailable):
            await is_known(keys, unknown.secret)
        await proxy.accept()
        assert await is_known(keys, unknown.secret)


async def test_the_use_of_a_key_is_noted(database: Database, clock: FrozenClock) -> None:
    issued, keys = await KeyMaker(database, clock=clock)("read"), keys_of(database, clock)
    for _ in range(30):
        assert await is_known(keys, issued.secret)
        clock.advance(1000 * 3)
    used_at = (await ApiKeyStore(database).get(None, issued.key.id)).last_used_at
    assert used_at is not None
    assert timedelta(seconds=60) <= used_at - issued.key.created_at <= timedelta(seconds=66)


async def test_what_a_process_knows_is_bounded(database: Database, clock: FrozenClock) -> None:
    maker = KeyMaker(database, clock=clock)
    secrets = [(await maker("read")).secret for _ in range(3)]
    keys = AcceptedKeys(ConfiguredKeys(), ApiKeyStore(database), clock, most_known=2)
    for secret in secrets:
        assert await is_known(keys, secret)
    with statements() as asked:
        assert [await is_known(keys, secret) for secret in reversed(secrets)] == [True] * 3
    assert len(asked) == 1, "the one that was used longest ago"


async def test_an_open_server_closes_with_the_first_key_and_never_opens_again(
    database: Database, clock: FrozenClock
) -> None:
    keys = keys_of(database, clock)
    assert not await keys.are_required()

    issued = await KeyMaker(database, clock=clock)("admin")

    assert not await keys.are_required(), "within the time that is stated"
    clock.advance(FRESH_MS)
    assert await keys.are_required()
    await ApiKeyStore(database).revoke(None, issued.key.id, clock.now())
    clock.advance(FRESH_MS)
    assert await keys.are_required()
    assert await keys_of(database, clock).are_required(), "also after a start"


async def test_a_server_that_is_open_stays_as_it_is_while_the_database_is_away(
    postgres_url: str, clock: FrozenClock
) -> None:
    async with behind_proxy(postgres_url) as (database, proxy):
        known, unknown = keys_of(database, clock), keys_of(database, clock)
        assert not await known.are_required()
        proxy.refuse()
        clock.advance(FRESH_MS)
        assert not await known.are_required()
        with pytest.raises(Unavailable):
            await unknown.are_required()
        assert await keys_of(database, clock, "one=k1").are_required(), "a configured key needs no database"


async def test_a_server_is_open_to_this_machines_pages_until_it_has_a_key(database: Database) -> None:
    async with api_client(database) as http:
        foreign = {"Origin": "https://evil.example"}
        assert (await http.get("/v1/agents", headers=foreign)).status_code == 403
        made = await http.post("/v1/admin/keys", json={"name": "first", "scopes": ["admin"]})
        assert made.status_code == 200
        assert (await http.get("/v1/agents")).status_code == 401
        key = {"Authorization": f"Bearer {made.json()['key']}"}
        assert (await http.get("/v1/agents", headers=key | foreign)).status_code == 200


async def test_a_wrong_key_is_slowed_down_and_the_right_ones_are_not(database: Database) -> None:
    """Failed keys were not limited."""
    issued = await KeyMaker(database)("read")
    async with api_client(database, api_keys="default=short") as http:
        statuses = [
            (await http.get("/v1/agents", headers={"Authorization": f"Bearer {number}"})).status_code
            for number in range(40)
        ]
        assert statuses == [401] * 30 + [429] * 10
        refused = await http.get("/v1/agents", headers={"Authorization": "Bearer short"})
        assert (refused.status_code, "wrong API keys" in refused.text) == (429, True), "somebody may have found it"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert (await http.get("/v1/agents", headers=bearer(issued))).status_code == 200
