"""Submitting: a request becomes a stored run that is rung for. Every way of sending a message ends here."""

from collections.abc import Sequence
from dataclasses import dataclass

from api.cancelling import RunCancelling
from api.letta.message_input import (
    IfBusy,
    MessageIn,
    MessagesRequest,
    decision_message,
    submission_keys,
    user_messages,
)
from shared.carry_out import ring_for
from shared.clock import Clock
from shared.domain.agents import Agent, ModelOptions
from shared.domain.errors import AlreadyDecided, CancelMode, Conflict, InvalidRequest, PendingApproval
from shared.domain.ids import ConversationId, IdMaker, ThreadId
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.messages import NewMessage, UserMessage
from shared.domain.runs import Run, RunError, RunOptions
from shared.redis.run_queue import RunQueue
from shared.sql.approval_store import ApprovalStore
from shared.sql.inbox_store import InboxStore
from shared.sql.run_listing import RunListing
from shared.sql.run_store import RunStore, Submitted
from shared.sql.settlement import Settlement, SettlementStore

KEEP_ALIVE = (
    "<system-alert>Automated keep-alive ping. Ignore this message and continue from where you stopped.</system-alert>"
)
"""What the model is told when a decision is sent a second time: the wire's own text."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be submitted, and how."""

    agent: Agent
    request: MessagesRequest
    background: bool
    stream_tokens: bool
    conversation_id: ConversationId | None = None
    status_events: bool = False
    model: str | None = None
    """The conversation's own model, should it have one."""
    model_options: ModelOptions | None = None
    run_type: str = "send_message"
    idempotency_key: str | None = None
    if_busy: IfBusy | None = None
    actor: str = "api"

    @property
    def thread_id(self) -> ThreadId:
        return ThreadId(self.conversation_id or self.agent.id)

    @property
    def busy_policy(self) -> IfBusy:
        """What to do when the thread is busy: a conversation refuses, an agent's own history queues."""
        return self.if_busy or self.request.if_busy or ("reject" if self.conversation_id else "enqueue")


@dataclass(frozen=True, kw_only=True)
class Submission:
    """Stores submissions and rings for them."""

    runs: RunStore
    listing: RunListing
    approvals: ApprovalStore
    inbox: InboxStore
    settlements: SettlementStore
    queue: RunQueue
    cancelling: RunCancelling
    clock: Clock
    ids: IdMaker

    async def submit(self, order: Order) -> Run:
        """Stores the run and rings for it. The same keys give the same run, whatever has become of it.

        Raises `PendingApproval`, `Busy`, `NoPendingApproval`, `WrongToolCalls` or `InvalidRequest`.
        """
        given = order.request.given_messages()
        keys = submission_keys(given, order.idempotency_key)
        if any(message.type != "message" for message in given):
            submitted = await self._submit_decision(order, given, keys)
        else:
            submitted = await self._submit_messages(order, given, keys)
        await ring_for(self.queue, submitted.run)
        return submitted.run

    async def submit_run(self, run: Run, *, refuse_if_busy: bool) -> Run:
        """Stores a run that brings no messages and rings for it. Raises `PendingApproval` or `Busy`."""
        submitted = await self.runs.submit(run, refuse_if_busy=refuse_if_busy)
        await ring_for(self.queue, submitted.run)
        return submitted.run

    async def submit_or_fail(self, order: Order) -> Run:
        """As `submit`, but a thread that waits for a person gives a run that has failed, as the wire has it."""
        try:
            return await self.submit(order)
        except PendingApproval as error:
            now = self.clock.now()
            given = order.request.given_messages()
            run = await self.runs.store_refused(self._run(order, user_messages(given, self.ids, now)))
            settled = await self.settlements.settle(
                run,
                Settlement(
                    trigger=RunTrigger.FAIL,
                    stop_reason="error",
                    now=now,
                    error=RunError("internal_error", "An error occurred during agent execution.", error.message),
                ),
            )
            return settled.run

    async def _submit_messages(self, order: Order, given: Sequence[MessageIn], keys: list[str]) -> Submitted:
        messages = user_messages(list(given), self.ids, self.clock.now())
        policy = order.busy_policy
        if policy in ("interrupt", "rollback", "inject"):
            # A retry must not cancel what the first try has started, nor say it twice.
            seen = await self.runs.of_keys(order.thread_id, keys)
            taken = seen or await self._make_room(order, policy, messages, keys)
            if taken is not None:
                return Submitted(taken, is_new=False)
        run = self._run(order, messages)
        return await self.runs.submit(run, keys=keys, refuse_if_busy=policy == "reject")

    async def _submit_decision(self, order: Order, given: list[MessageIn], keys: list[str]) -> Submitted:
        now = self.clock.now()
        waiting = await self.approvals.waiting_on_thread(order.thread_id)
        decision = decision_message(
            given,
            [approval.tool_call_id for approval in waiting],
            {approval.message_id for approval in waiting} | {approval.id for approval in waiting},
            self.ids,
            now,
        )
        if decision is None:
            raise InvalidRequest("approvals is missing")
        said = user_messages(given, self.ids, now)
        try:
            run = self._run(order, [decision, *said])
            return await self.runs.submit_decision(run, keys=keys, decided_by=order.actor)
        except AlreadyDecided:
            # A client that was cut off sends its decision again: the tools have run, the model is asked to go on.
            alive = NewMessage(id=self.ids.message(), created_at=now, body=UserMessage(content=KEEP_ALIVE))
            return await self.runs.submit(self._run(order, [alive, *said]), keys=keys)

    async def _make_room(
        self, order: Order, policy: IfBusy, messages: list[NewMessage], keys: Sequence[str]
    ) -> Run | None:
        """Gives the busy thread what the caller chose; the run that took the messages in, if one did."""
        active = await self.listing.active_of_agent(order.agent.project_id, order.agent.id, order.thread_id)
        if policy == "inject":
            for run in active:
                answers = run.status is not RunStatus.AWAITING_APPROVAL and run.options.compaction is None
                if answers and await self._inject(run, messages, keys):
                    return run
            return None
        mode = CancelMode.ROLLBACK if policy == "rollback" else CancelMode.INTERRUPT
        for run in active:
            await self.cancelling.cancel(run, actor=order.actor, reason=f"a new message came with {policy}", mode=mode)
        return None

    async def _inject(self, run: Run, messages: list[NewMessage], keys: Sequence[str]) -> bool:
        try:
            await self.inbox.inject(run.id, messages, "next", keys=keys)
        except Conflict:
            return False
        return True

    def _run(self, order: Order, messages: list[NewMessage]) -> Run:
        request = order.request
        return Run(
            id=self.ids.run(),
            project_id=order.agent.project_id,
            agent_id=order.agent.id,
            thread_id=order.thread_id,
            conversation_id=order.conversation_id,
            options=RunOptions(
                streamed=bool(request.streaming),
                stream_tokens=order.stream_tokens,
                status_events=order.status_events or request.include_status_events,
                background=order.background,
                max_steps=request.max_steps,
                run_type=order.run_type,
                client_tools=request.tools_of_client(),
                override_model=request.override_model or order.model,
                override_system=request.override_system,
                model_options=order.model_options,
                include_return_message_types=request.include_return_message_types,
                request_config={
                    "use_assistant_message": request.use_assistant_message,
                    "assistant_message_tool_name": request.assistant_message_tool_name,
                    "assistant_message_tool_kwarg": request.assistant_message_tool_kwarg,
                },
            ),
            input=messages,
            callback_url=request.callback_url,
            created_at=self.clock.now(),
        )
