"""A product with one conversation: the property test's actions on it, and the checks that must hold afterwards."""

import json
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from msgspec.structs import replace

from api.access.authentication import act_for
from api.letta.conversations import SendOptions
from api.letta.message_input import MessageIn, MessagesRequest
from api.letta.messages import wire_messages
from api.runs.cancel import Cancel
from api.runs.command import AgentThread, BusyPolicy, Command, SubmissionHeaders
from api.services import Services
from shared.domain.agents import Agent
from shared.domain.errors import CancelMode, Conflict, HoldfastError
from shared.domain.events import Ended, Stopped, decode
from shared.domain.ids import AgentId, ProjectId, Seq, ThreadId
from shared.domain.lifecycle import ACTIVE, RunStatus
from shared.domain.log_writer import continues
from shared.domain.messages import AssistantMessage, Summary, ToolReturns, UserMessage
from shared.domain.runs import Run
from shared.process.context import ProcessContext
from shared.redis.queue import RunQueue
from shared.sql.history.message_lists import MessageFilter
from shared.sql.paging import Page
from shared.sql.runs.listing import QuietRun, RunFilter
from tests.kit.model_server import ModelServer
from tests.kit.product import Product
from tests.kit.provider_rules.request import check_request
from tests.kit.wait_until import HANGS_S, wait_until
from worker.models.provider import ModelCall
from worker.models.registry import Models

PROJECT = ProjectId("default")
PATHS = {
    "openai/gpt-4o-mini": "/chat/completions",
    "openai/gpt-5": "/responses",
    "anthropic/claude-haiku-4-5": "/messages",
    "google_ai/gemini-2.5-flash": ":streamGenerateContent",
}

Choice = Literal["approve", "deny", "tool"]

TOOLS = {
    "quick": 'def quick(what: str) -> str:\n    """Is quick."""\n    return what\n',
    "failing": 'def failing() -> str:\n    """Fails."""\n    raise ValueError("no")\n',
    "asking": 'def asking(what: str) -> str:\n    """Asks first."""\n    return what\n',
}

TURNS: dict[str, list[dict[str, Any]]] = {
    "answers": [{"text": "Here you are."}],
    "thinks_slowly": [{"reasoning": "one two three", "text": "four five six", "delay_ms": 4, "first_delay_ms": 10}],
    "uses_a_tool": [{"text": "Let me see.", "calls": [{"name": "quick", "arguments": {"what": "a"}}]}, {"text": "ok"}],
    "uses_two": [
        {"calls": [{"name": "quick", "arguments": {"what": "a"}}, {"name": "failing", "arguments": {}}]},
        {"text": "ok", "delay_ms": 3},
    ],
    "asks": [{"calls": [{"name": "asking", "arguments": {"what": "b"}}]}, {"text": "thanks"}],
    "asks_and_uses": [
        {
            "text": "Both.",
            "calls": [{"name": "asking", "arguments": {"what": "b"}}, {"name": "quick", "arguments": {"what": "c"}}],
        },
        {"calls": [{"name": "asking", "arguments": {"what": "d"}}]},
        {"text": "thanks"},
    ],
    "fails_at_once": [{"error": "auth"}],
    "fails_midway": [{"text": "one two three four", "error": "server", "error_after": 2}],
    "fails_after_a_tool": [{"calls": [{"name": "quick", "arguments": {"what": "a"}}]}, {"error": "context"}],
    "calls_nonsense": [{"calls": [{"name": "no_such_tool", "arguments": {"x": 1}}]}, {"text": "sorry"}],
}


