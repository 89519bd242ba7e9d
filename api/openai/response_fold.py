"""A run's log as the events of one OpenAI response: a pure fold, without I/O and without a clock.

Event `k` of the fold has the number `k`. Numbers are therefore the same for every reader, in every process and at any
time, and a cursor (`starting_after`) stays valid for ever. Three rules ensure that:

* The fold reads only the run's submission and its log, and nothing that may change.
* A run keeps the version of the fold that it was submitted under (`FOLD`). A change in the events of a log is a new
  version, and the old version stays as long as its runs can be read.
* Where a part of the log is lost (`Gap`), the number jumps by `MOST_EVENTS` for each missing entry, which is more than
  the entries can have produced. The number jumps also where a worker and the log in Redis were lost together
  (`lost_events`): a reader may have seen events that are stored nowhere. Everywhere else numbers are contiguous.

The limits of clients decide the shapes (see `docs/openai.md`): no event types of our own, no index twice, no item that
stays open, and `response.failed` with the status `cancelled` for a cancel.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from api.openai.client_tools import CalledTool, called_tools
from api.openai.response_items import (
    Event,
    Item,
    ItemKind,
    approval_item_id,
    call_item_id,
    compaction_item,
    message_item_id,
)
from api.openai.response_object import ResponseHead, ended_fields, head_of
from shared.concurrency import unix_ms
from shared.domain import events
from shared.domain.ids import MessageId, Seq, StepId
from shared.domain.messages import AssistantMessage, Message, Summary, ToolReturns
from shared.domain.runs import Run

MOST_EVENTS = 64
"""No entry of a log produces more events, except one whose answer has more calls than that."""

Key = tuple[str, ...]
"""The key of an open item: its message and part, or its step and call."""

_CUT = ("length", "content_filter")
_CUT_OFF = (events.StopReason.CANCELLED, events.StopReason.FAILED, events.StopReason.MODEL_FAILED)
"""Stop reasons of runs whose last answer may be incomplete."""


class ResponseFold:
    """One run as a response."""

    def __init__(self, run: Run, kept: Sequence[events.Event] = (), version: int = 1) -> None:
        """`kept` replaces a log that retention has deleted: the run's messages, as events."""
        self._shows_compactions, self._in_order = version in (2, WITH_COMPACTIONS), version >= USUAL_FOLD
        self._kept = kept
        self._run_id, self._parent = run.id, run.continues
        self._says_ends = run.options.item_events
        """The log marks complete answers. Logs of other dialects' runs may not."""
        self._head: ResponseHead = head_of(run)
        self._of_client = frozenset(tool.name for tool in run.options.client_tools)
        self._called = called_tools(run.options.echoed.get("tools", ()))
        self._next = 0
        self._items: list[Item] = []
        self._open: dict[Key, Item] = {}
        self._calls: dict[str, Item] = {}
        """Calls of this server's tools without results, by id."""
        self._void: set[int] = set()
        self._gone: set[Key] = set()
        """Items that were open before a gap; how they continued is unknown."""
        self._wire_ids: set[str] = set()
        self._ids: set[str] = set()
        self._began = self._has_begun = False
        self._step_id: StepId | None = None
        self._last_seq = Seq(0)
        self._stop_reason: str = events.StopReason.ANSWERED
        self._was_filtered = self._has_gap = False
        self._usage: events.UsageReported | None = None
        self._failure: events.Failed | None = None
        self.ended: dict[str, Any] | None = None
        """The final response; None while the log goes on."""
        self.is_contradicted = False
        """The log was rewritten after this fold had read it, so other readers get different events."""

    @property
    def encrypts(self) -> bool:
        """Whether the client asked for the provider's own form of reasoning."""
        return self._head.encrypts

    def take(self, seq: Seq, event: events.Event | events.Unknown) -> Iterator[Event]:
        """The events for the next entry of the log, each with its `sequence_number`."""
        for made in self._events_of(seq, event):
            yield {**made, "sequence_number": self._next}
            self._next += 1
        self._last_seq = seq

    def response(self) -> dict[str, Any]:
        """The response in its current state."""
        if self.ended is not None:
            return self.ended
        return self._snapshot(status="in_progress" if self._has_begun else self._head.first_status)

    def lost_ending(self) -> Iterator[Event]:
        """The end of a stream whose log has no end, as after the run was deleted."""
        if self.ended is None:
            self._failure = events.Failed(0, "run_deleted", "The response was deleted.")
            for made in self._end(0):
                yield {**made, "sequence_number": self._next}
                self._next += 1

    def _events_of(self, seq: Seq, event: events.Event | events.Unknown) -> Iterator[Event]:
        if self.ended is not None:
            return
        if not self._began:
            yield from self._begin()
        if isinstance(event, events.StepRestarted | events.LogContinued) and event.lost_events:
            self._next += MOST_EVENTS * (seq - event.follows)
        match event:
            case events.RunCreated() | events.Unknown():
                return
            case events.Gap():
                self.is_contradicted = self.is_contradicted or event.first_missing <= self._last_seq
                self._gone |= set(self._open)
                yield from self._close_all("incomplete")
                self._next += MOST_EVENTS * (seq - event.first_missing + 1)
                kept, self._kept = self._kept, ()
                self._has_gap = self._has_gap or not kept
                for one in kept:
                    yield from self._take_work(one)
                return
            case events.StatusChanged() if event.status != "running":
                return
            case events.Stopped() | events.UsageReported() | events.Failed() | events.Ended():
                yield from self._take_end(event)
                return
            case _:
                pass
        if not self._has_begun:
            self._has_begun = True
            yield self._lifecycle("response.in_progress", "in_progress")
        yield from self._take_work(event)

    def _begin(self) -> Iterator[Event]:
        self._began = True
        yield self._lifecycle("response.created", self._head.first_status)
        if self._head.first_status == "queued":
            yield self._lifecycle("response.queued", "queued")

    def _take_work(self, event: events.Event | events.Unknown) -> Iterator[Event]:
        match event:
            case events.ReasoningChunk():
                yield from self._grow_part("reasoning", event)
            case events.TextChunk():
                yield from self._grow_part("message", event)
            case events.ToolCallChunk():
                yield from self._grow_call(event)
            case events.ToolCalls():
                yield from self._whole_calls(event)
            case events.Answered():
                yield from self._answered(event)
            case _:
                yield from self._take_tool(event)

    def _take_tool(self, event: events.Event | events.Unknown) -> Iterator[Event]:
        match event:
            case events.CallDecided():
                yield from self._decided(event)
            case events.ToolStarted() if self._in_order and event.arguments and event.call_id not in self._calls:
                yield from self._earlier_call(event)
            case events.ToolEnded():
                if event.text is not None and (item := self._calls.pop(event.call_id, None)) is not None:
                    yield from _returned(item, event.text, is_error=event.status == "error")
            case events.ToolsReturned():
                yield from self._results(event)
            case events.StepRestarted() | events.LogContinued():
                yield from self._continued(event)
            case events.Compacted() if self._shows_compactions:
                item_id = compaction_item(event.message_id, "")["id"]
                item = self._new("compaction", item_id, event.message_id)
                yield from item.opened()
                yield from item.grown(event.text)
                yield from item.closed("completed")
            case _:
                return

    def _grow_part(
        self, kind: Literal["reasoning", "message"], event: events.ReasoningChunk | events.TextChunk
    ) -> Iterator[Event]:
        key = (kind, event.message_id, str(event.part))
        item = self._open.get(key)
        if item is None:
            if not event.text or key in self._gone:
                return
            yield from self._close_earlier(event.step_id)
            yield from self._close_parts(kind)
            item_id = message_item_id(event.message_id, event.part, "msg" if kind == "message" else "rs")
            item = self._new(kind, item_id, event.message_id)
            self._open[key] = item
            yield from item.opened()
        yield from item.grown(event.text)

    def _close_parts(self, before: ItemKind) -> Iterator[Event]:
        """Closes the text, and the reasoning unless its end is still to come, before the next item opens, as OpenAI
        does: LangChain would take pieces of the text after another item for a second text."""
        for key, item in list(self._open.items()):
            ends = not self.encrypts and (self._in_order or before == "message")
            if ends if item.kind == "reasoning" else item.kind == "message" and self._in_order:
                del self._open[key]
                yield from item.closed("completed")

    def _grow_call(self, event: events.ToolCallChunk) -> Iterator[Event]:
        key = ("call", str(event.step_id), event.call_id)
        item = self._open.get(key)
        if item is None:
            if key in self._gone:
                return
            yield from self._close_earlier(event.step_id)
            yield from self._close_parts("function_call")
            by = event.answered_by or events.answerer(self._of_client, event.name or "", asks=event.needs_approval)
            item = self._new_call(by, event.step_id, event.call_id, event.name or "", event.message_id)
            self._open[key] = item
            yield from item.opened()
        yield from item.grown(event.arguments or "")

    def _close_earlier(self, step_id: StepId) -> Iterator[Event]:
        """If the log does not mark complete answers, the beginning of the next answer completes this one."""
        if not self._says_ends and step_id != self._step_id:
            yield from self._close_answer("completed")
        self._step_id = step_id

    def _whole_calls(self, event: events.ToolCalls) -> Iterator[Event]:
        if event.step_id is not None:
            yield from self._close_earlier(event.step_id)
        yield from self._close_parts("function_call")
        for call in event.calls:
            by = event.answered_by.get(call.id) or events.answerer(
                self._of_client, call.name, asks=event.needs_approval
            )
            item = self._new_call(by, event.step_id, call.id, call.name, event.message_id)
            self._open[("call", str(event.step_id), call.id)] = item
            yield from item.opened()
            yield from item.grown(call.arguments)
            if event.step_id is None:  # a client's tool is called, and no answer ends
                yield from self._close_call(item, call.id, "completed")
                del self._open[("call", str(event.step_id), call.id)]

    def _answered(self, event: events.Answered) -> Iterator[Event]:
        status = "incomplete" if event.reason in _CUT else "completed"
        self._was_filtered = event.reason == "content_filter"
        for call in event.calls:
            key = ("call", str(event.step_id), call.call_id)
            if key in self._gone:
                continue
            if key not in self._open:
                yield from self._close_parts("function_call")
                item = self._new_call(call.answered_by, event.step_id, call.call_id, call.name, event.message_id)
                self._open[key] = item
                yield from item.opened()
            yield from self._open[key].with_arguments(call.arguments)
        yield from self._close_answer(status, event.signature)

    def _close_answer(
        self, status: Literal["completed", "incomplete"], signature: str | None = None
    ) -> Iterator[Event]:
        """Closes the items of a complete answer. Calls of this server's tools wait for their results."""
        for key, item in sorted(self._open.items(), key=lambda pair: pair[1].index):
            del self._open[key]
            if item.kind == "reasoning" and self.encrypts:
                item.encrypted = signature
            if item.kind in ("function_call", "custom_tool_call", "mcp_call", "mcp_approval_request"):
                yield from self._close_call(item, key[2], status)
            else:
                yield from item.closed(status)

    def _close_call(self, item: Item, call_id: str, status: Literal["completed", "incomplete"]) -> Iterator[Event]:
        if item.kind == "mcp_call":
            # Its result will close it.
            yield from item.with_arguments(None)
            self._calls[call_id] = item
            return
        yield from item.closed(status)

    def _decided(self, event: events.CallDecided) -> Iterator[Event]:
        if event.verdict != "denied":
            yield from self._earlier_call(event, approval_item_id(self._parent or self._run_id, event.call_id))

    def _earlier_call(
        self, event: events.CallDecided | events.ToolStarted, approval_id: str | None = None
    ) -> Iterator[Event]:
        """Shows a call of the previous response that is made in this one."""
        item = self._new_call("worker", event.step_id, event.call_id, event.name, MessageId(""))
        item.approval_id = approval_id
        self._calls[event.call_id] = item
        yield from item.opened()
        yield from item.grown(event.arguments)
        yield from item.with_arguments(None)

    def _results(self, event: events.ToolsReturned) -> Iterator[Event]:
        if not self._says_ends:
            yield from self._close_answer("completed")
        for result in event.returns:
            item = self._calls.pop(result.tool_call_id, None)
            if item is not None:
                yield from _returned(item, result.text, is_error=result.status == "error")

    def _continued(self, event: events.StepRestarted | events.LogContinued) -> Iterator[Event]:
        # A reader may have seen entries that are stored nowhere, so it has to read the stream again.
        self.is_contradicted = self.is_contradicted or self._last_seq > event.follows
        if not isinstance(event, events.StepRestarted):
            return
        gone = frozenset(event.void_message_ids)
        cut = frozenset(item.index for item in self._open.values())
        voided = [
            item
            for item in self._items
            if (item.message_id in gone or item.index in cut) and item.index not in self._void
        ]
        for item in voided:
            self._void.add(item.index)
        yield from self._close_all("incomplete", among=self._void)
        if voided or event.lost_events:
            yield self._lifecycle("response.in_progress", "in_progress", with_void=True)

    def _close_all(self, status: Literal["completed", "incomplete"], among: set[int] | None = None) -> Iterator[Event]:
        """Closes the open items, in the order of the output."""
        waiting = [("", key, item) for key, item in self._open.items()]
        running = [("call", (call_id,), item) for call_id, item in self._calls.items()]
        for kind, key, item in sorted([*waiting, *running], key=lambda found: found[2].index):
            if among is not None and item.index not in among:
                continue
            if kind:
                del self._calls[key[0]]
                # A waiting call is made in the next response, which brings the answers to the calls beside it.
                waits = self._in_order and self._stop_reason == events.StopReason.PARKED
                yield from item.closed("incomplete" if waits else "failed")
            else:
                del self._open[key]
                yield from item.closed("failed" if item.kind == "mcp_call" else status)

    def _take_end(self, event: events.Stopped | events.UsageReported | events.Failed | events.Ended) -> Iterator[Event]:
        match event:
            case events.Stopped():
                self._stop_reason = event.reason
                if not self._says_ends and event.reason not in _CUT_OFF:
                    yield from self._close_answer("completed")
            case events.UsageReported():
                self._usage = event
            case events.Failed():
                self._failure = event
            case events.Ended():
                yield from self._end(event.at)

    def _end(self, at: int) -> Iterator[Event]:
        yield from self._close_all("incomplete")
        more = ended_fields(self._stop_reason, self._failure, at, was_filtered=self._was_filtered)
        if self._has_gap and more["status"] == "completed":
            more |= {"status": "incomplete", "incomplete_details": {"reason": "log_gap"}, "completed_at": None}
        self.ended = self._snapshot(**more)
        status = more["status"]
        kind = "failed" if status == "cancelled" else status
        yield {"type": f"response.{kind}", "response": self.ended}

    def _new(self, kind: ItemKind, item_id: str, message_id: MessageId, call_id: str = "", name: str = "") -> Item:
        # Reasoning after text is an item of its own.
        item_id = f"{item_id}_{len(self._items)}" if item_id in self._ids else item_id
        self._ids.add(item_id)
        item = Item(len(self._items), kind, item_id, message_id, call_id, name)
        self._items.append(item)
        return item

    def _new_call(
        self, by: events.AnsweredBy, step_id: StepId | None, call_id: str, name: str, message_id: MessageId
    ) -> Item:
        shown_id = call_id
        # OpenAI's client helpers merge calls of the same id, and a model may number the calls of each answer from one.
        while shown_id in self._wire_ids:
            shown_id += AGAIN
        self._wire_ids.add(shown_id)
        match by:
            case "client":
                called = self._called.get(name, CalledTool(name, None, takes_text=False))
                kind = "custom_tool_call" if called.takes_text else "function_call"
                item = self._new(kind, self._call_id("fc", step_id, shown_id), message_id, shown_id, called.name)
                item.namespace = called.namespace
                return item
            case "person":
                asked = approval_item_id(self._run_id, call_id) + AGAIN * (len(shown_id) - len(call_id))
                return self._new("mcp_approval_request", asked, message_id, call_id, name)
            case "worker":
                return self._new("mcp_call", self._call_id("mcp", step_id, shown_id), message_id, call_id, name)

    def _call_id(self, prefix: Literal["fc", "mcp"], step_id: StepId | None, call_id: str) -> str:
        return call_item_id(prefix, self._run_id, step_id, call_id)

    def _lifecycle(self, kind: str, status: str, *, with_void: bool = False) -> Event:
        return {"type": kind, "response": self._snapshot(with_void=with_void, status=status)}

    def _snapshot(self, *, with_void: bool = False, **more: Any) -> dict[str, Any]:
        output = [
            item.shown(is_empty=item.index in self._void)
            for item in self._items
            if with_void or item.index not in self._void
        ]
        return self._head.response(output, self._usage, **more)


