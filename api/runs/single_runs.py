"""Runs that answer no message: a compaction of a history, one question to a model, one call of a tool.

Each is a run because only workers call models and run tools, and it has a run's guarantees: it is stored before the
client gets an answer, counts in budgets and limits, survives the loss of its client or worker, and can be cancelled.
`shared.domain.runs` defines these runs, and explains why they do not wait for the agent's other runs.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from api.runs.command import AgentThread, SubmissionHeaders
from api.runs.reader import RunWaiter
from api.runs.submission import SubmissionService
from shared.concurrency import Clock
from shared.domain.agents import Agent, CompactionOptions
from shared.domain.errors import Conflict, InvalidRequest, NotFound
from shared.domain.events import Event, Gap, StepRestarted, TextChunk, Unknown
from shared.domain.ids import AgentId, IdMaker, ProjectId, Seq, ThreadId
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import AssistantMessage, NewMessage, Summary, ToolCall, ToolReturn, UserMessage
from shared.domain.runs import GENERATE, TOOL_RUN, Generation, Run, RunOptions, SubmissionKeys
from shared.domain.tools import Tool
from shared.sql.access.audit import AuditLog
from shared.sql.definitions.agents import AgentStore
from shared.sql.history.messages import MessageStore
from shared.sql.runs.checkpoints import ToolRunStore
from shared.tool_arguments import why_unusable


@dataclass(frozen=True, kw_only=True)
class CompactionService:
    """Submits compactions of histories."""

    submissions: SubmissionService
    waiter: RunWaiter
    messages: MessageStore
    clock: Clock
    ids: IdMaker

    async def compact(
        self, thread: AgentThread, options: CompactionOptions, key_id: str, *, refuse_if_busy: bool
    ) -> tuple[Run, Run | None]:
        """Compacts a history. Returns the submitted run and the ended run (None if this process ends first). The run
        waits for the thread's active run, unless `refuse_if_busy`.

        Raises `PendingApproval` or `Busy`.
        """
        run = await self.submissions.submit_run(self._run(thread, options, key_id), refuse_if_busy=refuse_if_busy)
        return run, await self.waiter.ended(run)

    async def summary(self, run: Run) -> Summary | None:
        """Returns the summary of an ended compaction that did not fail. None: the history had only the instructions.
        Raises `Conflict` if the compaction was cancelled."""
        if run.status is not RunStatus.COMPLETED:
            raise Conflict(f"the compaction (run {run.id}) was cancelled; the messages are as they were")
        bodies = [message.body for message in await self.messages.list_of_run(run)]
        return next((body for body in bodies if isinstance(body, Summary) and body.stats is not None), None)

    def _run(self, thread: AgentThread, options: CompactionOptions, key_id: str) -> Run:
        agent = thread.agent
        return Run(
            id=self.ids.run(),
            project_id=agent.project_id,
            agent_id=agent.id,
            thread_id=thread.id,
            conversation_id=thread.conversation_id,
            options=RunOptions(
                run_type="compaction",
                override_model=thread.model,
                model_options=thread.model_options,
                compaction=options,
                submitted_by=key_id,
            ),
            created_at=self.clock.now(),
        )


@dataclass
class GeneratedText:
    """The text of an answer, collected from the run's log."""

    pieces: list[str] = field(default_factory=list[str])
    is_gone: bool = False
    """Retention has deleted the log."""

    def take(self, _seq: Seq, event: Event | Unknown) -> None:
        """Adds the next event of the log."""
        match event:
            case TextChunk(text=text):
                self.pieces.append(text)
            case StepRestarted():
                self.pieces.clear()
            case Gap():
                self.is_gone = True
            case _:
                pass


class Question(NamedTuple):
    """A question to a model."""

    prompt: str
    system: str
    model: str | None
    """The handle of the model. None: the agent's own."""
    generation: Generation


