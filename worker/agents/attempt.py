"""One execution of a body: matches its calls with the journal, and stores new ones before they count."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, cast

import msgspec

from shared.domain.body_input import for_body
from shared.domain.events import StatusChanged, StopReason
from shared.domain.ids import StepId
from shared.domain.journal import EntryKind, JournalEntry
from shared.domain.lifecycle import RunTrigger
from shared.domain.messages import Decision, NewMessage, ToolCall, ToolReturn, ToolReturns
from shared.domain.run_trees import CallWaits
from shared.domain.runs import Step
from shared.domain.settling import RunEnd, decided_return, unknown_return
from worker.agents.attached_tools import AttachedTools, CallEnd, Refused, all_of
from worker.agents.attempt_start import AttemptStart, read_start
from worker.agents.body_process import BodyProcess, Frame
from worker.agents.frames import (
    BodyRaised,
    WaitingCall,
    call_of,
    decided_end,
    end_of_sleep,
    go,
    may_ask,
    recorded_answer,
    recorded_result,
    seconds,
    settled_by_probe,
    usage_of,
    value_of,
)
from worker.agents.models.run_models import RunModels
from worker.agents.shown_turn import failure_of, result_of
from worker.bodies.agent_context import AgentServices
from worker.run.run_handle import AwaitsRuns, Outcome, Parked, RunHandle, Sleeps


class Attempt:
    """One process with the body, until the body ends or waits for a person, or the process is gone."""

    def __init__(self, handle: RunHandle, read: AttemptStart, models: RunModels, tools: AttachedTools) -> None:
        self.replay = read.replay
        self.has_stored = False
        """Whether this attempt has stored entries of the journal."""
        self.given = read.given
        self._handle = handle
        self._shown = read.shown
        self._models = models
        self._tools = tools
        self._hello = read.hello
        self._decided_by = read.decided_by
        self._late_input = read.late_input
        self._for_inbox = [*read.for_inbox]
        self._in_hand: dict[str, JournalEntry] = {}
        self._calls: dict[str, ToolCall] = {}
        self._unstored = [*read.given]
        self._sleeps: dict[str, datetime] = {}
        """The ends of long sleeps, by slots. The process need not stay for them."""
        self._is_quiet = False  # the body only sleeps
        self._held_back: list[Frame] = []
        self._is_stuck = False  # an unfinished call seems to wait for those that are held back
        self._waits: list[CallWaits] = []
        self._asked: list[WaitingCall] = []
        self._scopes: dict[str, str] = {}
        """The ids of calls that are entered again after the end of their process, by slots."""
        self._rest = 0
        """The number of the newest `rest` frame, which asks whether the process is at rest."""
        self._has_used_up_steps = self._has_shown_change = False
        self._step_ids: set[StepId] = set()

    @classmethod
    async def load(
        cls, handle: RunHandle, services: AgentServices, models: RunModels, tools: AttachedTools, number: int
    ) -> "Attempt":
        """Reads the journal and the history. `number`: the worker's attempt. Raises `NotFound` and `Unavailable`."""
        attempt = cls(handle, await read_start(handle, services, models, number), models, tools)
        models.begin(attempt)
        return attempt

    @property
    def in_hand(self) -> list[str]:
        """The names of the body's unfinished calls."""
        return [entry.name for entry in self._in_hand.values()]

    async def converse(self, process: BodyProcess) -> Outcome | Parked | AwaitsRuns | Sleeps | None:
        """Answers the body until it ends or waits. None if its process is gone.

        Raises `BodyChanged`, `BodyRaised`, what interrupts a run, and what the handle raises.
        """
        process.send(self._hello)
        while (frame := await self._tools.next_frame(process, self._quiet_s)) is not None:
            answer: Frame | None = None
            match frame["t"]:
                case "text" | "reasoning" | "data":
                    self._shown.show(frame)
                case "returned":
                    return await self._ended(frame)
                case "raised":
                    raise BodyRaised(frame)
                case "rested":
                    if frame["number"] == self._rest and not self._is_busy:
                        return await self._parked()
                    continue
                case "quiet" if self._is_busy:
                    await self._begin_held_back(process)
                    continue
                case "begin" | "end" | "probed" | "await" | "made" | "quiet":
                    answer = await self._answer(frame)
                case _:
                    return None
            if (left := await self._left()) is not None:
                return left
            self._reply(process, frame, answer)
        return None

    def _reply(self, process: BodyProcess, frame: Frame, answer: Frame | None) -> None:
        """Sends the answer to a frame. If a call waits for a person, asks whether all else has come to rest."""
        if answer is not None:
            process.send({**answer, "id": frame["id"]})
        if self._asked and not self._is_busy and frame["t"] not in ("text", "reasoning", "data"):
            self._rest += 1
            process.send({"t": "rest", "number": self._rest})

    def _is_held_back(self, frame: Frame) -> bool:
        """Whether a call must not begin, and gets no answer, because the process is about to be killed. Calls inside an
        unfinished call still begin, and further calls for a person are collected, to ask for them together."""
        ending = [slot for slot in self._in_hand if slot not in self._scopes]
        if any(frame["branch"].startswith(f"{slot}/") for slot in ending):
            return False
        interruption, is_stuck = self._handle.interruption, self._is_stuck and self._is_busy
        pauses = not is_stuck and (bool(self._waits) or (bool(self._asked) and not may_ask(frame)))
        return pauses or interruption.leaves or interruption.after_step

    async def _begin_held_back(self, process: BodyProcess) -> None:
        """The pause comes when these calls have ended, too."""
        held_back, self._held_back, self._is_stuck = self._held_back, [], True
        for frame in held_back:
            self._reply(process, frame, await self._answer(frame))

    @property
    def _is_busy(self) -> bool:
        """Whether a call is unfinished that must end in this process."""
        return any(slot not in self._sleeps and slot not in self._scopes for slot in self._in_hand)

    @property
    def _quiet_s(self) -> float | None:
        """Seconds without a frame after which the run leaves, as it only sleeps, or calls are held back no more."""
        if self._held_back and self._is_busy:
            return self._tools.stuck_s
        only_sleeps = self._sleeps and not (self._asked or self._is_busy)
        return self._tools.quiet_s if only_sleeps else None

    async def _left(self) -> Outcome | AwaitsRuns | Sleeps | None:
        """Leaves the run, if that was requested, once no call is unfinished that must end here. Raises
        `CancelRequested` and `ShutdownRequested`."""
        if self._is_busy:
            return None
        if self._has_used_up_steps:
            return self._completed(StopReason.STEPS_USED_UP)
        self._handle.stop_if_asked()
        if self._waits:
            await self._record([])
            return await self._handle.let_wait(all_of(self._waits))
        if self._is_quiet:
            await self._record([])
            return Sleeps(min(self._sleeps.values()))
        return None

    async def _answer(self, frame: Frame) -> Frame | None:
        if frame["t"] == "begin":
            if not self._is_held_back(frame):
                return await self._begun(frame)
            self._held_back.append(frame)
            return None
        if frame["t"] == "quiet":
            self._is_quiet = True
            return None
        slot: str = frame["call"]
        if frame["t"] == "made":
            return await self._made(slot, frame["id"])
        if frame["t"] == "await" or self._tools.is_making(slot) or slot not in self._in_hand:
            return self._tools.end_of(slot, frame)
        self._sleeps.pop(slot, None)
        entry = self._in_hand.pop(slot)
        if frame["t"] == "probed":
            return await self._probed(entry, frame)
        error: dict[str, str] | None = frame.get("error")
        value = frame.get("value")
        call = self._calls.get(entry.slot)
        made = result_of(call, value) if call and error is None else None
        result = failure_of(call, error) if call and error is not None else made
        ended = await self._store_end(entry, "done" if error is None else "failed", error or value, call, result, frame)
        return {"t": "stored", "at": seconds(ended.ended_at)}

    async def _begun(self, frame: Frame) -> Frame | None:
        """Answers the beginning of a call: with its end from the journal, or that it may start. None: it waits."""
        handle, kind = self._handle, cast("EntryKind", frame["kind"])
        entry, is_known = self.replay.begin(kind, frame["name"], frame["branch"], frame["hash"], handle.clock.now())
        call = self._come_to(entry, frame, is_known=is_known) if kind in ("tool", "approval") else None
        if is_known and entry.state != "started":
            if kind == "model" and entry.settings_hash != frame["settings_hash"]:
                self._show_changed_settings()
            return await self._replayed(entry, call)
        if kind == "inbox":
            return await self._taken_from_inbox(entry)
        if kind == "model":
            return await self._model_begun(entry, frame, is_known=is_known)
        if call is not None:
            return await self._call_begun(entry, call, frame, is_known=is_known)
        if (end := end_of_sleep(entry, frame, handle.clock.now())) is not None:
            self._sleeps[entry.slot] = end
        return await self._started(entry, None, is_known=is_known)

    def _come_to(self, entry: JournalEntry, frame: Frame, *, is_known: bool) -> ToolCall:
        """Returns the call in the form for clients. Shows the body's own calls, and those that wait for a decision."""
        call = call_of(entry, frame)
        if "/" not in entry.branch or may_ask(frame) or self._shown.decision_on(call.id) is not None:
            self._show_call(entry, call, is_known=is_known)
        if frame.get("scope"):
            self._scopes[entry.slot] = call.id
        return call

    def _show_call(self, entry: JournalEntry, call: ToolCall, *, is_known: bool) -> None:
        self._calls[entry.slot] = call
        self._shown.come_to(call.id, is_known=is_known)

    async def _call_begun(self, entry: JournalEntry, call: ToolCall, frame: Frame, *, is_known: bool) -> Frame | None:
        if frame.get("attached"):
            return await self._begun_attached(entry, call, frame, is_known=is_known)
        if frame["kind"] == "approval" or frame["of_client"]:
            return await self._decided(entry, call, frame)
        if frame["needs_approval"]:
            return await self._begun_if_approved(entry, call, frame)
        if is_known:
            return await self._begun_again(entry, call, frame)
        return await self._started(entry, call, is_known=False)

    async def _begun_attached(
        self, entry: JournalEntry, call: ToolCall, frame: Frame, *, is_known: bool
    ) -> Frame | None:
        """Begins a call of an attached tool, which this worker makes."""
        was_started = is_known and entry.attempt > 0
        version = None if was_started else self._shown.asked_version(call.id)
        found = await self._tools.find(entry, call, version, may_wait=frame["may_wait"])
        if isinstance(found, Refused):
            return await self._unknown(entry) if was_started else await self._ended_here(entry, found)
        if self._shown.decision_on(call.id) is not None or (found.asks and not was_started):
            if entry.slot not in self._calls:
                self._show_call(entry, call, is_known=is_known)
            versioned, frame = msgspec.structs.replace(call, tool_version=found.tool.version), frame | found.asked
            begun = await self._begun_if_approved(entry, versioned, frame | {"found": found._replace(asks=False)})
        elif is_known:
            begun = await self._begun_again(entry, call, frame | {"found": found})
        else:
            begun = await self._started(entry, call, is_known=False)
        if begun is not None and begun["t"] == "go":
            self._tools.start(entry.slot, call, found, json.dumps(begun.get("arguments", frame["arguments"])))
        return begun

    async def _made(self, slot: str, number: int) -> Frame | None:
        """Handles a call of this worker that has ended, or that waits for other runs."""
        entry, end = self._in_hand.pop(slot), self._tools.take(slot)
        if isinstance(end, CallWaits):
            self._waits.append(end)
            return None
        return self._tools.keep(slot, await self._ended_here(entry, end), number)

    async def _ended_here(self, entry: JournalEntry, end: CallEnd) -> Frame:
        call = self._calls.get(entry.slot)
        result = None if call is None else end.shown(call)
        return recorded_answer(await self._store_end(entry, end.state, end.value, call, result))

    async def _begun_again(self, entry: JournalEntry, call: ToolCall, frame: Frame) -> Frame:
        """Begins a call again whose tool was started, and whose result is lost."""
        if (found := frame.get("found")) is not None:
            lost = await self._tools.end_of_lost(call, found, json.dumps(frame["arguments"]))
            return await (self._started(entry, call, is_known=True) if lost is None else self._ended_here(entry, lost))
        if frame["probe"]:
            self._in_hand[entry.slot] = entry
            return {**go(entry), "t": "probe"}
        if not (frame["idempotent"] or frame.get("scope")):
            return await self._unknown(entry)
        return await self._started(entry, call, is_known=True)

    async def _begun_if_approved(self, entry: JournalEntry, call: ToolCall, frame: Frame) -> Frame | None:
        """Starts a tool that needs an approval, with the arguments that the person has approved."""
        decision = self._shown.decision_on(call.id)
        if decision is None:
            self._asked.append(WaitingCall(msgspec.structs.replace(entry, attempt=0), call, frame))
            return None
        arguments = decision.edited_arguments or call.arguments
        if not entry.attempt:
            self._shown.decided(call, decision, arguments, self._decided_by.get(call.id))
        result = decided_return(call, decision)
        if result is not None:
            await self._store_end(entry, *decided_end(decision, result), call, result)
            return await self._replayed(self.replay.entries[entry.slot], call)
        if entry.attempt:
            begun = await self._begun_again(entry, call, {**frame, "arguments": json.loads(arguments)})
        else:
            begun = await self._started(entry, call, is_known=True)
            self._shown.started(call)
        return {**begun, "arguments": json.loads(arguments)}

    async def _model_begun(self, entry: JournalEntry, frame: Frame, *, is_known: bool) -> Frame | None:
        """Lets the body ask a model, unless the run has used up its steps or its budget. Raises `BudgetExceeded`."""
        handle = self._handle
        if handle.progress.step_count >= handle.run.options.max_steps:
            if self._in_hand:
                return {"t": "failed", "error": {"type": "StepsUsedUp", "text": "the run has used up its steps"}}
            self._has_used_up_steps = True
            return None
        handle.account.check()
        await handle.whole(lambda: handle.services.budgets.check_accounts(handle.run))
        entry = msgspec.structs.replace(entry, settings_hash=frame["settings_hash"])
        self.replay.put(entry)
        return await self._started(entry, None, is_known=is_known)

    async def _model_ended(self, ended: JournalEntry, frame: Frame) -> None:
        """Stores a model's answer with its usage, as a step of the run."""
        handle = self._handle
        usage = handle.account.count(ended.name, usage_of(frame))
        step = Step(
            id=handle.ids.step() if "/" in ended.branch else self.next_step_id(),
            run_id=handle.run.id,
            agent_id=handle.run.agent_id,
            number=handle.progress.step_count,
            model=ended.name,
            status="success" if ended.state == "done" else "failed",
            stop_reason=StopReason.ANSWERED,
            usage=usage,
            created_at=ended.started_at,
        )
        await self._record([ended], step)

    def next_step_id(self) -> StepId:
        """Returns the step of a model's next answer: the current text's, unless another answer already has it."""
        step_id = self._shown.step_in_hand
        if step_id in self._step_ids:
            return self._handle.ids.step()
        self._step_ids.add(step_id)
        return step_id

    async def _started(self, entry: JournalEntry, call: ToolCall | None, *, is_known: bool) -> Frame:
        """Starts the call. The start of a tool is stored first."""
        if is_known:
            entry = msgspec.structs.replace(entry, attempt=entry.attempt + 1)
            self.replay.put(entry)
        self._in_hand[entry.slot] = entry
        if entry.kind not in ("step", "model"):
            shown = call is not None and not is_known and entry.slot in self._calls and self._shown.is_between_calls
            if call is not None and shown:
                await self._checkpoint([self._shown.asking([call])], [entry], starting=[call])
            else:
                await self._record([entry])
        waited = self._handle.clock.now() - entry.started_at
        return {**go(entry), "waited_s": waited / timedelta(seconds=1)}

    def _show_changed_settings(self) -> None:
        """Shows once that the run uses an answer to other instructions."""
        if not self._has_shown_change:
            self._has_shown_change = True
            handle = self._handle
            handle.emit(StatusChanged(handle.at, handle.run.status, "instructions_changed"))

    async def _replayed(self, entry: JournalEntry, call: ToolCall | None) -> Frame:
        """Answers from the journal. Shows the result of a call that had ended before it could enter the history."""
        if call is not None and entry.slot in self._calls and not self._shown.has_result(call.id):
            result = recorded_result(entry, call, value_of(entry))
            if messages := self._shown.answered(call, result):
                await self._checkpoint(messages, [])
        return recorded_answer(entry, self.replay.began_at)

    async def _probed(self, entry: JournalEntry, frame: Frame) -> Frame:
        """Continues a lost call by the result of its probe."""
        call = self._calls.get(entry.slot)
        if frame["kind"] != "happened":
            may_start = frame["kind"] == "did_not_happen" or frame.get("may_repeat")
            return await (self._started(entry, call, is_known=True) if may_start else self._unknown(entry))
        value = frame["value"]
        settlement = settled_by_probe(entry, value, self._handle.clock.now())
        record = self._handle.services.checkpoints.record_settled_effect
        async with self._handle.writing() as run:
            await self._handle.whole(lambda: record(run, settlement))
        result = None if call is None else result_of(call, value)
        ended = await self._store_end(entry, "done", value, call, result)
        return {"t": "result", "value": value, "at": seconds(ended.ended_at)}

    async def _unknown(self, entry: JournalEntry) -> Frame:
        """Stores that the outcome of a tool is unknown for ever."""
        call = self._calls.get(entry.slot)
        result = None if call is None else unknown_return(call)
        ended = await self._store_end(entry, "unknown", None, call, result)
        return {"t": "unknown", "key": entry.idempotency_key, "at": seconds(ended.ended_at)}

    async def _store_end(
        self,
        entry: JournalEntry,
        state: Literal["done", "failed", "unknown"],
        value: Any,
        call: ToolCall | None,
        result: ToolReturn | None,
        frame: Frame | None = None,
    ) -> JournalEntry:
        ended = msgspec.structs.replace(
            entry, state=state, result=json.dumps(value).encode(), ended_at=self._handle.clock.now()
        )
        self.replay.put(ended)
        messages = [] if call is None or result is None else self._shown.answered(call, result)
        if messages:
            await self._checkpoint(messages, [ended])
        elif entry.kind == "model" and frame is not None and not self._models.serves(entry.name):
            await self._model_ended(ended, frame)
        else:
            await self._record([ended])
        return ended

    async def _taken_from_inbox(self, entry: JournalEntry) -> Frame:
        """Gives the body new messages. No message may enter the history between a call and its result."""
        ended = msgspec.structs.replace(entry, state="done", ended_at=self._handle.clock.now())

        def with_messages(messages: Sequence[NewMessage]) -> list[JournalEntry]:
            come = [*self._for_inbox, *messages]
            value = [{**shown, "id": one.id} for one in come for shown in for_body(one)]
            self.replay.put(msgspec.structs.replace(ended, result=json.dumps(value).encode()))
            return [*self._unstored, self.replay.entries[ended.slot]]

        if self._shown.is_between_calls and await self._handle.inbox.deliver(with_messages):
            self._unstored, self.has_stored = [], True
        else:
            self._unstored = with_messages([])
        self._for_inbox = []
        return {"t": "result", "value": value_of(self.replay.entries[ended.slot]), "at": seconds(ended.ended_at)}

    async def _decided(self, entry: JournalEntry, call: ToolCall, frame: Frame) -> Frame | None:
        """Answers with the decision of a person or of the client. None if there is none yet: the call then waits."""
        decision: Decision | None = self._shown.decision_on(call.id)
        if decision is None:
            self._asked.append(WaitingCall(entry, call, frame))
            return None
        result = decided_return(call, decision)
        if frame["kind"] == "tool":
            made = result or unknown_return(call)
            await self._store_end(entry, *decided_end(decision, made), call, made)
            return await self._replayed(self.replay.entries[entry.slot], call)
        arguments = decision.edited_arguments or call.arguments
        value: Any = {
            "approve": decision.approve,
            "reason": decision.reason or "",
            "arguments": json.loads(arguments),
            "decided_by": self._decided_by.get(call.id),
        }
        self._shown.decided(call, decision, arguments, self._decided_by.get(call.id))
        await self._store_end(entry, "done", value, call, result or result_of(call, value["arguments"]))
        return await self._replayed(self.replay.entries[entry.slot], call)

    async def _parked(self) -> Parked:
        """Asks for decisions. The process is killed afterwards: the run needs only the journal."""
        handle, calls = self._handle, [one.call for one in self._asked]
        ended = self._shown.pausing(self._scopes.values())
        message = self._shown.asking(calls, {one.call.id: one.by for one in self._asked})
        messages = [*ended, *(self._late_input if ended else ()), message]
        approvals = [one.approval(handle, message.id) for one in self._asked]
        return await handle.park(messages, approvals, journal=[*self._unstored, *(one.entry for one in self._asked)])

    async def _ended(self, frame: Frame) -> Outcome:
        """Handles the return of the body. Its text is the answer, unless it has emitted text since its last tool.
        Unfinished calls end with its process."""
        for entry in [entry for slot, entry in self._in_hand.items() if slot in self._calls]:
            await self._unknown(entry)
        if not self._shown.has_spoken and frame["text"]:
            self._shown.say(frame["text"])
        # An earlier attempt may have stored another state before its worker died.
        if frame["state"] or self._hello["state"] or self._hello["attempt"] > 1:
            # No checkpoint: the answer enters the history only with the run's end. Until then it can become void.
            state = json.dumps(frame["state"], ensure_ascii=False).encode()
            await self._handle.record_journal(self._unstored, state=state)
        return self._completed(StopReason.ANSWERED)

    def _completed(self, reason: StopReason) -> Outcome:
        end = RunEnd(trigger=RunTrigger.COMPLETE, stop_reason=reason)
        return Outcome(end=end, messages=[*self._shown.pausing(()), *self._shown.ending()])

    async def _record(self, entries: list[JournalEntry], step: Step | None = None) -> None:
        await self._handle.record_journal([*self._unstored, *entries], step=step)
        self._unstored, self.has_stored = [], True

    async def _checkpoint(
        self, messages: list[NewMessage], entries: list[JournalEntry], starting: Sequence[ToolCall] = ()
    ) -> None:
        if self._late_input and messages and isinstance(messages[-1].body, ToolReturns):
            self._for_inbox += self._late_input
            messages, self._late_input = [*messages, *self._late_input], []
        await self._handle.checkpoint(messages, starting=starting, journal=[*self._unstored, *entries])
        self._unstored, self.has_stored = [], True
