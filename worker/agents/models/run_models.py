"""The worker's models for the process of one run: each answer is paid once, and journaled before it counts.

The worker reads an answer to its end even if the process that asked has died: the next process gets it from its
beginning. An answer is found by its request, so a body need not know that it is executed again.
"""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, Literal, Protocol

import msgspec
from msgspec.structs import replace

from shared.concurrency import task_group
from shared.domain.errors import BudgetExceeded, ModelError, ModelErrorType, RunInterrupted, UnknownHandle
from shared.domain.events import StopReason
from shared.domain.ids import StepId
from shared.domain.journal import JournalEntry, Replay
from shared.domain.messages import AssistantMessage, MessageBody, estimate_tokens
from shared.domain.runs import Step, Usage
from worker.agents.models.answers import RecordedAnswer, recorded
from worker.agents.models.requests import OF_WORKER, ModelRequest
from worker.models.provider import AttemptFailed, Finished, ModelCall, ModelEvent, Text
from worker.models.registry import Models
from worker.run.observation import ObservedModelCall
from worker.run.run_handle import RunHandle


class StepsUsedUp(Exception):
    """The run may call no model any longer."""


class AskingAttempt(Protocol):
    """The execution of the body that calls the models."""

    replay: Replay
    has_stored: bool
    given: list[JournalEntry]
    """Entries with which the turn began. They are stored with the first answer, because SQL may lack them."""

    @property
    def in_hand(self) -> list[str]:
        """The names of the body's unfinished calls."""
        ...

    def next_step_id(self) -> StepId:
        """Returns the step of a model's next answer."""
        ...


class JournaledAnswer:
    """An answer of a model, arriving now or from the journal. All of its readers get it from its beginning."""

    def __init__(self, entry: JournalEntry) -> None:
        self.entry = entry
        self.whole: RecordedAnswer | None = None
        self.events: list[ModelEvent] = []
        self.readers = 0
        self.is_counted = False
        """Whether it is one of the run's steps."""
        self._failure: ModelError | None = None
        self._news = asyncio.Event()

    @classmethod
    def of(cls, entry: JournalEntry) -> "JournaledAnswer":
        """Returns the answer of an entry."""
        answer, result = cls(entry), entry.result or b"{}"
        if entry.state == "failed":
            failure = msgspec.json.decode(result, type=dict[str, str])
            answer.fail(ModelError(ModelErrorType(failure["type"]), failure["text"]))
        else:
            answer.whole = msgspec.json.decode(result, type=RecordedAnswer)
            answer.events = answer.whole.events()
        return answer

    @property
    def is_over(self) -> bool:
        """Whether no event will follow."""
        return self.whole is not None or self._failure is not None

    def put(self, event: ModelEvent) -> None:
        """Gives an event to the readers."""
        self.events.append(event)
        self._tell()

    def end(self, whole: RecordedAnswer, event: Finished) -> None:
        """Gives the readers the end."""
        self.whole = whole
        self.put(event)

    def fail(self, failure: ModelError) -> None:
        """Gives the readers the error that ended the answer."""
        self._failure = failure
        self._tell()

    async def follow(self) -> AsyncGenerator[ModelEvent]:
        """Yields the answer from its beginning. Raises `ModelError`."""
        seen = 0
        while seen < len(self.events) or not self.is_over:
            if seen == len(self.events):
                await self._news.wait()
                continue
            yield self.events[seen]
            seen += 1
        if self._failure is not None:
            raise self._failure

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


