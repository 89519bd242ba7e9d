"""Stored keys for tests, made as the product makes them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from secrets import token_bytes

from api.access.accepted_keys import Issued, KeyIssuer
from api.access.callers import DEFAULT_PROJECT, Caller, Credential
from shared.concurrency import Clock, SystemClock
from shared.domain.ids import IdMaker, ProjectId
from shared.sql.access.api_keys import ApiKeyStore
from shared.sql.engine import Database


def issuer_of(
    database: Database, clock: Clock | None = None, random: Callable[[int], bytes] = token_bytes
) -> KeyIssuer:
    """Makes keys in a database."""
    return KeyIssuer(keys=ApiKeyStore(database), clock=clock or SystemClock(), ids=IdMaker(), random=random)


@dataclass(frozen=True)
class KeyMaker:
    """Makes keys of one project."""

    database: Database
    project_id: ProjectId = DEFAULT_PROJECT
    clock: Clock = field(default_factory=SystemClock)

    async def __call__(self, *scopes: str, expires_at: datetime | None = None) -> Issued:
        """Makes a key with these scopes."""
        issuer = issuer_of(self.database, self.clock)
        return await issuer.create(self.project_id, "test", scopes, expires_at=expires_at, by="a test")

    async def headers(self, *scopes: str) -> dict[str, str]:
        """Returns the headers of a request with a new key."""
        return bearer(await self(*scopes))


def bearer(issued: Issued) -> dict[str, str]:
    """The headers of a request with this key."""
    return {"Authorization": f"Bearer {issued.secret}"}


def credential_of(caller: Caller) -> Credential:
    """What a stream of this caller is open with."""
    return Credential(caller.key_id, caller.proof)
