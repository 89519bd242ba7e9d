"""Questions to a model that a client asks beside an agent's conversations: each becomes a run, because only workers ask
models. `shared.domain.runs` says what such a run is.

What a run promises holds for the question: it is stored before it is answered for, counts in budgets and limits, goes
on without its client and when its worker dies, and can be cancelled.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from api.runs.command import SubmissionHeaders
from api.runs.submission import SubmissionService
from api.runs.waiting import RunWaiter
from shared.concurrency import Clock
from shared.domain.agents import Agent
from shared.domain.errors import Conflict, InvalidRequest, NotFound
from shared.domain.events import Event, Gap, StepRestarted, TextChunk, Unknown
from shared.domain.ids import IdMaker, Seq, ThreadId
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import NewMessage, UserMessage
from shared.domain.runs import GENERATE, Generation, Run, RunOptions, SubmissionKeys
from shared.tool_arguments import why_unusable


@dataclass
class GeneratedText:
    """The answer of a run, as its log shows it."""

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
    """What a model is to be asked."""

    prompt: str
    system: str
    model: str | None
    """The handle of the model. None: the agent's own."""
    generation: Generation


@dataclass(frozen=True, kw_only=True)
class GenerationService:
    """Has workers ask models."""

    submissions: SubmissionService
    waiter: RunWaiter
    clock: Clock
    ids: IdMaker

    async def ask(
        self, agent: Agent, question: Question, headers: SubmissionHeaders, keys: SubmissionKeys
    ) -> tuple[Run, Run | None, GeneratedText]:
        """Asks: the run as it was submitted, as it ended (None when this process ends before it), and what the model
        said. A question that is sent again is that of the first time.

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
    """What the model said in a run that has ended and not failed. Raises `Conflict` when the run was cancelled, and
    `NotFound` when its log is gone."""
    if run.status is not RunStatus.COMPLETED:
        raise Conflict(f"run {run.id} was cancelled before the model had answered")
    if text.is_gone:
        raise NotFound(f"the answer of run {run.id} is not kept any more")
    return "".join(text.pieces)