class RunModels:
    """The models of one run in this worker, for all of its processes."""

    def __init__(
        self,
        handle: RunHandle,
        models: Models,
        group: asyncio.TaskGroup,
        access: dict[str, str],
        *,
        linger_s: float,
        serves_all: bool,
    ) -> None:
        self.access = access
        """The address and the token with which the run's process calls the models."""
        self._handle = handle
        self._models = models
        self._group = group
        self._linger_s = linger_s
        self._serves_all = serves_all
        self._answers: dict[str, JournaledAnswer] = {}
        self._work: dict[str, asyncio.Task[None]] = {}
        self._attempt: AskingAttempt | None = None
        self._taken: set[str] = set()

    @classmethod
    @asynccontextmanager
    async def of_run(
        cls, handle: RunHandle, models: Models, access: dict[str, str], *, linger_s: float, serves_all: bool
    ) -> AsyncGenerator["RunModels"]:
        """Yields the models for the block. `linger_s`: seconds for which an answer continues after its process has
        given it up. `serves_all`: the agent calls no model by a client of its own."""
        async with task_group() as group:
            own = cls(handle, models, group, access, linger_s=linger_s, serves_all=serves_all)
            try:
                yield own
            finally:
                own.process_is_gone()
                own.stop()

    def serves(self, model: str) -> bool:
        """Whether the body's calls to this model arrive here, where their tokens are counted."""
        return self._serves_all or model.startswith(OF_WORKER)

    @property
    def known(self) -> list[str]:
        """Handles of models that the agent can call."""
        return self._models.known_handles()

    def begin(self, attempt: AskingAttempt) -> None:
        """A process begins. It gets the answers to earlier processes."""
        self._attempt, self._taken = attempt, set()
        for entry in list(attempt.replay.entries.values()):
            if entry.kind == "answer" and entry.slot not in self._answers:
                self._answers[entry.slot] = JournaledAnswer.of(entry)
        for answer in self._answers.values():
            attempt.replay.put(answer.entry)

    def process_is_gone(self) -> None:
        """A process has ended. Unfinished answers continue, for the next process."""
        self._attempt = None

    def stop(self) -> None:
        """Ends the unfinished answers, with the connections to the providers."""
        for work in self._work.values():
            work.cancel()

    def forget(self) -> None:
        """The turn begins again: earlier requests do not count."""
        self.stop()
        self._answers.clear()

    @contextmanager
    def asking(self, asked: ModelRequest) -> Generator[JournaledAnswer]:
        """Yields the answer to a reader. If its last reader leaves and the process lives on, the answer ends. Raises
        `UnknownHandle`, `StepsUsedUp`, and `RunInterrupted` if the run is leaving this worker."""
        attempt = self._attempt
        if attempt is None:
            raise RunInterrupted
        answer = self._left(asked.hash) or self._asked(asked, attempt)
        self._taken.add(answer.entry.slot)
        answer.readers += 1
        try:
            yield answer
        finally:
            answer.readers -= 1
            if not answer.is_over and not answer.readers:
                # A killed process leaves its connections a moment before the worker learns of its end.
                asyncio.get_running_loop().call_later(self._linger_s, self._end_unread, answer, attempt)

    def _left(self, asked: str) -> JournaledAnswer | None:
        """Returns the first answer to this request that the body has not reached, or whose client has given it up."""
        for slot, answer in self._answers.items():
            is_left = slot not in self._taken or not (answer.is_over or answer.readers)
            if answer.entry.hash == asked and is_left:
                return answer
        return None

    def _asked(self, asked: ModelRequest, attempt: AskingAttempt) -> JournaledAnswer:
        handle = self._handle
        if not attempt.in_hand:
            try:
                handle.stop_if_asked()
            except RunInterrupted as error:
                handle.interruption.interrupt(error)
                raise
        in_progress = sum(not (one.is_over or one.is_counted) for one in self._answers.values())
        if handle.progress.step_count + in_progress >= handle.run.options.max_steps:
            raise StepsUsedUp
        try:
            self._models.route(asked.handle)
        except ModelError as error:
            known = ", ".join(self.known) or "none"
            raise UnknownHandle(asked.name, f"{error.message} There are: {known}.") from error
        answer = JournaledAnswer(attempt.replay.begin_answer(asked.handle, asked.hash, handle.clock.now()))
        slot = answer.entry.slot
        self._answers[slot] = answer
        work = self._answer(answer, self._call(asked))
        self._work[slot] = self._group.create_task(work, name=f"answer of {asked.handle}")
        return answer

    def _end_unread(self, answer: JournaledAnswer, attempt: AskingAttempt) -> None:
        if attempt is self._attempt and not answer.readers and not answer.is_over:
            self._work[answer.entry.slot].cancel()
            self._answers.pop(answer.entry.slot, None)

    async def _answer(self, answer: JournaledAnswer, call: ModelCall) -> None:
        """Calls the model. The answer is stored before a reader gets its end."""
        handle = self._handle
        step = self._step(answer.entry, call)
        try:
            await handle.account.reserve(call)
            end = await self._receive(answer, call, step)
        except BudgetExceeded as error:
            # The run fails or waits for room, as it does when an agent's own loop calls a model.
            handle.interruption.interrupt(error)
            return
        except ModelError as error:
            await self._store(answer, "failed", {"type": error.error_type, "text": error.message})
            answer.fail(error)
            return
        whole = recorded([*answer.events, end], call.handle)
        used, answer.is_counted = handle.account.count(call.handle, end.usage), True
        step = replace(step, number=handle.progress.step_count, usage=used)
        await self._store(answer, "done", whole, handle.observation.times.of(step))
        answer.end(whole, end)

    async def _receive(self, answer: JournaledAnswer, call: ModelCall, step: Step) -> Finished:
        handle, end = self._handle, None
        try:
            with handle.observation.model_call(call, step) as observed:
                return (end := await self._take_all(answer, call, observed))
        finally:
            if end is None and answer.events:
                said = estimate_tokens("".join(one.text for one in answer.events if isinstance(one, Text)))
                used = Usage(prompt_tokens=call.estimated_tokens(), completion_tokens=said, estimated=True)
                handle.account.count_aside(call.handle, used)

    async def _take_all(self, answer: JournaledAnswer, call: ModelCall, observed: ObservedModelCall) -> Finished:
        end = None
        async with aclosing(self._models.stream(call)) as events:
            async for event in events:
                if observed.is_silent:
                    self._handle.observation.hear(observed, event)
                match event:
                    case Finished():
                        end = event
                    case AttemptFailed():
                        pass
                    case _:
                        answer.put(event)
        if end is None:
            raise ModelError(ModelErrorType.ERROR, "The model's stream ended before its answer did.")
        observed.finish(end.usage, end.reason)
        return end

    async def _store(
        self, answer: JournaledAnswer, state: Literal["done", "failed"], value: Any, step: Step | None = None
    ) -> None:
        now, attempt = self._handle.clock.now(), self._attempt
        answer.entry = replace(answer.entry, state=state, result=msgspec.json.encode(value), ended_at=now)
        given: list[JournalEntry] = []
        if attempt is not None:
            attempt.replay.put(answer.entry)
            attempt.has_stored = True
            given, attempt.given = attempt.given, []
        await self._handle.record_journal([*given, answer.entry], step=step)

    def _step(self, entry: JournalEntry, call: ModelCall) -> Step:
        handle, attempt = self._handle, self._attempt
        return Step(
            id=handle.ids.step() if attempt is None else attempt.next_step_id(),
            run_id=handle.run.id,
            agent_id=handle.run.agent_id,
            number=handle.progress.step_count + 1,
            model=call.handle,
            status="success",
            stop_reason=StopReason.ANSWERED,
            created_at=entry.started_at,
        )

    def _call(self, asked: ModelRequest) -> ModelCall:
        given = [one.whole for one in self._answers.values() if one.whole is not None]
        known = {call.id: one for one in given for call in one.calls}
        return ModelCall(
            handle=asked.handle,
            system=asked.system,
            history=[self._handle.unstored(_as_given(body, known)) for body in asked.history],
            tools=asked.tools,
            options=asked.model_options(),
            must_call=asked.choice not in ("auto", "none"),
            forced_tool=asked.choice[1:] if asked.choice.startswith("=") else "",
            may_call=asked.choice != "none",
            demanded=asked.demanded,
            thread_id=self._handle.run.thread_id,
            taken_call_ids=frozenset(known),
        )


def _as_given(body: MessageBody, known: dict[str, RecordedAnswer]) -> MessageBody:
    """Returns an answer of this turn with calls in its provider's own form; any other message unchanged."""
    if not isinstance(body, AssistantMessage) or not body.tool_calls:
        return body
    given = known.get(body.tool_calls[0].id)
    is_same = given is not None and (given.text, given.calls) == (body.text, body.tool_calls)
    return given.message() if given is not None and is_same else body
