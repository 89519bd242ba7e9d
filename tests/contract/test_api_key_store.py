"""Stored keys: what is kept of them, how they are found, and how they end."""

from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest
import sqlalchemy as sa

from shared.domain.api_keys import digest_of
from shared.domain.errors import Conflict, InvalidRequest, NotFound
from shared.domain.ids import KeyId, ProjectId
from shared.sql.access.api_keys import ApiKeyStore
from shared.sql.engine import Database
from shared.sql.tables import api_key_secrets, api_keys, audit_events
from tests.kit.clocks import FrozenClock
from tests.kit.keys import KeyMaker, issuer_of
from tests.kit.services.databases import open_database

OTHER = ProjectId("other")
UNKNOWN_AGENT = "agent-11111111-1111-4111-8111-111111111111"


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    async with open_database(database_url) as database:
        yield database


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
def make(database: Database, clock: FrozenClock) -> KeyMaker:
    return KeyMaker(database, clock=clock)


@pytest.fixture
def store(database: Database) -> ApiKeyStore:
    return ApiKeyStore(database)


async def is_valid(store: ApiKeyStore, secret: str, clock: FrozenClock) -> bool:
    found = await store.of_digest(digest_of(secret.encode()))
    return found is not None and found.is_valid(clock.now())


async def test_no_secret_is_stored(database: Database, make: KeyMaker) -> None:
    issued = await make("write")
    rows: list[str] = []
    async with database.read() as connection:
        for table in (api_keys, api_key_secrets, audit_events):
            rows += [str(tuple(row)) for row in await connection.execute(sa.select(table))]
    assert any(digest_of(issued.secret.encode()) in row for row in rows)
    assert not [row for row in rows if issued.secret in row or issued.secret[len(issued.key.prefix) :] in row]


async def test_a_key_is_found_by_its_secret(store: ApiKeyStore, make: KeyMaker, clock: FrozenClock) -> None:
    assert not await store.has_any()
    issued = await make("read")
    await make("write")

    found = await store.of_digest(digest_of(issued.secret.encode()))

    assert found is not None
    assert found.key == issued.key == await store.get(None, issued.key.id)
    assert found.is_valid(clock.now())
    assert await store.of_digest(digest_of(b"another")) is None
    assert await store.has_any()


async def test_a_key_expires(database: Database, store: ApiKeyStore, make: KeyMaker, clock: FrozenClock) -> None:
    issued = await make("read", expires_at=clock.now() + timedelta(seconds=10))
    clock.advance(9_999)
    assert await is_valid(store, issued.secret, clock)
    clock.advance(1)
    assert not await is_valid(store, issued.secret, clock)
    with pytest.raises(Conflict, match="expired"):
        await issuer_of(database, clock).rotate(None, issued.key.id, 0)


async def test_a_revoked_key_is_ended_for_ever_and_still_counts(
    database: Database, store: ApiKeyStore, make: KeyMaker, clock: FrozenClock
) -> None:
    issued = await make("admin")
    revoked = await store.revoke(make.project_id, issued.key.id, clock.now())
    clock.advance(1000)
    again = await store.revoke(make.project_id, issued.key.id, clock.now())

    assert revoked == again
    assert not await is_valid(store, issued.secret, clock)
    assert await store.has_any(), "a server that has had a key never opens itself again"
    with pytest.raises(Conflict, match="revoked"):
        await issuer_of(database, clock).rotate(None, issued.key.id, 0)


async def test_an_old_secret_goes_on_for_the_grace(
    database: Database, store: ApiKeyStore, make: KeyMaker, clock: FrozenClock
) -> None:
    first = await make("read")
    second = await issuer_of(database, clock).rotate(make.project_id, first.key.id, 10)
    third = await issuer_of(database, clock).rotate(make.project_id, first.key.id, 3600)

    assert len({first.secret, second.secret, third.secret}) == 3
    assert third.key.prefix == third.secret[: len(third.key.prefix)]
    assert [await is_valid(store, one.secret, clock) for one in (first, second, third)] == [True, True, True]
    clock.advance(10_000)
    assert [await is_valid(store, one.secret, clock) for one in (first, second, third)] == [False, True, True]
    fourth = await issuer_of(database, clock).rotate(make.project_id, first.key.id, 0)
    assert [await is_valid(store, one.secret, clock) for one in (second, third, fourth)] == [False, False, True]


async def test_a_grace_is_bounded(database: Database, make: KeyMaker) -> None:
    issued = await make("read")
    for grace_s in (-1, 10**9):
        with pytest.raises(InvalidRequest):
            await issuer_of(database).rotate(None, issued.key.id, grace_s)


async def test_a_key_of_another_project_is_not_found(
    database: Database, store: ApiKeyStore, make: KeyMaker, clock: FrozenClock
) -> None:
    issued = await make("read")
    with pytest.raises(NotFound):
        await store.revoke(OTHER, issued.key.id, clock.now())
    with pytest.raises(NotFound):
        await issuer_of(database, clock).rotate(OTHER, issued.key.id, 0)
    with pytest.raises(NotFound):
        await store.get(None, KeyId("key-1"))
    assert await store.list_all(OTHER) == []
    assert await store.list_all() == [issued.key]


async def test_a_key_is_not_made_for_an_agent_that_the_project_does_not_have(
    store: ApiKeyStore, make: KeyMaker
) -> None:
    with pytest.raises(NotFound, match=UNKNOWN_AGENT):
        await make("read", f"agent:{UNKNOWN_AGENT}")
    assert not await store.has_any()


async def test_the_last_use_is_written_once_a_minute(store: ApiKeyStore, make: KeyMaker, clock: FrozenClock) -> None:
    issued = await make("read")
    noted = list[int]()
    for _ in range(5):
        await store.note_use(issued.key.id, clock.now(), every=timedelta(minutes=1))
        used_at = (await store.get(None, issued.key.id)).last_used_at
        assert used_at is not None
        noted.append(int((used_at - issued.key.created_at).total_seconds()))
        clock.advance(25_000)
    assert noted == [0, 0, 0, 75, 75]
