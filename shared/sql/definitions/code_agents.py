"""The agents of operators' own code that workers have or have had. They belong to the deployment, and to no project."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import msgspec
import sqlalchemy as sa

from shared.domain.code_agents import KnownVersion, ShownAgent
from shared.sql.engine import Store
from shared.sql.run_tables import code_agent_versions, code_agents

VERSIONS_KEPT = timedelta(days=30)
"""How long a version stays known after the last worker had it."""


class KnownCodeAgent(msgspec.Struct, frozen=True):
    """An agent that a worker has reported."""

    name: str
    description: str
    seen_at: datetime
    """When a worker that has it was last seen."""
    framework: str = "function"


@cache
def _upsert_of(insert: Callable[[sa.Table], Any]) -> sa.Executable:
    stored = insert(code_agents)
    changed = {name: stored.excluded[name] for name in ("description", "framework", "seen_at")}
    return stored.on_conflict_do_update(index_elements=[code_agents.c.name], set_=changed)


@cache
def _upsert_version_of(insert: Callable[[sa.Table], Any]) -> sa.Executable:
    stored, key = insert(code_agent_versions), [code_agent_versions.c.name, code_agent_versions.c.version]
    return stored.on_conflict_do_update(index_elements=key, set_={"seen_at": stored.excluded["seen_at"]})


class CodeAgentStore(Store):
    """Workers report their agents here. The API lists them even while no worker is alive, so that runs may be
    submitted."""

    async def show(self, agents: Sequence[ShownAgent], now: datetime) -> Mapping[str, datetime]:
        """Records that a worker has these agents now, and forgets versions that no worker has had for a month. Returns,
        by the agent's name, when a worker first had this version. Raises `Unavailable`."""
        if not agents:
            return {}
        versions = code_agent_versions.c
        shown = [(one.name, one.version) for one in agents]
        async with self._database.write() as connection:
            for one in sorted(agents, key=lambda one: one.name):
                row = {"name": one.name, "description": one.description, "framework": one.framework, "seen_at": now}
                await connection.execute(_upsert_of(connection.insert), row)
                version = {"name": one.name, "version": one.version, "first_seen_at": now, "seen_at": now}
                await connection.execute(_upsert_version_of(connection.insert), version)
            await connection.execute(sa.delete(code_agent_versions).where(versions.seen_at < now - VERSIONS_KEPT))
            is_shown = sa.tuple_(versions.name, versions.version).in_(shown)
            found = await connection.execute(sa.select(versions.name, versions.first_seen_at).where(is_shown))
            return {row.name: row.first_seen_at for row in found}

    async def known(self) -> Sequence[KnownCodeAgent]:
        """Returns all of them by name. Raises `Unavailable`."""
        async with self._database.read() as connection:
            rows = (await connection.execute(sa.select(code_agents).order_by(code_agents.c.name))).all()
        return [KnownCodeAgent(row.name, row.description, row.seen_at, row.framework) for row in rows]

    async def versions(self) -> Sequence[KnownVersion]:
        """Returns the versions of all of them, the newest of each first. Raises `Unavailable`."""
        table = code_agent_versions
        newest_first = sa.select(table).order_by(table.c.name, table.c.first_seen_at.desc(), table.c.version.desc())
        async with self._database.read() as connection:
            rows = (await connection.execute(newest_first)).all()
        return [KnownVersion(row.name, row.version, row.first_seen_at, row.seen_at) for row in rows]
