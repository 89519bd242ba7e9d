"""A run's log as parts that open, grow and close: a pure fold, without I/O and without a clock.

All browsers' protocols have such parts (a text, a thought, a call), each in its own frames. A dialect maps the parts to
its frames. This module handles, once for all, logs after a crash, with a gap, or without the events of items. A mapping
may rely on these facts for every log:

* Every part that opens is closed before `LegEnded`, before `Restarted`, before `Lost`, and before a part of the next
  step opens. No piece of a part follows its close, and no part opens twice.
* No piece is empty.
* Each call that the log shows has its arguments closed once, by `CallReady` or by `CallCut`, before its `Returned`.
  A run that continues another one may have a `Returned` for a call that the earlier run showed.
* The parts depend only on the run's submission and on the log, so they are the same for every reader at every time.
  Entries without meaning for a reader yield no parts.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

from shared.domain import events
from shared.domain.ids import MessageId, Seq, StepId
from shared.domain.messages import ToolCall, ToolReturn
from shared.domain.runs import Run

AGAIN = "~"
"""Suffix of a call's id that the run has used before: models may number the calls of each answer from one."""

_CUT_OFF = (events.StopReason.CANCELLED, events.StopReason.FAILED, events.StopReason.MODEL_FAILED)
"""Stop reasons of runs whose last answer may be incomplete."""


class StepBegan(NamedTuple):
    """A model call begins, perhaps with the results of the last one's tool calls. Precedes the step's first part."""

    step_id: StepId


class ReasoningOpened(NamedTuple):
    """A part of the model's reasoning opens. Its id is unique in the run."""

    id: str
    message_id: MessageId


class ReasoningGrew(NamedTuple):
    """A piece of reasoning."""

    id: str
    text: str


class ReasoningClosed(NamedTuple):
    """A part of the reasoning is complete, or was cut off."""

    id: str


class TextOpened(NamedTuple):
    """A text of the model opens. Its id is unique in the run."""

    id: str
    message_id: MessageId


class TextGrew(NamedTuple):
    """A piece of text."""

    id: str
    text: str


class TextClosed(NamedTuple):
    """A text is complete, or was cut off."""

    id: str


class CallOpened(NamedTuple):
    """A call of the model opens; its arguments follow. `id` is the call's id, unique in the run."""

    id: str
    name: str
    message_id: MessageId
    answered_by: events.AnsweredBy


class CallGrew(NamedTuple):
    """A piece of a call's arguments. All pieces together are JSON."""

    id: str
    arguments: str


class CallReady(NamedTuple):
    """A call is complete: it is made now, or waits for a person or the client."""

    id: str
    name: str
    arguments: str
    """The complete arguments. They replace the joined pieces if they differ from these."""
    answered_by: events.AnsweredBy


class CallCut(NamedTuple):
    """A call was cut off in the middle, and no tool runs."""

    id: str
    name: str
    arguments: str
    """The joined pieces."""


class Decided(NamedTuple):
    """A decision on a call of the previous run, which this run continues."""

    event: events.CallDecided


class Returned(NamedTuple):
    """The result of a call, once for each call, as soon as the log has it."""

    id: str
    """The id under which this run has shown the call. For calls of an earlier run, the call's own id."""
    result: ToolReturn


class DataShown(NamedTuple):
    """Data of the agent's code, beside its answer."""

    event: events.DataPart


class Injected(NamedTuple):
    """A user's message that was injected into the running run."""

    event: events.InputDelivered


class Restarted(NamedTuple):
    """The step begins again, and these parts are void: readers must remove them."""

    message_ids: frozenset[MessageId]
    """Messages that are void as a whole."""
    part_ids: tuple[str, ...]
    """The void parts, by their own ids: texts, reasoning and calls, in the order in which they opened."""


class Lost(NamedTuple):
    """Entries of the log are lost: the next parts may lack their beginnings."""


class Compaction(NamedTuple):
    """A summary is about to replace old messages of the context, or has replaced them."""

    event: events.CompactionBegan | events.Compacted


class LegEnded(NamedTuple):
    """The last part."""

    reason: str
    """A `StopReason`, or a newer release's reason."""
    failure: events.Failed | None
    usage: events.UsageReported | None
    unanswered: tuple[str, ...]
    """The ids of complete calls without a result: they wait for a person or the client, or were stopped."""


