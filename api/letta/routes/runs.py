"""Routes of runs and their steps: list and read them, resume streams, inject messages, cancel, and leave feedback."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Response

from api.access.accepted_keys import end_of_token
from api.access.authentication import Access
from api.access.callers import Caller, may_see_instructions
from api.agent_answers import types_for
from api.dependencies import (
    AgentEditorDep,
    AgentIdPath,
    CallerDep,
    CancelServiceDep,
    ClockDep,
    HundredNewestFirst,
    IdMakerDep,
    InputLimitsDep,
    LastEventIdDep,
    MessageAnswersDep,
    MessageStoreDep,
    NewestFirst,
    NewestRuns,
    OldestMessages,
    ProjectDep,
    RunIdPath,
    RunStoreDep,
    StartingAfterDep,
    StepIdPath,
    StreamProjectDep,
    SubmissionHeadersDep,
    Texts,
    served,
)
from api.direct_route import DirectRoute, LateRoute
from api.every_answer import warn_if_pruned
from api.letta.conversation_events import RunChangeFrames
from api.letta.conversations import AnswerService
from api.letta.message_input import InjectRequest, parts_in, user_messages
from api.letta.messages import STORED_REASONS, Moment, WireStopReason, wire_time
from api.letta.runs import (
    WIRE_STATUSES,
    CancelRequestIn,
    FeedbackRequest,
    StreamRequest,
    StreamTokenRequest,
    wire_receipt,
    wire_run,
    wire_step,
    wire_usage,
)
from api.letta.traces import wire_run_metrics, wire_step_metrics, wire_trace
from api.runs.command import DEFAULT, keys_of
from api.runs.run_changes import RunChanges
from api.runs.streaming import StreamService
from shared.concurrency import beside
from shared.domain.errors import Conflict, InvalidRequest, NotFound
from shared.domain.ids import AgentId, RunId, ThreadId
from shared.domain.lifecycle import TERMINAL, RunStatus
from shared.domain.messages import ToolReturns
from shared.domain.runs import Feedback, Run
from shared.domain.threads import RunScope
from shared.sql.history.message_lists import MessageFilter
from shared.sql.paging import Page
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.inbox import InboxStore
from shared.sql.runs.listing import RunFilter, RunListing
from shared.sql.runs.steps import StepFilter, StepStore

AccessDep = Annotated[Access, served(Access)]
AnswerServiceDep = Annotated[AnswerService, served(AnswerService)]
ApprovalStoreDep = Annotated[ApprovalStore, served(ApprovalStore)]
InboxStoreDep = Annotated[InboxStore, served(InboxStore)]
RunListingDep = Annotated[RunListing, served(RunListing)]
StepStoreDep = Annotated[StepStore, served(StepStore)]
StreamServiceDep = Annotated[StreamService, served(StreamService)]

router = APIRouter(prefix="/v1/runs", tags=["runs"], route_class=DirectRoute)

CHARACTERS_OF_A_STEP = 2000
"""Rendering this many characters as JSON takes as long as rendering the spans or the metrics of one step."""

WireStatus = Literal["created", "running", "completed", "failed", "cancelled"]


async def _run_filter(
    agent_id: str | None = None,
    agent_ids: Texts = None,
    statuses: Annotated[list[WireStatus] | None, Query()] = None,
    background: bool | None = None,
    stop_reason: WireStopReason | None = None,
    conversation_id: str | None = None,
    parent_run_id: str | None = None,
    created_after: Moment | None = None,
    created_before: Moment | None = None,
    active: bool = False,
) -> RunFilter:
    if conversation_id == DEFAULT and not agent_id:
        raise InvalidRequest(
            "agent_id is missing: conversation_id 'default' is the own history of the agent named",
            field="query.agent_id",
        )
    # A conversation's thread has the conversation's id. The thread of an agent's own history has the agent's id.
    named = agent_id if conversation_id == DEFAULT else conversation_id
    wanted = [*(agent_ids or []), *([agent_id] if agent_id else [])]
    inside = [status for name in statuses or [] for status in WIRE_STATUSES[name]]
    if active:
        inside = [RunStatus.CREATED, RunStatus.RUNNING]
    return RunFilter(
        agent_ids=[AgentId(one) for one in wanted] if wanted else None,
        statuses=inside or None,
        background=background,
        stop_reason=stop_reason if stop_reason is None else STORED_REASONS.get(stop_reason, stop_reason),
        thread_id=None if named is None else ThreadId(named),
        parent_run_id=None if parent_run_id is None else RunId(parent_run_id),
        created_after=created_after,
        created_before=created_before,
    )


def _does_instead(run: Run) -> str:
    """The activity of a run that answers no messages."""
    if run.options.compaction is not None:
        return "compacts its history"
    return "asks a model one question" if run.options.generation is not None else "makes one call of a tool"


async def _answers(approval_store: ApprovalStore, found: Sequence[Run], caller: Caller) -> list[dict[str, Any]]:
    """The wire's runs; parked runs have the calls for which they wait."""
    waiting = await approval_store.waiting_of_runs(found)
    return [_seen_by(caller, run, wire_run(run, waiting.get(run.id))) for run in found]


