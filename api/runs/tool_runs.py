"""Calls of an agent's tools that a client asks for: each becomes a run, because only a worker's sandbox runs tool code.

What a run promises holds for the call: it is stored before it is answered for, goes on without its client, can be
cancelled, and starts its tool once whoever dies. `shared.domain.runs` says why it does not wait for the agent's
other runs.
"""

from dataclasses import dataclass

from api.runs.submission import SubmissionService
from api.runs.waiting import RunWaiter
from shared.concurrency import Clock
from shared.domain.errors import Conflict, NotFound
from shared.domain.ids import AgentId, IdMaker, ProjectId, ThreadId
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import AssistantMessage, NewMessage, ToolCall, ToolReturn
from shared.domain.runs import TOOL_RUN, Run, RunOptions, SubmissionKeys
from shared.domain.tools import Tool
from shared.sql.access.audit import AuditLog
from shared.sql.definitions.agents import AgentStore
from shared.sql.runs.checkpoints import ToolRunStore


@dataclass(frozen=True, kw_only=True)
class ToolRunService:
    """Has workers call tools."""

    submissions: SubmissionService
    waiter: RunWaiter
    agents: AgentStore
    tool_runs: ToolRunStore
    audit: AuditLog
    clock: Clock
    ids: IdMaker

    async def find(self, project_id: ProjectId, agent_id: AgentId, tool_name: str) -> Tool:
        """The agent's tool of this name. Raises `NotFound`."""
        _, tools, _ = await self.agents.equipped(project_id, agent_id)
        tool = next((tool for tool in tools if tool.name == tool_name), None)
        if tool is None:
            had = ", ".join(tool.name for tool in tools) or "none"
            raise NotFound(f"Agent {agent_id} has no tool named {tool_name!r}. Its tools: {had}")
        return tool

    async def run(self, agent_id: AgentId, tool: Tool, arguments: str, keys: SubmissionKeys) -> tuple[Run, Run | None]:
        """Calls the tool with JSON arguments: the run as it was submitted, and as it ended; None when this process ends
        before it. A call that is sent again is that of the first time. Raises `NameTaken`."""
        # Nobody is asked, whatever the tool's approvals say, so the log says before it whose key it was.
        await self.audit.add(tool.project_id, "tool.called", tool.id)
        call = ToolCall(self.ids.tool_call(), tool.name, arguments)
        body = AssistantMessage(tool_calls=[call])
        asked = NewMessage(id=self.ids.message(), created_at=self.clock.now(), body=body)
        run = await self.submissions.submit_run(self._run(agent_id, tool), [asked], keys)
        return run, await self.waiter.ended(run)

    async def result(self, run: Run) -> ToolReturn:
        """What the call of a run came to that has ended and not failed. Raises `Conflict` when it was cancelled, and
        `NotFound` when the result is not kept any more."""
        result = await self.tool_runs.result(run)
        if result is None:
            raise NotFound(f"the result of run {run.id} is not kept any more")
        if run.status is RunStatus.CANCELLED:
            raise Conflict(f"run {run.id} was cancelled. Of its call of {result.tool_name!r} is known: {result.text}")
        return result

    def _run(self, agent_id: AgentId, tool: Tool) -> Run:
        run_id = self.ids.run()
        return Run(
            id=run_id,
            project_id=tool.project_id,
            agent_id=agent_id,
            thread_id=ThreadId(run_id),
            options=RunOptions(run_type=TOOL_RUN, tool_name=tool.name),
            created_at=self.clock.now(),
        )