Part = (
    StepBegan
    | ReasoningOpened
    | ReasoningGrew
    | ReasoningClosed
    | TextOpened
    | TextGrew
    | TextClosed
    | CallOpened
    | CallGrew
    | CallReady
    | CallCut
    | Decided
    | Returned
    | DataShown
    | Injected
    | Restarted
    | Lost
    | Compaction
    | LegEnded
)


class CallIds:
    """The ids under which a client has the calls of one run. The client has dropped void calls, so a call that replaces
    a void one may have its id, as in the list of stored messages."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}
        """The id that the client has for a call, by the id of the call's part."""
        self._kept: set[str] = set()
        """The ids that are in use at the client."""

    def open(self, part_id: str) -> str:
        """Returns the id for the client of a call whose part opens."""
        shown = part_id
        while shown.endswith(AGAIN) and shown.removesuffix(AGAIN) in self._shown:
            shown = shown.removesuffix(AGAIN)
        while shown in self._kept:
            shown += AGAIN
        self._kept.add(shown)
        self._shown[part_id] = shown
        return shown

    def of(self, part_id: str) -> str:
        """Returns the client's id of a shown call. A call of another run has its own id."""
        return self._shown.get(part_id, part_id)

    def take_back(self, part_id: str) -> str:
        """Records that the client drops this part. Returns the id under which the client had it."""
        shown = self.of(part_id)
        self._kept.discard(shown)
        return shown

    def __contains__(self, shown: object) -> bool:
        """Whether the client has a call of this run under this id."""
        return shown in self._kept


_Key = tuple[str | int, ...]
"""A part's identity in the log: its kind, message and number, or `call`, its step and its id."""


class _Open:
    """A part that grows."""

    __slots__ = ("answered_by", "id", "kind", "message_id", "name", "pieces")

    def __init__(self, kind: str, part_id: str, message_id: MessageId) -> None:
        self.kind, self.id, self.message_id = kind, part_id, message_id
        self.name = ""
        self.answered_by: events.AnsweredBy = "worker"
        self.pieces: list[str] = []


