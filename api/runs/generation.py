"""Questions to a model that a client asks beside an agent's conversations: each becomes a run, because only workers ask
models. `shared.domain.runs` says what such a run is.

What a run promises holds for the question: it is stored before it is answered for, counts in budgets and limits, goes
on without its client and when its worker dies, and can be cancelled.
"""

from dataclasses import dataclass, field

from fastapi.responses import JSONResponse
from starlette.responses import Response

from api.errors import model_error_answer
from api.letta.generation import GenerateRequest, wire_generated
from api.letta.model_settings import OfferedModels
from api.letta.submission_keys import SubmissionHeaders, keys_of
from api.runs.submission import SubmissionService
from api.runs.waiting import RunWaiter, elsewhere
from shared.concurrency import Clock
from shared.domain.agents import Agent
from shared.domain.errors import Conflict, InvalidRequest, NotFound, UnknownHandle
from shared.domain.events import Event, Gap, StepRestarted, TextChunk, Unknown
from shared.domain.ids import AgentId, IdMaker, ProjectId, ThreadId
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import NewMessage, UserMessage
from shared.domain.models import split_handle
from shared.domain.runs import GENERATE, Run, RunOptions
from shared.sql.definitions.agents import AgentStore
from shared.tool_arguments import why_unusable


@dataclass
class GeneratedText:
    """The answer of a run, as its log shows it."""

    pieces: list[str] = field(default_factory=list[str])
    is_gone: bool = False
    """Retention has deleted the log."""

    def take(self, event: Event | Unknown) -> None:
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


@dataclass(frozen=True, kw_only=True)
class GenerationService:
    """Has workers ask models, and answers with what they say."""

    submissions: SubmissionService
    waiter: RunWaiter
    agents: AgentStore
    models: OfferedModels
    clock: Clock
    ids: IdMaker

    async def generate(
        self, project_id: ProjectId, agent_id: AgentId, request: GenerateRequest, headers: SubmissionHeaders
    ) -> Response:
        """Asks, and answers when the model has. A request that is sent again is the question of the first time.

        Raises `NotFound`, `UnknownHandle`, `InvalidRequest`, `NameTaken`, `LimitReached`, or `Conflict` when the run
        was cancelled.
        """
        agent = await self.agents.without_links(project_id, agent_id)
        asked = NewMessage(id=self.ids.message(), created_at=self.clock.now(), body=UserMessage(request.prompt))
        run = self._run(agent, request, self._model(request.override_model), headers)
        await self._check(request, run)
        keys = keys_of([], headers, request, GENERATE, run.created_at)
        submitted, text = await self.submissions.submit_run(run, [asked], keys), GeneratedText()
        ended = await self.waiter.followed(submitted, text.take)
        return elsewhere(submitted) if ended is None else _answer(ended, text, agent)

    async def _check(self, request: GenerateRequest, run: Run) -> None:
        limits, generation = self.submissions.input_limits, run.options.generation
        limits.refuse_long_text(request.prompt, "prompt")
        limits.refuse_long_text(request.system, "system_prompt")
        schema = None if generation is None else generation.response_schema
        flaw = None if schema is None else await why_unusable(schema)
        if flaw is not None:
            raise InvalidRequest(f"response_schema {flaw}", field="response_schema")

    def _model(self, handle: str | None) -> str | None:
        """The model that the request names. None: the agent's own."""
        if not handle:
            return None
        try:
            meant = self.models.served(handle, field="override_model") or handle
            split_handle(meant)
        except ValueError as error:
            raise UnknownHandle(handle, str(error)) from error
        return meant

    def _run(self, agent: Agent, request: GenerateRequest, model: str | None, headers: SubmissionHeaders) -> Run:
        run_id = self.ids.run()
        return Run(
            id=run_id,
            project_id=agent.project_id,
            agent_id=agent.id,
            thread_id=ThreadId(run_id),
            options=RunOptions(
                run_type=GENERATE,
                status_events=headers.status_events,
                override_model=model or agent.model,
                override_system=request.system,
                generation=request.generation(),
                submitted_by=headers.key_id,
            ),
            priority=headers.priority,
            created_at=self.clock.now(),
        )


def _answer(run: Run, text: GeneratedText, agent: Agent) -> Response:
    if run.status is RunStatus.FAILED and run.error is not None:
        return model_error_answer(run.error.error_type, run.error.detail, run.error.message)
    if run.status is not RunStatus.COMPLETED:
        raise Conflict(f"run {run.id} was cancelled before the model had answered")
    if text.is_gone:
        raise NotFound(f"the answer of run {run.id} is not kept any more")
    _, model = split_handle(run.options.override_model or agent.model)
    return JSONResponse(wire_generated(run, "".join(text.pieces), model))