def _seen_by(caller: Caller, run: Run, shown: dict[str, Any]) -> dict[str, Any]:
    """Removes the callback's URL and error, which may contain a token, except for keys of the project and the run's."""
    may_see = may_see_instructions(caller) or run.options.submitted_by == caller.key_id
    return shown if may_see else {**shown, "callback_url": None, "callback_error": None}


@router.get("")
async def list_runs(
    approval_store: ApprovalStoreDep,
    run_listing: RunListingDep,
    caller: CallerDep,
    page: NewestRuns,
    wanted: Annotated[RunFilter, Depends(_run_filter)],
) -> list[dict[str, Any]]:
    """The project's runs. A page begins after the run `after`, in the requested order. `conversation_id=default`, with
    `agent_id`, means that agent's own history. `created_after` and `created_before` are times, both excluded."""
    return await _answers(approval_store, await run_listing.page(caller.project_id, wanted, page), caller)


@router.get("/active")
async def list_active_runs(
    run_listing: RunListingDep,
    approval_store: ApprovalStoreDep,
    caller: CallerDep,
    agent_id: str | None = None,
    agent_ids: Texts = None,
    background: bool | None = None,
) -> list[dict[str, Any]]:
    """Runs that were submitted and have not ended."""
    wanted = await _run_filter(agent_id, agent_ids, background=background, active=True)
    runs = await run_listing.page(caller.project_id, wanted, Page(limit=1000))
    return await _answers(approval_store, runs, caller)


@router.get("/{run_id}")
async def retrieve_run(
    run_id: RunIdPath, approval_store: ApprovalStoreDep, run_store: RunStoreDep, caller: CallerDep
) -> dict[str, Any]:
    """One run."""
    [answer] = await _answers(approval_store, [await run_store.get(caller.project_id, run_id)], caller)
    return answer


@router.delete("/{run_id}")
async def delete_run(
    run_id: RunIdPath, run_store: RunStoreDep, run_listing: RunListingDep, caller: CallerDep
) -> dict[str, Any]:
    """Deletes a run that has ended, with its log; its messages stay in the agent's history."""
    run = await run_store.get(caller.project_id, run_id)
    if run.status not in TERMINAL:
        raise Conflict(f"run {run_id} has not ended: cancel it before deleting it")
    await run_listing.delete(caller.project_id, run_id)
    return _seen_by(caller, run, wire_run(run))


