"""Lists and changes the sleep-time groups of projects. The transaction of each change also records it in the audit
log."""

from collections.abc import Callable, Sequence
from datetime import datetime

from shared.domain.groups import Group
from shared.domain.ids import AgentId, GroupId, ProjectId
from shared.secret_keys import NO_KEYS, SecretKeys
from shared.sql.access.audit import record
from shared.sql.definitions.agent_changes import end_group, set_group_flag
from shared.sql.definitions.agents import lock_definitions
from shared.sql.definitions.groups import groups_of, has_member, insert_group, load_group, write_group
from shared.sql.engine import Database
from shared.sql.paging import Page, count_rows, rows_of_page
from shared.sql.tables import agent_groups


class GroupEditor:
    """Reads and changes groups."""

    def __init__(self, database: Database, secret_keys: SecretKeys = NO_KEYS) -> None:
        self._database = database
        self._secret_keys = secret_keys

    async def get(self, project_id: ProjectId, group_id: GroupId) -> Group:
        """Returns a group of this project. Raises `NotFound`."""
        async with self._database.read() as connection:
            return await load_group(connection, project_id, group_id)

    async def list(
        self, project_id: ProjectId, page: Page, *, agent_id: AgentId | None = None, show_hidden: bool = False
    ) -> Sequence[Group]:
        """Returns a page of the project's groups. With `agent_id`, only groups that have this agent, as their manager
        or as a sleep-time agent."""
        conditions = [] if agent_id is None else [has_member(agent_id)]
        if not show_hidden:
            conditions.append(agent_groups.c.hidden.is_not(True))
        async with self._database.read() as connection:
            owner = (agent_groups.c.project_id, project_id)
            rows = await rows_of_page(connection, agent_groups, project_id, page, *conditions, owner=owner)
            return await groups_of(connection, rows)

    async def count(self, project_id: ProjectId) -> int:
        """Returns the number of the project's groups, including hidden ones."""
        async with self._database.read() as connection:
            return await count_rows(connection, agent_groups, project_id)

    async def create(self, group: Group) -> Group:
        """Stores a group. From then on its manager's turns start its agents. Raises `NotFound`, `Conflict` or
        `InvalidRequest`."""
        async with self._database.write() as connection:
            await lock_definitions(connection, group.project_id)
            stored = await insert_group(connection, group)
            await set_group_flag(connection, stored, self._secret_keys, is_on=True)
            await record(connection, group.project_id, "group.created", group.id)
            return stored

    async def update(
        self, project_id: ProjectId, group_id: GroupId, change: Callable[[Group], Group], now: datetime
    ) -> Group:
        """Changes a group. `change` must be quick and pure. Raises as `create`."""
        async with self._database.write() as connection:
            await lock_definitions(connection, project_id)
            before = await load_group(connection, project_id, group_id, lock=True)
            after = change(before)
            if after == before:
                return before
            stored = await write_group(connection, before, after, now)
            if after.manager_agent_id != before.manager_agent_id:
                await set_group_flag(connection, before, self._secret_keys, is_on=None)
                await set_group_flag(connection, after, self._secret_keys, is_on=after.is_on)
            await record(connection, project_id, "group.changed", group_id)
            return stored

    async def delete(self, project_id: ProjectId, group_id: GroupId) -> None:
        """Deletes a group. Its agents stay. Raises `NotFound`."""
        async with self._database.write() as connection:
            await lock_definitions(connection, project_id)
            await end_group(
                connection, await load_group(connection, project_id, group_id, lock=True), self._secret_keys
            )
            await record(connection, project_id, "group.deleted", group_id)
