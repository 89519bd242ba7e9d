"""The tags of a project: those of its agents and of its blocks."""

from typing import Any

import sqlalchemy as sa

from shared.domain.ids import ProjectId
from shared.sql.engine import Database
from shared.sql.paging import Page
from shared.sql.tables import agent_tags, agents, blocks, from_json


class TagStore:
    """Reads tags."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self, project_id: ProjectId, page: Page, text: str | None = None) -> list[str]:
        """A page of the tags by name, each once; its cursors are tags. With `text`, those that have it in them."""
        tags = await self._all(project_id)
        if text:
            tags = {tag for tag in tags if text.casefold() in tag.casefold()}
        if page.after is not None:
            tags = {tag for tag in tags if (tag > page.after if page.ascending else tag < page.after)}
        if page.before is not None:
            tags = {tag for tag in tags if (tag < page.before if page.ascending else tag > page.before)}
        return sorted(tags, reverse=not page.ascending)[: page.limit]

    async def _all(self, project_id: ProjectId) -> set[str]:
        of_agents = sa.select(agent_tags.c.tag).join(agents, agents.c.id == agent_tags.c.agent_id)
        # Few blocks have tags: only the documents of those are read.
        has_tags = sa.not_(blocks.c.document.contains('"tags":[]'))
        async with self._database.read() as connection:
            found = await connection.execute(of_agents.where(agents.c.project_id == project_id).distinct())
            tags = set(found.scalars())
            tagged = await connection.execute(
                sa.select(blocks.c.document).where(blocks.c.project_id == project_id, has_tags)
            )
            for document in tagged.scalars():
                block = from_json(document, dict[str, Any])
                tags.update(block.get("tags") or ())
        return tags
