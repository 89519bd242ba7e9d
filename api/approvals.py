"""Checks a decision on one waiting tool call against the call that was shown and against the tool, and stores it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from api.letta.message_input import tool_result
from api.letta.runs import DecisionIn, parsed_arguments
from api.runs.submission import SubmissionTraces
from shared.concurrency import Clock
from shared.domain.approvals import Approval
from shared.domain.errors import Conflict, InvalidRequest
from shared.domain.ids import ApprovalId, ProjectId
from shared.domain.messages import Decision
from shared.runs.orphans import ApprovalService
from shared.sql.definitions.tools import ToolStore
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.decisions import Decided
from shared.tool_arguments import RefusedArguments, check_arguments


@dataclass(frozen=True, kw_only=True)
class ApprovalDecisions:
    """Checks and stores decisions."""

    approvals: ApprovalStore
    tools: ToolStore
    approval_service: ApprovalService
    traces: SubmissionTraces
    clock: Clock
    on_continued: Callable[[], None] = lambda: None
    """Called when a decision starts a continuation."""

    async def decide(self, project_id: ProjectId, approval_id: ApprovalId, request: DecisionIn) -> Decided:
        """Stores a decision on one call. The decision on the last open call starts the continuation of the run.

        Raises `NotFound`, `InvalidRequest`, or `Conflict`: the arguments or the tool differ from those that were shown,
        or another caller has decided otherwise.
        """
        asked = await self.approvals.get(project_id, approval_id)
        if request.arguments_hash not in (None, asked.arguments_hash):
            raise Conflict(
                f"arguments_hash is {request.arguments_hash}, but approval {asked.id} asks for arguments with the hash "
                f"{asked.arguments_hash}: look at them again before deciding"
            )
        if request.tool_version is not None:
            await self._refuse_changed_tool(asked, request.tool_version, approves=request.decision == "approve")
        began_at, decision = self.clock.now(), await self._decision(asked, request)
        decided = await self.approval_service.decide(asked, decision, by=request.decided_by)
        if decided.run is not None:
            self.on_continued()
            self.traces.decided(decided.run, began_at)
        return decided

    async def _decision(self, asked: Approval, request: DecisionIn) -> Decision:
        if request.decision == "tool_return":
            text, parts = tool_result(request.tool_return)
            return Decision(
                tool_call_id=asked.tool_call_id,
                kind="tool",
                tool_return=text,
                status=request.status,
                stdout=request.stdout,
                stderr=request.stderr,
                parts=parts,
            )
        return Decision(
            tool_call_id=asked.tool_call_id,
            approve=request.decision == "approve",
            reason=request.reason,
            edited_arguments=await edited_arguments(self.tools, asked, request.arguments),
        )

    async def _refuse_changed_tool(self, asked: Approval, named: str, *, approves: bool) -> None:
        """Raises `Conflict` if the decision names another version of the tool than the call shows, or approves a
        version that the agent no longer has: the run would not make that call."""
        if named != asked.tool_version:
            raise Conflict(
                f"tool_version is {named}, but approval {asked.id} asks for a call of {asked.tool_name} in the version "
                f"{asked.tool_version}: look at it again before deciding"
            )
        if not approves or asked.decision is not None:
            return
        versions = {tool.name: tool.version for tool in await self.tools.for_agent(asked.project_id, asked.agent_id)}
        if versions.get(asked.tool_name) != named:
            raise Conflict(
                f"the tool {asked.tool_name} was changed after the call was shown, so the call would not be made: deny "
                "it, and the model may call the tool again, as it is now"
            )


async def edited_arguments(tools: ToolStore, asked: Approval, arguments: dict[str, Any] | None) -> str | None:
    """Returns a person's arguments for the call, as text; None if they equal those that were shown.
    A call of an agent's own code has no schema here: the code checks what it gets.

    Raises `InvalidRequest` if they do not fit the tool's schema, `Conflict` if the agent no longer has the tool.
    """
    if arguments is None or arguments == parsed_arguments(asked.arguments):
        return None
    text = json.dumps(arguments, ensure_ascii=False)
    if asked.tool_version is None and not asked.client_side:
        return text
    schemas = {tool.name: tool.accepted_arguments for tool in await tools.for_agent(asked.project_id, asked.agent_id)}
    if asked.tool_name not in schemas:
        raise Conflict(f"the agent no longer has the tool {asked.tool_name}, so its arguments cannot be checked")
    checked = await check_arguments(text, schemas[asked.tool_name])
    if isinstance(checked, RefusedArguments):
        raise InvalidRequest(f"arguments: {checked.text.removeprefix('Error: ')}", field="arguments")
    return text
