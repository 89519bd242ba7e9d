"""Submissions: a request becomes a stored run that is dispatched. Every way of sending a message ends here."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel

from api.admission import end_turn
from api.input_limits import InputLimits
from api.letta.agents import CLEARS_CONTEXT
from api.letta.context import when_full
from api.letta.message_input import (
    IfBusy,
    MessageIn,
    MessagesRequest,
    decision_message,
    user_messages,
)
from api.letta.submission_keys import SubmissionHeaders, keys_of
from api.runs.cancel import RunCanceller
from api.runs.queued_runs import QueuedRuns
from api.runs.submission_traces import SubmissionTraces
from shared.concurrency import PATIENCE_S, Clock, retry_while_unavailable
from shared.domain.agents import Agent, ModelOptions
from shared.domain.errors import AlreadyDecided, CancelMode, Conflict, ErrorCode, InvalidRequest, PendingApproval
from shared.domain.ids import ConversationId, IdMaker, ThreadId
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.limits import LimitReached
from shared.domain.messages import NewMessage, UserMessage
from shared.domain.runs import NO_KEYS, Run, RunError, RunOptions, SubmissionKeys
from shared.domain.settling import RunEnd
from shared.redis.queue import RunQueue
from shared.runs.unowned import ApprovalService
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.inbox import InboxStore
from shared.sql.runs.listing import RunListing
from shared.sql.runs.run_store import RunStore
from shared.sql.runs.settlement import Settlement, SettlementStore

KEEP_ALIVE = (
    "<system-alert>Automated keep-alive ping. Ignore this message and continue from where you stopped.</system-alert>"
)
"""The message to the model when a client sends a decision a second time; the text is the wire's own."""


Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A request to submit: what, to which thread, and how."""

    agent: Agent
    request: MessagesRequest
    headers: SubmissionHeaders
    background: bool
    stream_tokens: bool
    conversation_id: ConversationId | None = None
    model: str | None = None
    """The conversation's own model, if it has one."""
    model_options: ModelOptions | None = None
    run_type: str = "send_message"
    if_busy: IfBusy | None = None
    actor: str = "api"
    sent: BaseModel | None = None
    """What the client sent, if that was in another dialect: by it the same request is known."""

    @property
    def thread_id(self) -> ThreadId:
        return ThreadId(self.conversation_id or self.agent.id)

    @property
    def busy_policy(self) -> IfBusy:
        """What to do when the thread is busy: a conversation refuses, an agent's own history queues."""
        return (
            self.if_busy
            or self.headers.if_busy
            or self.request.if_busy
            or ("reject" if self.conversation_id else "enqueue")
        )