@dataclass(frozen=True, kw_only=True)
class GenerationService:
    """Submits questions to models."""

    submissions: SubmissionService
    waiter: RunWaiter
    clock: Clock
    ids: IdMaker

    async def ask(
        self, agent: Agent, question: Question, headers: SubmissionHeaders, keys: SubmissionKeys
    ) -> tuple[Run, Run | None, GeneratedText]:
        """Asks a model. Returns the submitted run, the ended run (None if this process ends first) and the answer's
        text. A repeated question gets the run of its first try.

        Raises `InvalidRequest`, `NameTaken` or `LimitReached`.
        """
        await self._check(question)
        asked = NewMessage(id=self.ids.message(), created_at=self.clock.now(), body=UserMessage(question.prompt))
        run = await self.submissions.submit_run(self._run(agent, question, headers), [asked], keys)
        text = GeneratedText()
        return run, await self.waiter.followed(run, text.take), text

    async def _check(self, question: Question) -> None:
        limits, schema = self.submissions.input_limits, question.generation.response_schema
        limits.refuse_long_text(question.prompt, "prompt")
        limits.refuse_long_text(question.system, "system_prompt")
        flaw = None if schema is None else await why_unusable(schema)
        if flaw is not None:
            raise InvalidRequest(f"response_schema {flaw}", field="response_schema")

    def _run(self, agent: Agent, question: Question, headers: SubmissionHeaders) -> Run:
        run_id = self.ids.run()
        return Run(
            id=run_id,
            project_id=agent.project_id,
            agent_id=agent.id,
            thread_id=ThreadId(run_id),
            options=RunOptions(
                run_type=GENERATE,
                status_events=headers.status_events,
                override_model=question.model or agent.model,
                override_system=question.system,
                generation=question.generation,
                submitted_by=headers.key_id,
            ),
            priority=headers.priority,
            created_at=self.clock.now(),
        )


def text_of_answer(run: Run, text: GeneratedText) -> str:
    """Returns the model's answer in an ended run that did not fail. Raises `Conflict` if it was cancelled, and
    `NotFound` if its log is no longer stored."""
    if run.status is not RunStatus.COMPLETED:
        raise Conflict(f"run {run.id} was cancelled before the model had answered")
    if text.is_gone:
        raise NotFound(f"the answer of run {run.id} is no longer stored")
    return "".join(text.pieces)


@dataclass(frozen=True, kw_only=True)
class ToolRunService:
    """Submits single calls of tools."""

    submissions: SubmissionService
    waiter: RunWaiter
    agents: AgentStore
    tool_runs: ToolRunStore
    audit: AuditLog
    clock: Clock
    ids: IdMaker

    async def find(self, project_id: ProjectId, agent_id: AgentId, tool_name: str) -> Tool:
        """Returns the agent's tool of this name. Raises `NotFound`."""
        _, tools, _ = await self.agents.equipped(project_id, agent_id)
        tool = next((tool for tool in tools if tool.name == tool_name), None)
        if tool is None:
            had = ", ".join(tool.name for tool in tools) or "none"
            raise NotFound(f"Agent {agent_id} has no tool named {tool_name!r}. Its tools: {had}")
        return tool

    async def run(self, agent_id: AgentId, tool: Tool, arguments: str, keys: SubmissionKeys) -> tuple[Run, Run | None]:
        """Calls the tool with JSON arguments. Returns the submitted run and the ended run (None if this process ends
        first). A repeated call gets the run of its first try. Raises `NameTaken`."""
        # The call needs no approval, whatever the tool requires, so the audit log records the caller's key first.
        await self.audit.add(tool.project_id, "tool.called", tool.id)
        call = ToolCall(self.ids.tool_call(), tool.name, arguments)
        body = AssistantMessage(tool_calls=[call])
        asked = NewMessage(id=self.ids.message(), created_at=self.clock.now(), body=body)
        run = await self.submissions.submit_run(self._run(agent_id, tool), [asked], keys)
        return run, await self.waiter.ended(run)

    async def result(self, run: Run) -> ToolReturn:
        """Returns the call's result in an ended run that did not fail. Raises `Conflict` if it was cancelled, and
        `NotFound` if the result is no longer stored."""
        result = await self.tool_runs.result(run)
        if result is None:
            raise NotFound(f"the result of run {run.id} is no longer stored")
        if run.status is RunStatus.CANCELLED:
            raise Conflict(f"run {run.id} was cancelled. State of its call of {result.tool_name!r}: {result.text}")
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
