"""Makes the calls by which an agent sends messages and tasks to other agents.

A call starts a run of the other agent under a key that is derived from the call. If the worker makes the call again,
after a crash or a wait, it finds that run. The call's result is the answer of the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from msgspec.structs import replace

from shared.concurrency import Clock
from shared.domain.agents import Agent
from shared.domain.approvals import waiting_calls
from shared.domain.errors import CancelMode, InvalidRequest, LifecycleError, NotFound, PendingApproval
from shared.domain.events import ChildStarted, ChildWaits
from shared.domain.ids import AgentId, IdMaker, ThreadId, is_id
from shared.domain.lifecycle import ACTIVE, RunStatus
from shared.domain.messages import AssistantMessage, NewMessage, ToolCall, ToolReturn, UserMessage
from shared.domain.run_trees import CallWaits, ParentCall, SeenChild, TreeLimits
from shared.domain.runs import Run, RunOptions
from shared.domain.tool_catalog import ASKS_TAGGED_AGENTS, RUNS_AGENT, TELLS_AGENT, JsonObject, base_tool_arguments
from shared.domain.tools import Tool
from shared.runs.orphans import OrphanedRuns
from shared.runs.started_runs import StartedRuns, started_run
from shared.sql.definitions.agents import AgentFilter, AgentStore
from shared.sql.history.messages import MessageStore
from shared.sql.paging import Page
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.children import ChildStore
from shared.sql.runs.run_store import ANYWHERE, Place
from worker.runners.tool_runner import CallingRun, RunnerTraits, error_return

FOUND_AGAIN = RunnerTraits(sees_secrets=False, timeout_s=None)
"""The calls run Holdfast's own code. `TreeLimits.wait` limits the time of a run that waits."""

NO_RESPONSE = "<no response>"
"""The reply of an agent without an answer. Programs look for this text."""

AWAITS = "[Message from the agent {name!r} (id {id}). Your answer is delivered to it.] {message}"
EXPECTS_NOTHING = "[Message from the agent {name!r} (id {id}). It expects no answer.] {message}"

CIRCLE = (
    "the agent {name!r} cannot answer before this run has ended: its conversation is waiting for this one. The message "
    "was taken back"
)
TOO_DEEP = "this run was started by agents that wait for each other, {depth} levels deep, and may start no other"
TOO_MANY = "the runs that one request may start through agents are used up (HOLDFAST_CHILD_RUNS={runs})"
LATE = "the agent {name!r} has not answered within {seconds:g} s. Its run {run_id} goes on"
DELETED = "the run of the agent {name!r} was deleted before its answer was read"
WAITS_FOR_PERSON = "the agent {name!r} waits for a person, and takes no message until that person has decided"


