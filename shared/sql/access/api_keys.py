"""Stored keys. The transaction of each change also records it in the audit log."""

import hmac
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy import RowMapping

from shared.domain.api_keys import ApiKey, Scopes, Secret
from shared.domain.errors import Conflict, NotFound
from shared.domain.ids import AgentId, KeyId, ProjectId, is_id
from shared.sql.access.audit import record
from shared.sql.connection import Connection
from shared.sql.engine import Store
from shared.sql.paging import Page, rows_of_page
from shared.sql.run_tables import approvals, runs, steps
from shared.sql.tables import agents, api_key_secrets, api_keys, conversations, fields_of, from_json, messages, to_json


class FoundKey(NamedTuple):
    """A key that a lookup found by one of its secrets or by its id."""

    key: ApiKey
    token_secret: bytes
    valid_until: datetime | None = None
    """When the secret ends before its key does."""

    def is_valid(self, now: datetime) -> bool:
        """Whether this secret still authenticates."""
        return self.key.is_valid(now) and (self.valid_until is None or self.valid_until > now)


class ApiKeyStore(Store):
    """Reads and writes keys."""

    async def create(self, key: ApiKey, secret: Secret, *, token_secret: bytes) -> ApiKey:
        """Stores a key. Raises `NotFound` for an agent in its scopes that the project does not have."""
        async with self._database.write() as connection:
            await _refuse_unknown_agents(connection, key)
            values = {**msgspec.structs.asdict(key), "scopes": to_json(key.scopes), "token_secret": token_secret}
            await connection.execute(sa.insert(api_keys).values(values))
            await connection.execute(sa.insert(api_key_secrets).values(digest=secret.digest, key_id=key.id))
            await record(connection, key.project_id, "key.created", key.id)
        return key

    async def rotate(
        self, project_id: ProjectId | None, key_id: KeyId, secret: Secret, *, grace: timedelta, now: datetime,
        token_secret: bytes,
    ) -> ApiKey:  # fmt: skip
        """Gives the key a new secret; earlier secrets stay valid for `grace`. Without grace, stream tokens made with
        the key end too: `token_secret` replaces their secret.

        Raises `NotFound`, and `Conflict` if the key has ended.
        """
        async with self._database.write() as connection:
            key = await _load(connection, project_id, key_id, lock=True)
            if not key.is_valid(now):
                raise Conflict(f"key {key_id} was revoked or has expired: create another one")
            ends = now + grace
            lives_longer = sa.or_(api_key_secrets.c.valid_until.is_(None), api_key_secrets.c.valid_until > ends)
            await connection.execute(
                sa.update(api_key_secrets)
                .where(api_key_secrets.c.key_id == key_id, lives_longer)
                .values(valid_until=ends)
            )
            await connection.execute(sa.insert(api_key_secrets).values(digest=secret.digest, key_id=key_id))
            changed: dict[str, Any] = {"prefix": secret.prefix, "rotated_at": now}
            if not grace:
                changed["token_secret"] = token_secret
            await connection.execute(sa.update(api_keys).where(api_keys.c.id == key_id).values(changed))
            await record(connection, key.project_id, "key.rotated", key_id)
            return await _load(connection, project_id, key_id)

    async def revoke(self, project_id: ProjectId | None, key_id: KeyId, now: datetime) -> ApiKey:
        """Revokes the key for good; its row stays. Raises `NotFound`."""
        async with self._database.write() as connection:
            key = await _load(connection, project_id, key_id, lock=True)
            if key.revoked_at is None:
                await connection.execute(sa.update(api_keys).where(api_keys.c.id == key_id).values(revoked_at=now))
                await record(connection, key.project_id, "key.revoked", key_id)
            return await _load(connection, project_id, key_id)

    async def get(self, project_id: ProjectId | None, key_id: KeyId) -> ApiKey:
        """Returns a key of this project, or of any project. Raises `NotFound`."""
        async with self._database.read() as connection:
            return await _load(connection, project_id, key_id)

    async def list(self, project_id: ProjectId, page: Page) -> list[ApiKey]:
        """Returns a page of the project's keys, ended ones included."""
        async with self._database.read() as connection:
            owner = (api_keys.c.project_id, project_id)
            rows = await rows_of_page(connection, api_keys, project_id, page, owner=owner)
            return [_key_of(row) for row in rows]

    async def list_all(self, project_id: ProjectId | None = None) -> Sequence[ApiKey]:
        """Returns every key, oldest first; with a project, only that project's keys."""
        query = sa.select(api_keys).order_by(api_keys.c.project_id, api_keys.c.number)
        if project_id is not None:
            query = query.where(api_keys.c.project_id == project_id)
        async with self._database.read() as connection:
            return [_key_of(row) for row in (await connection.execute(query)).mappings()]

    async def has_any(self) -> bool:
        """Whether a key exists or has ever existed."""
        async with self._database.read() as connection:
            return (await connection.execute(sa.select(sa.exists().select_from(api_keys)))).scalar_one()

    async def of_digest(self, digest: str) -> FoundKey | None:
        """Returns the key with a secret of this digest, even if the key has ended."""
        query = (
            sa.select(api_keys, api_key_secrets.c.digest, api_key_secrets.c.valid_until)
            .join(api_key_secrets, api_key_secrets.c.key_id == api_keys.c.id)
            .where(api_key_secrets.c.digest == digest)
        )
        async with self._database.read() as connection:
            row = (await connection.execute(query)).mappings().one_or_none()
        # The index compares digests, and a client that sends a secret cannot choose its digest. This comparison takes
        # constant time.
        if row is None or not hmac.compare_digest(row["digest"], digest):
            return None
        return FoundKey(_key_of(row), row["token_secret"], row["valid_until"])

    async def of_id(self, key_id: str) -> FoundKey | None:
        """Returns the key of this id, even if it has ended."""
        async with self._database.read() as connection:
            found = await connection.execute(sa.select(api_keys).where(api_keys.c.id == key_id))
            row = found.mappings().one_or_none()
        return None if row is None else FoundKey(_key_of(row), row["token_secret"])

    async def note_use(self, key_id: KeyId, now: datetime, *, every: timedelta) -> None:
        """Records that the key was used, unless a use was recorded less than `every` ago."""
        is_due = sa.or_(api_keys.c.last_used_at.is_(None), api_keys.c.last_used_at <= now - every)
        async with self._database.write() as connection:
            await connection.execute(
                sa.update(api_keys).where(api_keys.c.id == key_id, is_due).values(last_used_at=now)
            )


