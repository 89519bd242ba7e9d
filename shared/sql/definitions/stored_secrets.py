"""Agents' secrets as they are stored, of all projects: for changing the key that they are encrypted with."""

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from shared.domain.ids import AgentId, ProjectId
from shared.sql.definitions.links import lock_definitions
from shared.sql.engine import Database
from shared.sql.tables import agents

_FIELD = "tool_environment"


class StoredSecrets(msgspec.Struct, frozen=True):
    """The secrets of one agent, and the document that they were read from."""

    number: int
    agent_id: AgentId
    project_id: ProjectId
    document: str
    secrets: dict[str, str]

    def with_secrets(self, secrets: dict[str, str]) -> str:
        """The document with these secrets. Everything else in it stays as it is written, also what this version does
        not know."""
        fields = msgspec.json.decode(self.document, type=dict[str, msgspec.Raw])
        fields[_FIELD] = msgspec.Raw(msgspec.json.encode(secrets))
        return msgspec.json.encode(fields).decode()


class StoredSecretStore:
    """Reads and replaces agents' secrets as they are stored."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def some(self, after: int, limit: int) -> Sequence[StoredSecrets]:
        """Agents that have secrets, in the order in which they were made; those behind the number `after`."""
        columns = (agents.c.number, agents.c.id, agents.c.project_id, agents.c.document)
        # A cheap look for most of the agents that have none; what it lets pass by mistake has no secrets below.
        wanted = sa.select(*columns).where(agents.c.number > after, agents.c.document.contains(f'"{_FIELD}":{{"'))
        async with self._database.read() as connection:
            found = await connection.execute(wanted.order_by(agents.c.number).limit(limit))
            return [_stored(*row) for row in found]

    async def newest(self, agents_at_most: int) -> Sequence[StoredSecrets]:
        """Those of so many agents that were made last, which have secrets. Few rows are looked at, however many agents
        there are."""
        columns = (agents.c.number, agents.c.id, agents.c.project_id, agents.c.document)
        last = sa.select(*columns).order_by(agents.c.number.desc()).limit(agents_at_most).subquery()
        wanted = sa.select(last).where(last.c.document.contains(f'"{_FIELD}":{{"'))
        async with self._database.read() as connection:
            return [_stored(*row) for row in await connection.execute(wanted)]

    async def replace(self, before: StoredSecrets, secrets: dict[str, str]) -> bool:
        """Stores other texts for the same secrets. False, and nothing is stored, when the agent was changed since, or
        deleted."""
        async with self._database.write() as connection:
            # A change of the agent reads its document first and writes it whole.
            await lock_definitions(connection, before.project_id)
            done = await connection.execute(
                sa.update(agents)
                .where(agents.c.id == before.agent_id, agents.c.document == before.document)
                .values(document=before.with_secrets(secrets))
            )
            return done.rowcount == 1


def _stored(number: int, agent_id: str, project_id: str, document: str) -> StoredSecrets:
    fields: dict[str, Any] = msgspec.json.decode(document)
    return StoredSecrets(number, AgentId(agent_id), ProjectId(project_id), document, fields.get(_FIELD, {}))