class Reply(NamedTuple):
    """An agent's answer, or the reason why there is none."""

    agent_id: AgentId
    texts: list[str]
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class AgentToolRunner:
    """Starts runs of other agents, and collects their answers."""

    agents: AgentStore
    started: StartedRuns
    children: ChildStore
    approvals: ApprovalStore
    messages: MessageStore
    orphans: OrphanedRuns
    limits: TreeLimits
    clock: Clock
    ids: IdMaker
    traits: RunnerTraits = FOUND_AGAIN

    def arguments(self, tool: Tool) -> JsonObject:
        """Returns the current schema of the tool, because a project may have stored an older one."""
        return base_tool_arguments(tool)

    async def call(self, run: CallingRun, call: ToolCall, tool: Tool, arguments: dict[str, Any]) -> ToolReturn:
        """Returns the answers. Raises `CallWaits` while one is missing. If an agent cannot be asked, the result is an
        error."""
        try:
            children = await self.children.of_call(run.run, call.id)
            for child in children:
                # An earlier attempt may have stored the child, and ended before it dispatched it.
                await self.started.queue.dispatch_stored(child)
            # An agent may have been renamed since, and another agent may have its old name.
            is_known = bool(children) and tool.name != ASKS_TAGGED_AGENTS
            asked = {} if is_known else await self._asked(run, tool.name, arguments)
            replies = await self._start_missing(run, call, tool.name, asked, arguments, children)
        except (InvalidRequest, NotFound) as error:
            return error_return(call, f"Error: {error.message}")
        if tool.name == TELLS_AGENT and children:
            return _returned(call, "Successfully sent message")
        for child in children:
            reply = await self._reply(run, call, child, asked)
            if reply is not None:
                replies.append(reply)
        await self._wait_for(run, children, {reply.agent_id for reply in replies})
        return _result(call, tool.name, replies)

    async def _asked(self, run: CallingRun, name: str, arguments: dict[str, Any]) -> dict[AgentId, Agent]:
        """Returns the agents that a call addresses. Raises `NotFound` and `InvalidRequest`."""
        if name == ASKS_TAGGED_AGENTS:
            found = await self._tagged(run, arguments["match_all"], arguments["match_some"])
        else:
            found = [await self._named(run, arguments["agent" if name == RUNS_AGENT else "other_agent_id"])]
        return {agent.id: agent for agent in found}

    async def _named(self, run: CallingRun, named: str) -> Agent:
        project_id = run.run.project_id
        if is_id(named, "agent"):
            return await self.agents.without_links(project_id, AgentId(named))
        found = await self.agents.list(project_id, AgentFilter(name=named, show_hidden=True), Page(limit=2))
        if not found:
            raise NotFound(f"there is no agent with the name or id {named!r}")
        if len(found) > 1:
            raise InvalidRequest(f"several agents are named {named!r}: give the id of one")
        return found[0]

    async def _tagged(self, run: CallingRun, match_all: Sequence[str], match_some: Sequence[str]) -> list[Agent]:
        if not match_all and not match_some:
            raise InvalidRequest("name at least one tag, in match_all or in match_some")
        wanted = AgentFilter(tags=match_all or match_some, match_all_tags=bool(match_all))
        some, chosen, page = set(match_some or match_all), list[Agent](), Page(ascending=True)
        while len(chosen) <= self.limits.runs:
            found = await self.agents.list(run.run.project_id, wanted, page)
            chosen += [one for one in found if one.id != run.agent.id and not some.isdisjoint(one.tags)]
            if len(found) < page.limit:
                break
            page = replace(page, after=found[-1].id)
        return chosen

    async def _start_missing(
        self,
        run: CallingRun,
        call: ToolCall,
        name: str,
        asked: dict[AgentId, Agent],
        arguments: dict[str, Any],
        children: list[Run],
    ) -> list[Reply]:
        """Starts the runs that an earlier attempt has not started, and adds them to the children. Returns a reply for
        each agent that accepts no message now. Raises `InvalidRequest` if the tree would become too large."""
        refused = list[Reply]()
        missing = [agent for agent in asked.values() if all(child.agent_id != agent.id for child in children)]
        # The call asks an agent once, even if a client has deleted the agent's run meanwhile.
        deleted = [agent for agent in missing if agent.id in run.started_agents(call)]
        missing = [agent for agent in missing if agent not in deleted]
        if missing:
            # One call of the run at a time counts and starts, so that the tree stays within its limit.
            async with run.writing():
                parent = await self._parent(run, call, len(missing), awaited=name != TELLS_AGENT)
                started = [await self._start(run, call, agent, name, parent, arguments) for agent in missing]
            children += [one for one in started if isinstance(one, Run)]
            refused = [one for one in started if isinstance(one, Reply)]
        refused += [Reply(agent.id, [], DELETED.format(name=agent.name)) for agent in deleted]
        for child in children:
            parent_call = child.options.parent
            awaited = parent_call is None or parent_call.awaited
            run.emit_once(ChildStarted(run.at, call.id, child.id, child.agent_id, awaited))
        return refused

    async def _parent(self, run: CallingRun, call: ToolCall, more: int, *, awaited: bool) -> ParentCall:
        own = run.run.options.parent
        depth, root_id = (1, run.run.id) if own is None else (own.depth + 1, own.root_id)
        if depth > self.limits.depth:
            raise InvalidRequest(TOO_DEEP.format(depth=self.limits.depth) + " (HOLDFAST_CHILD_DEPTH)")
        if await self.children.count(run.run) + more > self.limits.runs:
            raise InvalidRequest(TOO_MANY.format(runs=self.limits.runs))
        return ParentCall(run_id=run.run.id, call_id=call.id, root_id=root_id, depth=depth, awaited=awaited)

    async def _start(
        self, run: CallingRun, call: ToolCall, agent: Agent, name: str, parent: ParentCall, arguments: dict[str, Any]
    ) -> Run | Reply:
        """Starts a run of the agent. Returns a reply if the agent accepts no message now."""
        given, run_id, now = run.run.options, self.ids.run(), self.clock.now()
        options = RunOptions(
            stream_tokens=True,
            submitted_by=given.submitted_by,
            traceparent=given.traceparent,
            keys_scope=f"calls:{run.run.id}",
            parent=parent,
        )
        if name == RUNS_AGENT:
            thread_id, message, place = ThreadId(run_id), UserMessage(arguments["task"]), Place(begins=True)
        else:
            signed = _signed(run.agent, name, arguments["message"])
            thread_id, message, place = ThreadId(agent.id), UserMessage(signed, role="system"), ANYWHERE
        child = started_run(agent, options, run_id=run_id, thread_id=thread_id, now=now)
        child = replace(child, priority=run.run.priority)
        said = NewMessage(id=self.ids.message(), created_at=now, body=message)
        try:
            return (await self.started.start(child, [said], key=f"{call.id}:{agent.id}", place=place)).run
        except PendingApproval:
            return Reply(agent.id, [], WAITS_FOR_PERSON.format(name=agent.name))

    async def _reply(self, run: CallingRun, call: ToolCall, child: Run, asked: dict[AgentId, Agent]) -> Reply | None:
        """Returns the answer of a child; None if it has not answered yet."""
        name = asked[child.agent_id].name if child.agent_id in asked else child.agent_id
        if child.status in ACTIVE:
            if self._time_left(child) <= timedelta():
                await run.whole(lambda: self.children.stop_awaiting(child))
                late = LATE.format(name=name, seconds=self.limits.wait.total_seconds(), run_id=child.id)
                return Reply(child.agent_id, [], late)
            if child.status is RunStatus.AWAITING_APPROVAL:
                await self._show_wait(run, call, child)
                return None
            return await self._taken_back(run, child, name)
        if child.status is RunStatus.COMPLETED:
            return Reply(child.agent_id, await self._texts(child))
        why = f": {child.error.message}" if child.error is not None else ""
        return Reply(child.agent_id, [], f"the run {child.id} of the agent {name!r} {_ended(child)}{why}")

    async def _taken_back(self, run: CallingRun, child: Run, name: str) -> Reply | None:
        """Cancels a child that can begin only after this run, which would wait for the child."""
        if not await self.children.waits_for_itself(run.run, [child]):
            return None
        try:
            await self.orphans.cancel(child, cause="user", mode=CancelMode.ROLLBACK, denial_reason="")
        except LifecycleError:
            return None  # a worker has begun the child, so it does not wait for this run
        return Reply(child.agent_id, [], CIRCLE.format(name=name))

    async def _show_wait(self, run: CallingRun, call: ToolCall, child: Run) -> None:
        asked = await self.approvals.waiting_on_thread(child.project_id, child.thread_id)
        waiting = waiting_calls([approval for approval in asked if approval.run_id == child.id])
        if waiting is not None:
            run.emit_once(ChildWaits(run.at, call.id, waiting))

    async def _wait_for(self, run: CallingRun, children: Sequence[Run], answered: set[AgentId]) -> None:
        """Raises `CallWaits` if one of the children has not answered."""
        active = [child for child in children if child.agent_id not in answered]
        if active:
            seen = [SeenChild(child.id, child.status is RunStatus.AWAITING_APPROVAL) for child in active]
            raise CallWaits(seen, min(map(self._time_left, active)))

    def _time_left(self, child: Run) -> timedelta:
        return self.limits.wait - (self.clock.now() - child.created_at)

    async def _texts(self, child: Run) -> list[str]:
        """Returns the agent's texts in the turn, in order."""
        said = [one.body for one in await self.messages.list_of_turn(child) if isinstance(one.body, AssistantMessage)]
        texts = [text for body in said for text in (body.text, *(call.speech for call in body.tool_calls)) if text]
        return texts or [NO_RESPONSE]