async def _refuse_unknown_agents(connection: Connection, key: ApiKey) -> None:
    wanted = Scopes.parse(key.scopes).agents
    if not wanted:
        return
    found = await connection.scalars(
        sa.select(agents.c.id).where(agents.c.project_id == key.project_id, agents.c.id.in_(wanted))
    )
    missing = wanted.difference(found)
    if missing:
        raise NotFound(f"Agents with ID {', '.join(sorted(missing))} not found")


async def _load(connection: Connection, project_id: ProjectId | None, key_id: KeyId, *, lock: bool = False) -> ApiKey:
    query = sa.select(api_keys).where(api_keys.c.id == key_id)
    if project_id is not None:
        query = query.where(api_keys.c.project_id == project_id)
    row = (await connection.execute(query.with_for_update() if lock else query)).mappings().one_or_none()
    if row is None:
        raise NotFound(f"Key {key_id} not found")
    return _key_of(row)


def _key_of(row: RowMapping) -> ApiKey:
    return ApiKey(scopes=from_json(row["scopes"], list[str]), **fields_of(row, ApiKey, beside="scopes"))


# The agent that owns an object, for keys that see single agents only.


_TABLES = {"run": runs, "step": steps, "approval": approvals, "conv": conversations}


class OwnerStore(Store):
    """Looks up owners by the ids of their objects."""

    async def agents_of(self, project_id: ProjectId, object_id: str) -> frozenset[AgentId]:
        """Returns the agents that own the run, step, approval, conversation or message with this id. Empty if the
        project has nothing with this id."""
        if is_id(object_id, "message"):
            # A stored answer may have two ids, one for its calls and one for its approval requests. No project is
            # compared: the caller accepts only agents that its key names, and those belong to the key's project.
            query = sa.select(messages.c.agent_id).where(
                sa.or_(messages.c.id == object_id, messages.c.sibling_id == object_id)
            )
        else:
            table = _TABLES.get(object_id.partition("-")[0])
            if table is None:
                return frozenset()
            query = sa.select(table.c.agent_id).where(table.c.id == object_id, table.c.project_id == project_id)
        async with self._database.read() as connection:
            return frozenset(AgentId(agent_id) for agent_id in await connection.scalars(query))