@dataclass
class ConversationDriver:
    """One agent of a running product."""

    product: Product
    services: Services
    context: ProcessContext
    models: ModelServer
    agent: Agent

    @classmethod
    async def begin(cls, product: Product, tool_ids: Sequence[str]) -> "ConversationDriver":
        """A new agent with tools named quick, failing and asking."""
        made = await product.agent(model="builtin/scripted", tools=tool_ids)
        services = product.services
        act_for(PROJECT)
        agent = await services.agents.get(PROJECT, AgentId(made.id))
        return cls(product, services, product.context, product.models, agent)

    async def submit(self, turns: str, policy: BusyPolicy) -> None:
        """Sends a script; a refusal counts as an answer."""
        script = json.dumps({"turns": TURNS[turns]})
        await self._send([MessageIn(content=script)], policy)

    async def decide(self, choices: Sequence[Choice]) -> None:
        """Decides all waiting calls, one choice for each."""
        waiting = await self.services.approvals.waiting_on_thread(PROJECT, ThreadId(self.agent.id))
        items = [_item(approval.tool_call_id, choices[n % len(choices)]) for n, approval in enumerate(waiting)]
        if items:
            await self._send([MessageIn(type="approval", approvals=items)], "enqueue")

    async def cancel(self, mode: CancelMode, wait_s: float) -> None:
        """Cancels all active runs."""
        try:
            await self.services.cancels.cancel_runs(PROJECT, self.agent.id, Cancel(mode=mode, wait_s=wait_s))
        except Conflict:
            return

    async def inject(self) -> None:
        """Injects a message into the active run, if there is one."""
        if any(run.status is not RunStatus.AWAITING_APPROVAL for run in await self._active()):
            script = json.dumps({"turns": TURNS["answers"]})
            await self._send([MessageIn(content=script)], "inject")

    async def lose_worker(self) -> None:
        """Brings SQL and Redis into the state after the loss of a worker: the run is dispatched again, its owner is a
        zombie."""
        for run in await self._active():
            if run.status is RunStatus.RUNNING:
                seen = QuietRun(run.id, run.status, run.dispatch, run.fence, run.created_at)
                await RunQueue(self.context.redis).dispatch(*await self.services.runs.dispatch_again([seen]))

    async def come_to_rest(self) -> None:
        """Waits until no run is created or running."""

        async def at_rest() -> bool:
            in_hand = await self._active()
            # Runs queued behind one that waits for a person wait with it.
            waits = any(run.status is RunStatus.AWAITING_APPROVAL for run in in_hand)
            return not any(run.status is RunStatus.RUNNING or not waits for run in in_hand)

        await wait_until(at_rest, description=f"the runs of {self.agent.id} to come to rest")

    async def check(self) -> None:
        """Checks everything that must hold when a conversation is idle."""
        await self.come_to_rest()
        await self.cancel(CancelMode.INTERRUPT, 5)
        await self.come_to_rest()
        await self._check_history()
        for run in await self._all_runs():
            await self._check_log(run)
        await self._check_providers()
        await self._check_goes_on()

    async def _check_history(self) -> None:
        thread = ThreadId(self.agent.id)
        context = await self.services.messages.context(PROJECT, thread)
        calls = [c.id for m in context if isinstance(m.body, AssistantMessage) for c in m.body.tool_calls]
        returns = [r.tool_call_id for m in context if isinstance(m.body, ToolReturns) for r in m.body.returns]
        assert sorted(calls) == sorted(returns), f"calls {calls}, results {returns}"
        listed = wire_messages(
            await self.services.stores.message_lists.page(
                MessageFilter(PROJECT, thread_id=thread), limit=1000, order="asc"
            )
        )
        ids = list(dict.fromkeys(message["id"] for message in listed))
        [details] = await self.services.agents.details([self.agent])
        # After a full window a summary replaces messages, which lists still have.
        in_context = set(details.message_ids)
        has_summary = any(isinstance(message.body, Summary) for message in context)
        assert [one for one in ids if one in in_context or not has_summary] == details.message_ids

    async def _check_log(self, run: Run) -> None:
        assert run.status not in ACTIVE, f"{run.id} is {run.status}"
        events: list[Any] = []
        last = Seq(0)
        async with aclosing(self.services.streaming.reader.follow(run, last, quiet_s=5)) as batches:
            async for batch in batches:
                for seq, entry in batch:
                    assert continues(last, seq, entry), f"{run.id}: {seq} follows {last}"
                    last = seq
                    events.append(decode(entry))
        assert sum(isinstance(event, Ended) for event in events) == 1
        assert isinstance(events[-1], Ended)
        assert sum(isinstance(event, Stopped) for event in events) == 1

    async def _check_providers(self) -> None:
        history = await self.services.messages.context(PROJECT, ThreadId(self.agent.id))
        spoken = [message for message in history if message.turn]
        if not spoken:
            return
        models = Models(self.models.base_urls(), first_event_timeout=HANGS_S, idle_timeout=HANGS_S, retries=0)
        question = replace(spoken[-1], body=UserMessage(content="And?"), id=self.context.ids.message(), run_id=None)
        for handle, path in PATHS.items():
            call = ModelCall(handle=handle, system="Be brief.", history=[*spoken, question])
            async with aclosing(models.stream(call)) as stream:
                async for _ in stream:
                    pass
            violations = check_request(path, self.models.requests[-1].body)
            assert violations == [], f"{handle}: {violations}"
        self.models.requests.clear()
        await models.aclose()

    async def _check_goes_on(self) -> None:
        run = await self._submit(MessagesRequest(input=json.dumps({"turns": TURNS["answers"]})))
        assert run is not None
        await self.come_to_rest()
        after = await self.services.runs.look_up(run.id)
        assert (after.status, after.stop_reason) == (RunStatus.COMPLETED, "end_turn"), after.error

    async def _send(self, messages: list[MessageIn], policy: BusyPolicy) -> None:
        await self._submit(MessagesRequest(messages=messages, if_busy=policy))

    async def _submit(self, request: MessagesRequest) -> Run | None:
        sender = self.services.dialects.sending
        try:
            return await sender.submissions.submit(command_for(self.services, self.agent, request))
        except HoldfastError:
            return None

    async def _active(self) -> list[Run]:
        return await self.services.listing.active_of_agent(PROJECT, self.agent.id)

    async def _all_runs(self) -> list[Run]:
        wanted = RunFilter(agent_ids=[self.agent.id])
        return await self.services.listing.page(PROJECT, wanted, Page(limit=1000))


def command_for(services: Services, agent: Agent, request: MessagesRequest) -> Command:
    """A submission to this agent, streamed by tokens."""
    sent = request.model_copy(update={"background": True, "stream_tokens": True})
    return services.dialects.sending.command(AgentThread(agent), sent, SendOptions(SubmissionHeaders()))


def _item(call_id: str, choice: Choice) -> dict[str, Any]:
    if choice == "tool":
        return {"type": "tool", "tool_call_id": call_id, "tool_return": "by hand", "status": "success"}
    return {"type": "approval", "tool_call_id": call_id, "approve": choice == "approve", "reason": "because"}
