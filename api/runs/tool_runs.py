"""Calls of an agent's tools that a client asks for: each becomes a run, because only a worker's sandbox runs tool code.

What a run promises holds for the call: it is stored before it is answered for, goes on without its client, can be
cancelled, and starts its tool once whoever dies. `shared.domain.runs` says why it does not wait for the agent's
other runs.
"""

from dataclasses import dataclass

from starlette.responses import Response

from api.errors import model_error_answer
from api.letta.submission_keys import SubmissionHeaders, keys_of
from api.letta.tools import ToolRunRequest, refuse_tool_of_clients, wire_tool_result
from api.long_answers import json_answer
from api.runs.submission import SubmissionService
from api.runs.waiting import RunWaiter, elsewhere
from shared.concurrency import Clock
from shared.domain.errors import Conflict, NotFound
from shared.domain.ids import AgentId, IdMaker, ProjectId, ThreadId
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import AssistantMessage, NewMessage, ToolCall
from shared.domain.runs import TOOL_RUN, Run, RunOptions
from shared.domain.tools import Tool
from shared.sql.access.audit import AuditLog
from shared.sql.definitions.agents import AgentStore
from shared.sql.runs.checkpoints import ToolRunStore


@dataclass(frozen=True, kw_only=True)
class ToolRunService:
    """Has workers call tools, and answers with the results."""

    submissions: SubmissionService
    waiter: RunWaiter
    agents: AgentStore
    tool_runs: ToolRunStore
    audit: AuditLog
    clock: Clock
    ids: IdMaker

    async def run(
        self,
        project_id: ProjectId,
        agent_id: AgentId,
        tool_name: str,
        request: ToolRunRequest,
        headers: SubmissionHeaders,
    ) -> Response:
        """Calls the tool, and answers when it has ended. A request that is sent again is the call of the first time.

        Raises `NotFound` when the agent has no such tool, `InvalidRequest` for one that no worker can run, `NameTaken`,
        or `Conflict` when the run was cancelled.
        """
        tool = await self._tool(project_id, agent_id, tool_name)
        # Nobody is asked, whatever the tool's approvals say, so the log says before it whose key it was.
        await self.audit.add(project_id, "tool.called", tool.id)
        now = self.clock.now()
        call = ToolCall(self.ids.tool_call(), tool.name, request.arguments())
        asked = NewMessage(id=self.ids.message(), created_at=now, body=AssistantMessage(tool_calls=[call]))
        keys = keys_of([], headers, request, f"{TOOL_RUN} {tool.name}", now)
        run = await self.submissions.submit_run(self._run(project_id, agent_id, tool), [asked], keys)
        ended = await self.waiter.ended(run)
        return elsewhere(run) if ended is None else await self._answer(ended)

    async def _answer(self, run: Run) -> Response:
        if run.status is RunStatus.FAILED and run.error is not None:
            return model_error_answer(run.error.error_type, run.error.detail, run.error.message)
        result = await self.tool_runs.result(run)
        if result is None:
            raise NotFound(f"the result of run {run.id} is not kept any more")
        if run.status is RunStatus.CANCELLED:
            raise Conflict(f"run {run.id} was cancelled. Of its call of {result.tool_name!r} is known: {result.text}")
        return await json_answer(wire_tool_result(result))

    async def _tool(self, project_id: ProjectId, agent_id: AgentId, tool_name: str) -> Tool:
        _, tools, _ = await self.agents.equipped(project_id, agent_id)
        tool = next((tool for tool in tools if tool.name == tool_name), None)
        if tool is None:
            had = ", ".join(tool.name for tool in tools) or "none"
            raise NotFound(f"Agent {agent_id} has no tool named {tool_name!r}. Its tools: {had}")
        refuse_tool_of_clients(tool)
        return tool

    def _run(self, project_id: ProjectId, agent_id: AgentId, tool: Tool) -> Run:
        run_id = self.ids.run()
        return Run(
            id=run_id,
            project_id=project_id,
            agent_id=agent_id,
            thread_id=ThreadId(run_id),
            options=RunOptions(run_type=TOOL_RUN, tool_name=tool.name),
            created_at=self.clock.now(),
        )