@router.get("/{run_id}/messages")
async def list_run_messages(
    run_id: RunIdPath,
    run_store: RunStoreDep,
    message_answers: MessageAnswersDep,
    caller: CallerDep,
    page: OldestMessages,
) -> list[dict[str, Any]]:
    """The messages that the run added, including its input, of the types that its submission requested. For a queued
    run: its input."""
    run = await run_store.get(caller.project_id, run_id)
    shown = await message_answers.of_run(run, page, caller)
    return shown if page.ascending else shown[::-1]


@router.get("/{run_id}/steps")
async def list_run_steps(
    run_id: RunIdPath,
    run_store: RunStoreDep,
    step_store: StepStoreDep,
    project_id: ProjectDep,
    page: HundredNewestFirst,
    response: Response,
) -> list[dict[str, Any]]:
    """The run's steps. A pruned run has none, and a `Warning` header says so."""
    run = await run_store.get(project_id, run_id)
    warn_if_pruned(response, run)
    return [wire_step(step) for step in await step_store.list(project_id, page, StepFilter(run_id=run_id))]


@router.get("/{run_id}/usage")
async def retrieve_run_usage(run_id: RunIdPath, run_store: RunStoreDep, project_id: ProjectDep) -> dict[str, Any]:
    """The tokens that the run has used so far."""
    run = await run_store.get(project_id, run_id)
    return wire_usage(run.usage)


@router.get("/{run_id}/metrics")
async def retrieve_run_metrics(
    run_id: RunIdPath,
    run_store: RunStoreDep,
    message_store: MessageStoreDep,
    step_store: StepStoreDep,
    approval_store: ApprovalStoreDep,
    project_id: ProjectDep,
    response: Response,
) -> dict[str, Any]:
    """The durations of the run and of its parts, and its tool calls. For a pruned run the times of its steps are
    deleted, and a `Warning` header says so."""
    run = await run_store.get(project_id, run_id)
    warn_if_pruned(response, run)
    messages = await message_store.list_of_run(run)
    returns = [message.body.returns for message in messages if isinstance(message.body, ToolReturns)]
    called = {one.tool_name for some in returns for one in some}
    called |= {run.options.tool_name} if run.options.tool_name else set()
    steps, approvals = await step_store.of_run(run), await approval_store.of_run(run)
    show = partial(wire_run_metrics, run, sorted(called), steps, approvals)
    return await beside(show, CHARACTERS_OF_A_STEP * len(steps))