@dataclass(frozen=True, kw_only=True)
class SubmissionService:
    """Stores submissions and dispatches them."""

    runs: RunStore
    listing: RunListing
    approvals: ApprovalStore
    inbox: InboxStore
    settlements: SettlementStore
    queue: RunQueue
    queued_runs: QueuedRuns
    max_steps: int
    """The highest that a submission may ask for."""
    input_limits: InputLimits
    canceller: RunCanceller
    decisions: ApprovalService
    traces: SubmissionTraces
    clock: Clock
    ids: IdMaker
    on_submitted: Callable[[str], None] = lambda _: None
    """Told what kind of run was submitted: `message`, `decision`, `compaction`, `tool` or `generation`."""

    async def submit(self, submission: Submission) -> Run:
        """Stores the run and dispatches it. The same keys give the same run, also when it has ended.

        Raises `PendingApproval`, `Busy`, `NoPendingApproval`, `WrongToolCalls`, `NameTaken` or `InvalidRequest`.
        """
        if submission.request.max_steps > self.max_steps:
            most = f"the most is {self.max_steps} (HOLDFAST_MAX_STEPS)"
            raise InvalidRequest(f"max_steps is {submission.request.max_steps}: {most}", field="max_steps")
        given = submission.request.given_messages()
        self.input_limits.refuse_long_messages(given)
        way = f"{submission.run_type} {submission.background}"
        keys = keys_of(given, submission.headers, submission.sent or submission.request, way, self.clock.now())
        if any(message.type != "message" for message in given):
            return await self._submit_decision(submission, given, keys)
        return await self._submit_messages(submission, given, keys)

    async def submit_run(
        self,
        run: Run,
        given: Sequence[NewMessage] = (),
        keys: SubmissionKeys = NO_KEYS,
        *,
        refuse_if_busy: bool = False,
    ) -> Run:
        """Stores a run with its input and dispatches it. Raises `PendingApproval`, `Busy` or `LimitReached`."""
        with self.traces.submitting(run) as (traced, span):
            try:
                await self.queued_runs.take_place(run.project_id)
            except LimitReached:
                # What was submitted before is found again, however long the queue is.
                if await self.runs.of_keys(run.project_id, run.keys_thread_id, keys) is None:
                    raise
            submit = self.runs.submit
            submitted = await self._persist(
                lambda again: submit(traced, given, keys=keys, refuse_if_busy=refuse_if_busy, again=again)
            )
            span.set({"holdfast.run.id": submitted.run.id, "holdfast.sent_again": submitted.run.id != run.id})
            if submitted.is_new:
                self.on_submitted(_kind_of(submitted.run))
            await self.queue.dispatch_stored(submitted.run)
        end_turn()
        return submitted.run

    async def submit_or_fail(self, submission: Submission) -> Run:
        """As `submit`, but a thread that waits for a person gives a run that has failed, as the wire has it."""
        try:
            return await self.submit(submission)
        except PendingApproval as error:
            now = self.clock.now()
            shown = RunError(ErrorCode.PENDING_APPROVAL, f"CONFLICT: {error.message}", error.message, error.waiting)
            end = RunEnd(trigger=RunTrigger.FAIL, stop_reason="error", error=shown)
            given = user_messages(submission.request.given_messages(), self.ids, now)
            refused, store_refused = Settlement(end=end, now=now), self.settlements.store_refused
            with self.traces.submitting(self._run(submission)) as (run, span):
                span.fail(type(error).__name__)
                return await self._persist(lambda again: store_refused(run, given, refused, again=again))

    async def _submit_messages(self, submission: Submission, given: Sequence[MessageIn], keys: SubmissionKeys) -> Run:
        messages = user_messages(list(given), self.ids, self.clock.now())
        policy = submission.busy_policy
        if policy in ("interrupt", "rollback", "inject"):
            taken_in = await self._make_room(submission, policy, messages, keys)
            if taken_in is not None:
                return taken_in
        return await self.submit_run(self._run(submission), messages, keys, refuse_if_busy=policy == "reject")

    async def _submit_decision(self, submission: Submission, given: list[MessageIn], keys: SubmissionKeys) -> Run:
        now = self.clock.now()
        waiting = await self.approvals.waiting_on_thread(submission.agent.project_id, submission.thread_id)
        decision = decision_message(
            given,
            waiting,
            self.ids,
            now,
        )
        if decision is None:
            raise InvalidRequest("approvals is missing", field="approvals")
        said = user_messages(given, self.ids, now)
        run = self._run(submission)
        try:
            submitted = await self.decisions.decide_all(run, [decision, *said], keys=keys, by=submission.actor)
        except AlreadyDecided:
            # A client that was cut off sends its decision again. The tools have run, so the model is asked to go on.
            alive = NewMessage(id=self.ids.message(), created_at=now, body=UserMessage(content=KEEP_ALIVE))
            return await self.submit_run(run, [alive, *said], keys)
        end_turn()
        if submitted.is_new:
            self.on_submitted("decision")
        self.traces.decided(submitted.run, now)
        return submitted.run

    async def _make_room(
        self, submission: Submission, policy: IfBusy, messages: list[NewMessage], keys: SubmissionKeys
    ) -> Run | None:
        """Does with a busy thread what the caller chose; the run that took the messages in, if one did."""
        agent = submission.agent
        active = await self.listing.active_of_agent(agent.project_id, agent.id, submission.thread_id)
        # A retry must not cancel the run of the first try, nor inject its messages twice. The keys are read after the
        # active runs, so that a first try which is among those has its keys stored.
        seen = await self.runs.of_keys(agent.project_id, submission.thread_id, keys)
        if seen is not None:
            await self.queue.dispatch_stored(seen)
            return seen
        if policy == "inject":
            for run in active:
                answers = run.status is not RunStatus.AWAITING_APPROVAL and run.answers_messages
                if answers and await self._inject(run, messages, keys):
                    return run
            return None
        mode = CancelMode.ROLLBACK if policy == "rollback" else CancelMode.INTERRUPT
        end_turn()  # a cancel waits for the run to stop
        for run in active:
            reason = f"a new message came with {policy}"
            await self.canceller.cancel(run, actor=submission.actor, reason=reason, mode=mode)
        return None

    async def _inject(self, run: Run, messages: list[NewMessage], keys: SubmissionKeys) -> bool:
        inject = self.inbox.inject
        try:
            await self._persist(lambda _: inject(run, messages, "next", keys=keys))
        except Conflict:
            return False
        return True

    async def _persist(self, write: Callable[[bool], Awaitable[Result]]) -> Result:
        return await retry_while_unavailable(write, for_s=PATIENCE_S, clock=self.clock)

    def _run(self, submission: Submission) -> Run:
        request = submission.request
        return Run(
            id=self.ids.run(),
            project_id=submission.agent.project_id,
            agent_id=submission.agent.id,
            thread_id=submission.thread_id,
            conversation_id=submission.conversation_id,
            options=RunOptions(
                streamed=bool(request.streaming),
                stream_tokens=submission.stream_tokens,
                status_events=submission.headers.status_events or request.include_status_events,
                background=submission.background,
                max_steps=request.max_steps,
                run_type=submission.run_type,
                client_tools=request.tools_of_client(),
                client_skills=request.skills_of_client(),
                clears_context=bool(submission.agent.extra.get(CLEARS_CONTEXT)),
                override_model=request.override_model or submission.model,
                override_system=request.override_system,
                speech_as_text=request.use_assistant_message,
                when_full=when_full(submission.agent.extra),
                compaction_messages=request.include_compaction_messages,
                model_options=submission.model_options,
                submitted_by=submission.headers.key_id,
                include_return_message_types=request.include_return_message_types,
                request_config={
                    "use_assistant_message": request.use_assistant_message,
                    "assistant_message_tool_name": request.assistant_message_tool_name,
                    "assistant_message_tool_kwarg": request.assistant_message_tool_kwarg,
                },
            ),
            priority=submission.headers.priority,
            callback_url=request.callback_url,
            created_at=self.clock.now(),
        )


def _kind_of(run: Run) -> str:
    if run.answers_messages:
        return "message"
    if run.options.compaction is not None:
        return "compaction"
    return "tool" if run.options.generation is None else "generation"