class LegParts:
    """The parts of one run's log. `take` needs the entries in their order, from the first on."""

    def __init__(self, run: Run) -> None:
        self._says_ends = run.options.item_events
        """The log marks complete answers. Logs of other dialects' runs may not."""
        self._of_client = frozenset(tool.name for tool in run.options.client_tools)
        self._open: dict[_Key, _Open] = {}
        self._ended: set[_Key] = set()
        """Keys whose part is closed, or was open before a gap. Their further pieces are ignored."""
        self._shown: dict[str, MessageId] = {}
        """The ids of all parts that are not void, and their messages."""
        self._used: set[str] = set()
        """The ids of all parts."""
        self._waiting: dict[str, str] = {}
        """Calls without results: by their own ids, the ids under which they were shown."""
        self._returned: set[str] = set()
        self._step_id: StepId | None = None
        self._last_seq = Seq(0)
        self._reason: str = events.StopReason.ANSWERED
        self._failure: events.Failed | None = None
        self._usage: events.UsageReported | None = None
        self.has_ended = False
        self.is_contradicted = False
        """The log was rewritten after this fold had read it, so frames already sent are no longer valid."""

    def take(self, seq: Seq, event: events.Event | events.Unknown) -> list[Part]:
        """Returns the parts of the log's next entry, which has this number."""
        taker = None if self.has_ended else self._TAKERS.get(type(event))
        parts = [] if taker is None else list(taker(self, event))
        self._last_seq = seq
        return parts

    def lost_ending(self) -> list[Part]:
        """Returns the last parts if the log has no end, as after its run was deleted."""
        if self.has_ended:
            return []
        self._failure = events.Failed(0, "run_deleted", "The run was deleted.")
        return list(self._end(events.Ended(0)))

    def _grow_text(self, event: events.ReasoningChunk | events.TextChunk) -> Iterable[Part]:
        kind = "text" if isinstance(event, events.TextChunk) else "reasoning"
        key = (kind, event.message_id, event.part)
        part = self._open.get(key)
        if part is None:
            return self._open_text(kind, key, event)
        # Nearly all events of a log are pieces of an open part, so these need no generator.
        return (_GREW[kind](part.id, event.text),) if event.text else ()

    def _open_text(self, kind: str, key: _Key, event: events.ReasoningChunk | events.TextChunk) -> Iterator[Part]:
        if not event.text or key in self._ended:
            return
        yield from self._step(event.step_id)
        yield from self._close_texts()
        part = self._opened(key, kind, _ID[kind] + event.message_id, event.message_id)
        yield _OPENED[kind](part.id, event.message_id)
        yield _GREW[kind](part.id, event.text)

    def _grow_call(self, event: events.ToolCallChunk) -> Iterator[Part]:
        key = ("call", str(event.step_id), event.call_id)
        if key in self._ended:
            return
        part = self._open.get(key)
        if part is None:
            name = event.name or ""
            by = event.answered_by or events.answerer(self._of_client, name, asks=event.needs_approval)
            yield from self._step(event.step_id)
            yield from self._open_call(key, event.call_id, name, event.message_id, by)
            part = self._open[key]
        if event.arguments:
            part.pieces.append(event.arguments)
            yield CallGrew(part.id, event.arguments)

    def _whole_calls(self, event: events.ToolCalls) -> Iterator[Part]:
        for call in event.calls:
            yield from self._whole_call(event, call)

    def _whole_call(self, event: events.ToolCalls, call: ToolCall) -> Iterator[Part]:
        key = ("call", str(event.step_id), call.id)
        if key in self._ended or key in self._open:
            return
        by = event.answered_by.get(call.id) or events.answerer(self._of_client, call.name, asks=event.needs_approval)
        if event.step_id is not None:
            yield from self._step(event.step_id)
        yield from self._open_call(key, call.id, call.name, event.message_id, by)
        if call.arguments:
            self._open[key].pieces.append(call.arguments)
            yield CallGrew(self._open[key].id, call.arguments)
        if event.step_id is None:  # a client asked for the call, and no answer ends
            yield self._close(key, is_whole=True)

    def _open_call(
        self, key: _Key, call_id: str, name: str, message_id: MessageId, by: events.AnsweredBy
    ) -> Iterator[Part]:
        yield from self._close_texts()
        part = self._opened(key, "call", call_id, message_id)
        part.name, part.answered_by = name, by
        self._waiting[call_id] = part.id
        yield CallOpened(part.id, name, message_id, by)

    def _answered(self, event: events.Answered) -> Iterator[Part]:
        is_whole = event.reason not in ("length", "content_filter")
        for call in event.calls:
            key = ("call", str(event.step_id), call.call_id)
            if key in self._ended:
                continue
            if key not in self._open:
                yield from self._step(event.step_id)
                yield from self._open_call(key, call.call_id, call.name, event.message_id, call.answered_by)
            part = self._open[key]
            part.answered_by = call.answered_by
            written = "".join(part.pieces)
            if call.arguments is not None and call.arguments != written:
                if call.arguments.startswith(written):
                    yield CallGrew(part.id, call.arguments[len(written) :])
                part.pieces = [call.arguments]
        yield from self._close_all(is_whole=is_whole)

    def _tool_ended(self, event: events.ToolEnded) -> Iterator[Part]:
        if event.text is not None:
            result = ToolReturn(event.call_id, "", event.status, event.text)
            yield from self._returned_once(result)

    def _results(self, event: events.ToolsReturned) -> Iterator[Part]:
        if not self._says_ends:
            yield from self._close_all(is_whole=True)
        for result in event.returns:
            if not result.of_speech:
                yield from self._returned_once(result)
        self._returned.clear()

    def _returned_once(self, result: ToolReturn) -> Iterator[Part]:
        """Yields a result once. The ids are remembered until all results of an answer are there, because a later answer
        may reuse them."""
        if result.tool_call_id in self._returned:
            return
        self._returned.add(result.tool_call_id)
        yield Returned(self._waiting.pop(result.tool_call_id, result.tool_call_id), result)

    def _injected(self, event: events.InputDelivered) -> Iterator[Part]:
        # The message comes between answers, never in the middle of an answer.
        yield from self._close_all(is_whole=not self._says_ends)
        if event.role != "system":
            yield Injected(event)

    def _continued(self, event: events.StepRestarted | events.LogContinued) -> Iterator[Part]:
        # A reader may have seen entries that are stored nowhere, so it has to read the stream again.
        self.is_contradicted = self.is_contradicted or self._last_seq > event.follows
        if not isinstance(event, events.StepRestarted):
            return
        gone = frozenset(event.void_message_ids)
        cut = [part.id for part in self._open.values()]
        yield from self._close_all(is_whole=False)
        void = tuple(one for one, message_id in self._shown.items() if message_id in gone or one in cut)
        for one in void:
            del self._shown[one]
        self._waiting = {call: shown for call, shown in self._waiting.items() if shown not in void}
        if void or event.lost_events:
            yield Restarted(gone, void)
        self._step_id = None

    def _gap(self, event: events.Gap) -> Iterator[Part]:
        self.is_contradicted = self.is_contradicted or event.first_missing <= self._last_seq
        self._ended |= set(self._open)
        yield from self._close_all(is_whole=False)
        yield Lost()

    def _stopped(self, event: events.Stopped) -> Iterator[Part]:
        self._reason = event.reason
        if not self._says_ends and event.reason not in _CUT_OFF:
            yield from self._close_all(is_whole=True)

    def _noted(self, event: events.UsageReported | events.Failed) -> Iterable[Part]:
        if isinstance(event, events.Failed):
            self._failure = event
        else:
            self._usage = event
        return ()

    def _end(self, _event: events.Ended) -> Iterator[Part]:
        yield from self._close_all(is_whole=False)
        self.has_ended = True
        yield LegEnded(self._reason, self._failure, self._usage, tuple(self._waiting.values()))

    def _step(self, step_id: StepId) -> Iterator[Part]:
        """Begins a step, if this is its first part. This completes the answer before, if the log does not mark complete
        answers."""
        if step_id == self._step_id:
            return
        yield from self._close_all(is_whole=not self._says_ends)
        self._step_id = step_id
        yield StepBegan(step_id)

    def _close_texts(self) -> Iterator[Part]:
        """Closes open text and reasoning before another part opens, because clients show one after the other."""
        for key in [key for key, part in self._open.items() if part.kind != "call"]:
            yield self._close(key, is_whole=True)

    def _close_all(self, *, is_whole: bool) -> Iterator[Part]:
        for key in list(self._open):
            yield self._close(key, is_whole=is_whole)

    def _close(self, key: _Key, *, is_whole: bool) -> Part:
        part = self._open.pop(key)
        if part.kind == "call":
            self._ended.add(key)
            arguments = "".join(part.pieces)
            if is_whole:
                return CallReady(part.id, part.name, arguments, part.answered_by)
            self._waiting = {call: shown for call, shown in self._waiting.items() if shown != part.id}
            return CallCut(part.id, part.name, arguments)
        # The text may continue after a call, as a part with another id.
        return TextClosed(part.id) if part.kind == "text" else ReasoningClosed(part.id)

    def _opened(self, key: _Key, kind: str, part_id: str, message_id: MessageId) -> _Open:
        while part_id in self._used:
            part_id += AGAIN
        part = self._open[key] = _Open(kind, part_id, message_id)
        self._shown[part_id] = message_id
        self._used.add(part_id)
        return part

    _TAKERS: ClassVar[dict[type, Callable[[Any, Any], Iterable[Part]]]] = {
        events.ReasoningChunk: _grow_text,
        events.TextChunk: _grow_text,
        events.DataPart: lambda _, event: (DataShown(event),),
        events.ToolCallChunk: _grow_call,
        events.ToolCalls: _whole_calls,
        events.Answered: _answered,
        events.CallDecided: lambda _, event: (Decided(event),),
        events.ToolEnded: _tool_ended,
        events.ToolsReturned: _results,
        events.InputDelivered: _injected,
        events.StepRestarted: _continued,
        events.LogContinued: _continued,
        events.Gap: _gap,
        events.CompactionBegan: lambda _, event: (Compaction(event),),
        events.Compacted: lambda _, event: (Compaction(event),),
        events.Stopped: _stopped,
        events.UsageReported: _noted,
        events.Failed: _noted,
        events.Ended: _end,
    }
    """The method that makes the parts of an entry, by the entry's type. Entries of other types have no parts."""


_ID = {"text": "", "reasoning": "reasoning-"}
"""Prefixes of parts' ids. A message has one text, unless calls interrupt it."""

_OPENED: dict[str, Callable[[str, MessageId], Part]] = {"text": TextOpened, "reasoning": ReasoningOpened}
_GREW: dict[str, Callable[[str, str], Part]] = {"text": TextGrew, "reasoning": ReasoningGrew}
