"""New keys and new secrets, for the API and the command line alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from shared.concurrency import Clock
from shared.domain.api_keys import LONGEST_GRACE_S, SECRET_BYTES, ApiKey, Scopes, check_new_key, new_secret
from shared.domain.errors import InvalidRequest
from shared.domain.ids import IdMaker, KeyId, ProjectId
from shared.sql.access.api_keys import ApiKeyStore


class Issued(NamedTuple):
    """A key and its new secret, which nobody can look up later."""

    key: ApiKey
    secret: str


@dataclass(frozen=True, kw_only=True)
class KeyIssuer:
    """Makes keys and rotates them."""

    keys: ApiKeyStore
    clock: Clock
    ids: IdMaker
    random: Callable[[int], bytes]
    """So many random bytes that nobody can foresee."""

    async def create(
        self, project_id: ProjectId, name: str, scopes: Sequence[str], *, expires_at: datetime | None, by: str
    ) -> Issued:
        """Makes a key. Raises `InvalidRequest`, and `NotFound` for an agent that the project does not have."""
        now = self.clock.now()
        check_new_key(name, expires_at, now)
        secret = new_secret(self.random(SECRET_BYTES))
        key = ApiKey(
            id=self.ids.key(),
            project_id=project_id,
            name=name.strip(),
            scopes=Scopes.parse(scopes).texts(),
            prefix=secret.prefix,
            created_at=now,
            created_by=by,
            expires_at=expires_at,
        )
        return Issued(await self.keys.create(key, secret, token_secret=self.random(SECRET_BYTES)), secret.text)

    async def rotate(self, project_id: ProjectId | None, key_id: KeyId, grace_s: int) -> Issued:
        """Gives the key a new secret; earlier ones go on for the grace. Raises as `ApiKeyStore.rotate`."""
        if not 0 <= grace_s <= LONGEST_GRACE_S:
            raise InvalidRequest(f"the grace is from 0 to {LONGEST_GRACE_S} seconds", field="grace_s")
        secret = new_secret(self.random(SECRET_BYTES))
        key = await self.keys.rotate(
            project_id,
            key_id,
            secret,
            grace=timedelta(seconds=grace_s),
            now=self.clock.now(),
            token_secret=self.random(SECRET_BYTES),
        )
        return Issued(key, secret.text)
