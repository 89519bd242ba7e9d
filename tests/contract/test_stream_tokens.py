"""Tokens for streams: one run, one project, one time, and the key that made them."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import pytest
from starlette.exceptions import HTTPException

from api.access.accepted_keys import AcceptedKeys, StreamTokens, end_of_token
from api.access.callers import ANONYMOUS, Caller, ConfiguredKeys
from shared.domain.api_keys import Level, Scopes
from shared.domain.errors import Unavailable
from shared.domain.ids import RunId
from shared.sql.access.api_keys import ApiKeyStore
from shared.sql.engine import Database
from tests.kit.clocks import FrozenClock
from tests.kit.keys import KeyMaker, issuer_of
from tests.kit.services.databases import open_database

NOW = datetime(2026, 1, 2, 3, 4, 5, 600_000, tzinfo=UTC)
RUN = RunId("run-1")
LISTED = "one=k1,two=k2"


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    async with open_database(database_url) as database:
        yield database


def tokens_of(database: Database, configured: str = LISTED, clock: FrozenClock | None = None) -> StreamTokens:
    """Those of another process each time."""
    keys = AcceptedKeys(ConfiguredKeys.parse(configured), ApiKeyStore(database), clock or FrozenClock())
    return StreamTokens(keys)


def caller(secret: str, configured: str = LISTED) -> Caller:
    found = ConfiguredKeys.parse(configured).find(secret.encode())
    assert found is not None
    return found.caller


async def test_a_token_is_known_to_every_process_with_its_key(database: Database) -> None:
    token = await tokens_of(database).make(caller("k2"), RUN, end_of_token(NOW, 60))

    reader = await tokens_of(database, "two=k2").caller_of(token, RUN, NOW)

    assert (reader.project_id, reader.key_id, reader.scopes.level) == ("two", caller("k2").key_id, Level.READ)


async def test_a_token_ends_by_its_time(database: Database) -> None:
    ours = tokens_of(database)
    token = await ours.make(caller("k2"), RUN, end_of_token(NOW, 60))
    assert await ours.caller_of(token, RUN, NOW + timedelta(seconds=59))
    with pytest.raises(HTTPException, match="expired"):
        await ours.caller_of(token, RUN, NOW + timedelta(seconds=60))


async def test_a_token_is_for_one_run_and_for_the_key_that_made_it(database: Database) -> None:
    token = await tokens_of(database).make(caller("k2"), RUN, end_of_token(NOW, 60))
    with pytest.raises(HTTPException, match="not valid for this run"):
        await tokens_of(database).caller_of(token, RunId("run-2"), NOW)
    with pytest.raises(HTTPException, match="key is unknown"):
        await tokens_of(database, "one=k1,two=k3").caller_of(token, RUN, NOW)
    expires, _, rest = token.partition(".")
    for forged in (f"{int(expires) + 60}.{rest}", token.replace(caller("k2").key_id, caller("k1").key_id)):
        with pytest.raises(HTTPException, match="not valid for this run"):
            await tokens_of(database).caller_of(forged, RUN, NOW)


async def test_a_token_of_an_open_server_ends_when_the_server_asks_for_keys(database: Database) -> None:
    token = await tokens_of(database, "").make(ANONYMOUS, RUN, end_of_token(NOW, 60))
    reader = await tokens_of(database, "").caller_of(token, RUN, NOW)
    assert (reader.project_id, reader.scopes) == (ANONYMOUS.project_id, Scopes(Level.READ))
    with pytest.raises(HTTPException, match="key is unknown"):
        await tokens_of(database).caller_of(token, RUN, NOW)


async def test_a_token_ends_with_the_stored_key_that_made_it(database: Database) -> None:
    clock = FrozenClock()
    issued = await KeyMaker(database, clock=clock)("read", expires_at=clock.now() + timedelta(hours=1))
    keys = AcceptedKeys(ConfiguredKeys(), ApiKeyStore(database), clock)
    found = await keys.find(issued.secret.encode())
    assert found is not None
    ends = end_of_token(clock.now(), 3 * 3600)
    token = await StreamTokens(keys).make(found.caller, RUN, ends)
    assert await tokens_of(database, "", clock).caller_of(token, RUN, clock.now())

    revoked, expired = tokens_of(database, "", clock), tokens_of(database, "", clock)
    clock.advance(3_600_000)
    with pytest.raises(HTTPException, match="no longer valid"):
        await expired.caller_of(token, RUN, clock.now())
    clock.advance(-3_600_000)
    await ApiKeyStore(database).revoke(None, issued.key.id, clock.now())
    with pytest.raises(HTTPException, match="no longer valid"):
        await revoked.caller_of(token, RUN, clock.now())


@pytest.mark.parametrize(("grace_s", "goes_on"), [(60, True), (0, False)])
async def test_a_rotation_at_once_ends_the_tokens_too(database: Database, grace_s: int, goes_on: bool) -> None:
    clock = FrozenClock()
    issued = await KeyMaker(database, clock=clock)("read")
    found = await ApiKeyStore(database).of_id(issued.key.id)
    assert found is not None
    maker = Caller(found.key.project_id, found.key.id, caller("k1").scopes)
    token = await tokens_of(database, "", clock).make(maker, RUN, end_of_token(clock.now(), 60))
    await issuer_of(database, clock).rotate(None, issued.key.id, grace_s)
    reading = tokens_of(database, "", clock).caller_of(token, RUN, clock.now())
    if goes_on:
        assert await reading
        return
    with pytest.raises(HTTPException):
        await reading


async def test_a_token_of_a_key_that_is_not_known_is_no_401_while_the_database_is_away() -> None:
    database = Database("postgresql://127.0.0.1:9/nothing")
    try:
        with pytest.raises(Unavailable):
            await tokens_of(database).caller_of("99999999999.key-1.x", RUN, NOW)
    finally:
        await database.aclose()
