"""The base tools of a project. They are rows like other tools, and the API adds them when the project first asks for
tools."""

from shared.concurrency import Clock
from shared.domain.ids import IdMaker, ProjectId
from shared.domain.tool_catalog import BASE_TOOLS, BaseTool
from shared.domain.tools import Tool
from shared.sql.definitions.tools import ToolStore


class BaseToolSeeder:
    """Adds the base tools of this release to projects. A project's own tool of the same name stays."""

    def __init__(self, *, tools: ToolStore, clock: Clock, ids: IdMaker) -> None:
        self._tools = tools
        self._clock = clock
        self._ids = ids
        self._filled: set[ProjectId] = set()

    async def fill(self, project_id: ProjectId) -> None:
        """Ensures that the project has the base tools. Asks the database once per project and process."""
        if project_id not in self._filled:
            await self.add(project_id)

    async def add(self, project_id: ProjectId) -> list[Tool]:
        """Adds the missing base tools and updates the others to this release. Returns all of them."""
        stored = await self._tools.add_base_tools(project_id, [self._row(project_id, tool) for tool in BASE_TOOLS])
        self._filled.add(project_id)
        return stored

    def _row(self, project_id: ProjectId, tool: BaseTool) -> Tool:
        now = self._clock.now()
        return Tool(
            id=self._ids.tool(),
            project_id=project_id,
            name=tool.name,
            description=tool.description,
            source_code="",
            json_schema=tool.json_schema,
            tags=[tool.kind],
            enable_parallel_execution=tool.enable_parallel_execution,
            idempotent=not tool.starts_once,
            tool_type=tool.kind,
            created_at=now,
            updated_at=now,
        )