def _signed(sender: Agent, name: str, message: str) -> str:
    form = EXPECTS_NOTHING if name == TELLS_AGENT else AWAITS
    return form.format(name=sender.name, id=sender.id, message=message)


def _ended(child: Run) -> str:
    return "was cancelled" if child.status is RunStatus.CANCELLED else "has failed"


def _result(call: ToolCall, name: str, replies: Sequence[Reply]) -> ToolReturn:
    """Returns the replies in the form that programs expect: as Python prints a dictionary, or a list of them."""
    if name == ASKS_TAGGED_AGENTS:
        listed = [_listed(reply.agent_id, reply.texts, reply.error) for reply in sorted(replies)]
        return replace(_returned(call, str(listed)), is_text=False)
    [reply] = replies
    if reply.error is not None:
        return error_return(call, f"Error: {reply.error}")
    if name == RUNS_AGENT:
        return _returned(call, reply.texts[-1])
    return _returned(call, str(_listed(reply.agent_id, reply.texts)))


def _listed(agent_id: AgentId, texts: list[str], error: str | None = None) -> dict[str, Any]:
    return {"agent_id": agent_id, "response": texts if error is None else [f"<error: {error}>"]}


def _returned(call: ToolCall, text: str) -> ToolReturn:
    return ToolReturn(tool_call_id=call.id, tool_name=call.name, status="success", text=text)