AGAIN = "~"
"""Suffix of a call's id that the response contains already."""


def _returned(item: Item, text: str, *, is_error: bool) -> Iterator[Event]:
    if is_error:
        item.error = text
    else:
        item.output = text
    yield from item.closed("failed" if is_error else "completed")


USUAL_FOLD, WITH_COMPACTIONS = 3, 4
"""The versions of new runs; `WITH_COMPACTIONS`: for requests that ask for compaction, the summary is an item of the
output. Versions 1, also of runs that were submitted in other dialects, and 2 close a text with its whole answer."""


def fold_of(run: Run, kept: Sequence[events.Event] = ()) -> ResponseFold:
    """The fold of a run, in its version; `kept` as in `ResponseFold`. Raises `ValueError` for the version of a newer
    release."""
    version = run.options.echoed.get(FOLD, 1)
    if version not in range(1, WITH_COMPACTIONS + 1):
        raise ValueError(f"run {run.id} was submitted under version {version} of the fold, which this release lacks")
    return ResponseFold(run, kept, version)


def events_kept_of(run: Run, messages: Sequence[Message]) -> Iterator[events.Event]:
    """Reconstructs a deleted log from the run's messages: its answers and the results of its calls."""
    at = unix_ms(run.completed_at or run.created_at)
    of_client = {tool.name for tool in run.options.client_tools}
    for message in messages:
        body, step_id = message.body, message.step_id or StepId("")
        if isinstance(body, Summary) and body.stats is not None:
            yield events.Compacted(at, message.id, body.text, body.stats)
        if isinstance(body, ToolReturns):
            yield events.ToolsReturned(at, step_id, message.id, body.returns)
        if not isinstance(body, AssistantMessage):
            continue
        if body.reasoning is not None and body.reasoning.text:
            yield events.ReasoningChunk(at, step_id, message.id, body.reasoning.text)
        if body.text:
            yield events.TextChunk(at, step_id, message.id, body.text)
        calls = [
            events.AnsweredCall(
                call.id,
                call.name,
                call.arguments,
                events.answerer(of_client, call.name, asks=call.needs_approval),
            )
            for call in body.tool_calls
            if call.speech is None
        ]
        if not body.partial:
            yield events.Answered(at, step_id, message.id, "tool_calls" if calls else "stop", calls)


FOLD = "holdfast_fold"
"""Key of the fold's version in the stored part of a run's request."""