@router.get("/{run_id}/trace")
async def retrieve_run_trace(
    run_id: RunIdPath,
    run_store: RunStoreDep,
    step_store: StepStoreDep,
    project_id: ProjectDep,
    response: Response,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> list[dict[str, Any]]:
    """The run as spans, in the order in which they began: the run itself, its steps, its calls of models and tools. A
    pruned run has only the spans of the run itself, and a `Warning` header says so."""
    run = await run_store.get(project_id, run_id)
    warn_if_pruned(response, run)
    steps = await step_store.of_run(run)
    return await beside(partial(wire_trace, run, steps, limit), CHARACTERS_OF_A_STEP * len(steps))


@router.post("/{run_id}/stream", response_model=None)
async def stream_run(
    run_id: RunIdPath,
    run_store: RunStoreDep,
    answer_service: AnswerServiceDep,
    project_id: ProjectDep,
    request: StreamRequest | None = None,
    last_event_id: LastEventIdDep = None,
    status_events: Annotated[bool, Header(alias="X-Holdfast-Status-Events")] = False,
) -> Response:
    """The run's stream from any frame on: live, or years later. The header `Last-Event-ID` works like
    `starting_after`, and takes precedence over it."""
    request = request or StreamRequest()
    run = await run_store.get(project_id, run_id)
    stream = answer_service.resume(run, request, last_event_id, status_events=status_events)
    warn_if_pruned(stream, run)
    return stream


@router.get("/{run_id}/stream", response_model=None)
async def stream_run_for_browsers(
    run_id: RunIdPath,
    run_store: RunStoreDep,
    streaming: StreamServiceDep,
    answer_service: AnswerServiceDep,
    project_id: StreamProjectDep,
    starting_after: StartingAfterDep = None,
    last_event_id: LastEventIdDep = None,
) -> Response:
    """The stream for an EventSource, which can only GET, and resumes by itself. A 204 tells it that nothing follows."""
    run = await run_store.get(project_id, run_id)
    if last_event_id is not None and streaming.is_over(run, last_event_id):
        return Response(status_code=204)
    request = StreamRequest(starting_after=starting_after)
    stream = answer_service.resume(run, request, last_event_id, status_events=False)
    warn_if_pruned(stream, run)
    return stream


@router.post("/{run_id}/stream-token")
async def make_stream_token(
    run_id: RunIdPath,
    run_store: RunStoreDep,
    clock: ClockDep,
    access: AccessDep,
    caller: CallerDep,
    request: StreamTokenRequest | None = None,
) -> dict[str, Any]:
    """A token with which a web page may read this run's stream, and nothing else, for a limited time."""
    await run_store.get(caller.project_id, run_id)
    expires_at = end_of_token(clock.now(), (request or StreamTokenRequest()).valid_for_s)
    token = await access.tokens.make(caller, run_id, expires_at)
    return {"token": token, "expires_at": wire_time(expires_at)}


@router.post("/{run_id}/cancel")
async def cancel_run(
    run_id: RunIdPath, cancels: CancelServiceDep, project_id: ProjectDep, request: CancelRequestIn | None = None
) -> dict[str, Any]:
    """Cancels a run and answers with the receipt: requested, acknowledged, stopped, or too late."""
    cancel = (request or CancelRequestIn()).cancel()
    return wire_receipt(await cancels.cancel_one(project_id, run_id, cancel))


@router.post("/{run_id}/inject")
async def inject_into_run(
    run_id: RunIdPath,
    run_store: RunStoreDep,
    clock: ClockDep,
    input_limits: InputLimitsDep,
    ids: IdMakerDep,
    inbox: InboxStoreDep,
    project_id: ProjectDep,
    request: InjectRequest,
    headers: SubmissionHeadersDep,
) -> dict[str, Any]:
    """Injects messages into a running run: its next step sees them, in order, exactly once.

    A repeated request (equal otids or Idempotency-Key) injects nothing, and its answer has `is_new` false.
    """
    run = await run_store.get(project_id, run_id)
    if not run.answers_messages:
        raise Conflict(f"run {run_id} takes no messages: it {_does_instead(run)} and answers nobody")
    now = clock.now()
    given = request.given_messages()
    input_limits.refuse_long_messages([message.texts() for message in given])
    messages = user_messages(given, ids, now)
    if not messages:
        raise InvalidRequest("messages must hold at least one user message", field="messages")
    keys = keys_of(headers, f"inject into {run_id}", now, body=request.model_dump_json, parts=parts_in(given))
    is_new = await inbox.inject(run, messages, request.if_ended, keys=keys)
    injected = [message.id for message in messages] if is_new else []
    return {"run_id": run_id, "message_ids": injected, "if_ended": request.if_ended, "is_new": is_new}


steps_router = APIRouter(prefix="/v1/steps", tags=["steps"], route_class=LateRoute)


async def _step_filter(
    agent_id: str | None = None,
    run_id: str | None = None,
    model: str | None = None,
    start_date: Moment | None = None,
    end_date: Moment | None = None,
    feedback: Feedback | None = None,
    has_feedback: bool | None = None,
    tags: Texts = None,
) -> StepFilter:
    return StepFilter(
        run_id=None if run_id is None else RunId(run_id),
        agent_id=None if agent_id is None else AgentId(agent_id),
        model=model,
        since=start_date,
        until=end_date,
        feedback=feedback,
        has_feedback=has_feedback,
        tags=tags,
    )


@steps_router.get("")
async def list_steps(
    response: Response,
    step_store: StepStoreDep,
    run_store: RunStoreDep,
    project_id: ProjectDep,
    page: NewestFirst,
    wanted: Annotated[StepFilter, Depends(_step_filter)],
) -> list[dict[str, Any]]:
    """The project's steps, or those of one named agent or run. A step matches with one of `tags`. A pruned run has no
    steps, and a `Warning` header says so."""
    found = await step_store.list(project_id, page, wanted)
    if wanted.run_id is not None and not found:
        with suppress(NotFound):  # a filter without a match gives an empty list
            run = await run_store.get(project_id, wanted.run_id)
            if wanted.agent_id in (None, run.agent_id):
                warn_if_pruned(response, run)
    return [wire_step(step) for step in found]


@steps_router.get("/{step_id}")
async def retrieve_step(step_id: StepIdPath, step_store: StepStoreDep, project_id: ProjectDep) -> dict[str, Any]:
    """One step."""
    return wire_step(await step_store.get(project_id, step_id))


@steps_router.get("/{step_id}/messages")
async def list_step_messages(
    step_id: StepIdPath,
    step_store: StepStoreDep,
    message_answers: MessageAnswersDep,
    caller: CallerDep,
    page: OldestMessages,
) -> list[dict[str, Any]]:
    """The messages that the step added."""
    await step_store.get(caller.project_id, step_id)
    of = MessageFilter(caller.project_id, step_id=step_id)
    shown = await message_answers.page(of, page, types_for(caller, None))
    return shown if page.ascending else shown[::-1]


@steps_router.get("/{step_id}/metrics")
async def retrieve_step_metrics(
    step_id: StepIdPath, step_store: StepStoreDep, project_id: ProjectDep
) -> dict[str, Any]:
    """The durations of the step, its model call and its tools. Unmeasured times are null."""
    return wire_step_metrics(await step_store.get(project_id, step_id), project_id)


@steps_router.get("/{step_id}/trace")
async def retrieve_step_trace(step_id: StepIdPath, step_store: StepStoreDep, project_id: ProjectDep) -> None:
    """The request to the provider and its answer: null, because the server stores neither. The model's output is in the
    step's messages."""
    await step_store.get(project_id, step_id)


@steps_router.patch("/{step_id}/feedback")
async def give_feedback(
    step_id: StepIdPath, step_store: StepStoreDep, project_id: ProjectDep, request: FeedbackRequest
) -> dict[str, Any]:
    """Stores a person's feedback on the step, and answers with the step. Omitted fields stay."""
    step = await step_store.get(project_id, step_id)
    given = request.model_fields_set
    feedback = request.feedback if "feedback" in given else step.feedback
    tags = request.tags or [] if "tags" in given else step.tags
    return wire_step(await step_store.give_feedback(project_id, step_id, feedback=feedback, tags=tags))


# Streams for dashboards: the status of all runs of a project or an agent.


RunChangesDep = Annotated[RunChanges, served(RunChanges)]

events_router = APIRouter(prefix="/v1", tags=["runs"], route_class=LateRoute)


@events_router.get("/events", response_model=None)
async def stream_project(
    run_changes: RunChangesDep, clock: ClockDep, project_id: ProjectDep, follow: bool = True
) -> Response:
    """Streams the project's runs that have not ended, and then each change of a run's status. The frames have the ids
    of runs, and no texts. `follow=false` ends the stream with the present state."""
    return run_changes.stream(RunScope(project_id), RunChangeFrames(clock), follow=follow)


@events_router.get("/agents/{agent_id}/events", response_model=None)
async def stream_agent(
    agent_id: AgentIdPath,
    editor: AgentEditorDep,
    run_changes: RunChangesDep,
    clock: ClockDep,
    project_id: ProjectDep,
    follow: bool = True,
) -> Response:
    """The same stream for one agent, over all its conversations."""
    await editor.get(project_id, agent_id)
    return run_changes.stream(RunScope(project_id, agent_id), RunChangeFrames(clock), follow=follow)
