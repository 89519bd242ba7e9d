"""Responses in OpenAI's dialect: submits runs, and renders them as responses and as their events."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
import structlog
from msgspec.json import encode
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from api.errors import Refused, model_error_answer
from api.event_stream import ENDS_WITH_CLIENT, StreamBroken, json_answer
from api.input_limits import InputLimits
from api.openai.client_tools import client_tools_of
from api.openai.response_fold import events_kept_of, fold_of
from api.openai.response_items import Event as ResponseEvent
from api.openai.response_items import items_of, without_instructions
from api.openai.response_object import DIALECT
from api.openai.response_threads import ResponseThread, ResponseThreads
from api.openai.responses_input import ResponseInput, read_input
from api.openai.responses_request import ResponseCompactRequest, ResponseRequest, tool_choice_of
from api.runs.cancel import Cancel, CancelService
from api.runs.command import Command, Part, SubmissionHeaders, keys_of
from api.runs.reader import RunReader, RunWaiter, elsewhere
from api.runs.streaming import StreamService
from api.runs.submission import SubmissionService
from shared.concurrency import Clock, unix_ms
from shared.domain.agents import CompactionOptions
from shared.domain.errors import (
    AlreadyDecided,
    DecidedOtherwise,
    ErrorCode,
    HistoryWentOn,
    InvalidRequest,
    NoPendingApproval,
    NotFound,
    Unavailable,
    WrongToolCalls,
)
from shared.domain.events import FIRST_SEQ, Event, RunCreated, decode
from shared.domain.ids import ProjectId, RunId, Seq, ThreadId
from shared.domain.lifecycle import TERMINAL, RunStatus
from shared.domain.log_writer import Entries
from shared.domain.messages import (
    FILES,
    ApprovalResponse,
    Message,
    NewMessage,
    UserMessage,
    estimate_message_tokens,
    estimate_tokens,
    tokens_in,
)
from shared.domain.runs import NO_KEYS, Run, RunOptions, SubmissionKeys
from shared.sql.history.messages import MessageStore
from shared.sql.runs.listing import RunListing
from shared.sql.runs.run_store import RunStore

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

RUN_TYPE = "openai_response"
HUNG_UP = "the client has closed its connection"
NOT_KEPT = "the response was not to be kept"

_LEFT_TO_MODELS = {"max_output_tokens", "reasoning"}
"""Options that every model accepts, or that another option covers."""

WENT_ON = (HistoryWentOn, AlreadyDecided, DecidedOtherwise, NoPendingApproval, WrongToolCalls)
"""Errors of a submission whose previous response another response has just continued, or whose calls got other
decisions meanwhile."""


@dataclass(frozen=True, kw_only=True)
class ResponseService:
    """Creates, reads, cancels and deletes responses."""

    submissions: SubmissionService
    threads: ResponseThreads
    streaming: StreamService
    waiter: RunWaiter
    reader: RunReader
    runs: RunStore
    messages: MessageStore
    listing: RunListing
    cancels: CancelService
    input_limits: InputLimits
    clock: Clock

    async def create(
        self, project_id: ProjectId, request: ResponseRequest, headers: SubmissionHeaders, http: Request
    ) -> Response:
        """Submits a run. Answers with a stream, with the final response, or, in the background, with the current
        response. A foreground response is cancelled when its client disconnects."""
        run = await self._submitted(project_id, request, headers, forks=request.store is False)
        leave = self._hung_up(run, is_kept=request.store is not False) if request.is_foreground else None
        if request.stream:
            forget = partial(self._forget, run) if request.store is False else None
            return self.streaming.stream(run, Seq(0), ResponseStream(run), on_leave=leave, on_whole=forget)
        if not request.is_foreground:
            return await json_answer(await self.shown(run))
        ended = await self._when_ended(run, http, leave)
        if isinstance(ended, Response):
            return ended
        answer = await json_answer(await self.shown(ended))
        if request.store is False:
            await self._forget(run)
        return answer

    async def compact(
        self, project_id: ProjectId, request: ResponseCompactRequest, headers: SubmissionHeaders, http: Request
    ) -> Response:
        """Compacts a copy of the client's items, or of a response's history. Answers with the items that the client may
        send in their place: the users' messages and the summary. The compaction is itself a stored response."""
        run = await self._submitted(project_id, request.as_response(), headers, forks=True)
        ended = await self._when_ended(run, http, self._hung_up(run, is_kept=True))
        if isinstance(ended, Response):
            return ended
        if ended.error is not None:
            return model_error_answer(ended.error.error_type, ended.error.detail, ended.error.message)
        shown = await self.shown(ended)
        if shown["status"] != "completed":
            raise Refused(400, ErrorCode.INVALID_ARGUMENT, f"The compaction was ended: it is {shown['status']}.")
        asked = [
            item
            for message in await self.messages.list_of_thread(project_id, run.thread_id)
            if isinstance(message.body, UserMessage)
            for item in items_of(run.id, message)
        ]
        asked = without_instructions(asked) if headers.of_single_agents else asked
        about = {name: shown[name] for name in ("id", "created_at", "usage")}
        return await json_answer({**about, "object": "response.compaction", "output": [*asked, *shown["output"]]})

    async def _submitted(
        self, project_id: ProjectId, request: ResponseRequest, headers: SubmissionHeaders, *, forks: bool
    ) -> Run:
        given = read_input(await self.threads.with_items(project_id, request.input))
        goes_on = request.previous_response_id is not None or request.conversation is not None
        if not (goes_on or given.said or given.story or given.answers_calls):
            raise InvalidRequest("input is missing: send a text or a list of items", field="input")
        if headers.if_busy == "inject" and (given.compacts or not (given.said or given.story or given.answers_calls)):
            raise InvalidRequest(
                "input: a run takes in messages alone: a compaction_trigger or no input cannot be injected into it",
                field="input",
            )
        for text in given.texts():
            self.input_limits.refuse_long_text(text, "input")
        return await self._submit(project_id, request, given, headers, forks=forks)

    async def shown(self, run: Run) -> dict[str, Any]:
        """The response in its current state: the events of its stream so far, or its final event."""
        if run.status is RunStatus.CREATED and not run.fence:
            return _begun(run)
        fold = fold_of(run, await self._kept(run))
        async for entries in self.reader.present(run):
            for seq, entry in entries:
                for _ in fold.take(seq, decode(entry)):
                    pass
        if fold.ended is None and run.status in TERMINAL:
            for _ in fold.lost_ending():
                pass
        return fold.response()

    async def count_input(self, project_id: ProjectId, request: ResponseRequest) -> int:
        """Estimates the tokens with which a response to this request would begin."""
        given = read_input(await self.threads.with_items(project_id, request.input))
        thread = await self.threads.find(project_id, request, given, forks=False)
        history = await self.threads.history_of(project_id, thread)
        bodies = [*(message.body for message in history), *given.story, *given.said]
        tools = encode([*client_tools_of(request.declared_tools())]) if request.tools else b""
        said = estimate_tokens(request.instructions or "") + tokens_in(len(tools))
        if not thread.is_plain:
            said += estimate_tokens(thread.agent.system)
        return said + sum(map(estimate_message_tokens, bodies))

    async def stream(self, run: Run, starting_after: int | None) -> Response:
        """The response's stream after an event: live, or years later."""
        after = BEFORE_ALL if starting_after is None else starting_after
        return self.streaming.stream(run, Seq(0), ResponseStream(run, after, await self._kept(run)))

    async def given_to(self, run: Run) -> list[Message | NewMessage]:
        """The messages of a response's input, oldest first: the repeated history, and its new messages."""
        story: list[Message] = []
        if run.thread_id == run.id:
            context = await self.messages.context(run.project_id, run.thread_id)
            story = [one for one in context if one.run_id is None]
        given = await self.runs.input_of(run)
        if given or run.pruned_at is None:
            return [*story, *given]
        own = await self.messages.list_of_run(run)
        return [*story, *(one for one in own if isinstance(one.body, UserMessage | ApprovalResponse))]

    async def cancel(self, project_id: ProjectId, run_id: RunId) -> Run:
        """Cancels a response, and returns its run. A response that has ended stays unchanged.

        Raises `Refused` for a foreground response: it ends with its connection.
        """
        run = await self.runs.get(project_id, run_id)
        is_ours = run.options.dialect == DIALECT
        if is_ours and not run.options.background and run.status is RunStatus.RUNNING:
            raise Refused(400, ErrorCode.INVALID_ARGUMENT, "Cannot cancel a synchronous response.", field="response_id")
        if run.status is RunStatus.AWAITING_APPROVAL:
            return run  # it has ended: the next response decides its waiting calls
        return await self.cancels.cancel_one(project_id, run_id, Cancel())

    async def delete(self, project_id: ProjectId, run_id: RunId) -> None:
        """Deletes a response that has ended. Raises `Refused` for a response that has not ended."""
        run = await self.runs.get(project_id, run_id)
        if run.status is RunStatus.AWAITING_APPROVAL:
            run = await self.cancels.cancel_one(project_id, run_id, Cancel(reason="the response was deleted"))
        if run.status not in TERMINAL:
            raise Refused(400, ErrorCode.INVALID_ARGUMENT, "Cannot delete an in-flight response.", field="response_id")
        await self.listing.delete(project_id, run_id)

    async def _submit(
        self,
        project_id: ProjectId,
        request: ResponseRequest,
        given: ResponseInput,
        headers: SubmissionHeaders,
        *,
        forks: bool,
    ) -> Run:
        tool_choice_of(request)  # invalid input is refused before the database is asked
        keys = self._keys(request, headers)
        scope = _scope(project_id, keys, (headers.key_id or "") if headers.of_single_agents else "")
        if scope is not None and (keys.names or (keys.body is not None and keys.body.sent_since is not None)):
            seen = await self.runs.of_keys(project_id, scope, keys)
            if seen is not None and not _was_left(seen):
                return seen
            if seen is not None:
                # The first attempt ended with its connection. A client that retries wants an answer.
                keys, scope = NO_KEYS, None
        is_named = request.previous_response_id is not None
        request, given = await self.threads.without_repetition(project_id, request, given)
        try:
            # An unstored response must not stay in a thread that other responses continue.
            thread = await self.threads.find(project_id, request, given, forks=forks)
            return await self.submissions.submit(self._command(thread, request, given, headers, keys, scope))
        except WENT_ON:
            if not is_named:
                raise
        thread = await self.threads.find(project_id, request, given, forks=True)
        return await self.submissions.submit(self._command(thread, request, given, headers, keys, scope))

    async def _kept(self, run: Run) -> list[Event]:
        """Events in place of a run's deleted log."""
        return [] if run.pruned_at is None else [*events_kept_of(run, await self.messages.list_of_run(run))]

    async def _forget(self, run: Run) -> None:
        """Deletes a delivered response that the client asked not to store, and its thread if the response began one."""
        try:
            ended = await self.runs.get(run.project_id, run.id)
            if ended.status not in TERMINAL:
                await self.cancels.canceller.cancel(ended, actor="client", reason=NOT_KEPT)
            await self.listing.delete(run.project_id, run.id, with_thread=run.thread_id == run.id)
        except (NotFound, Unavailable) as error:
            log.warning("response_not_forgotten", run_id=run.id, reason=str(error))

    def _keys(self, request: ResponseRequest, headers: SubmissionHeaders) -> SubmissionKeys:
        body = request.model_dump_json
        return keys_of(headers, RUN_TYPE, self.clock.now(), body=body, parts=[Part(None, body)])

    def _command(
        self,
        thread: ResponseThread,
        request: ResponseRequest,
        given: ResponseInput,
        headers: SubmissionHeaders,
        keys: SubmissionKeys,
        scope: ThreadId | None,
    ) -> Command:
        instructions = request.instructions
        return Command(
            agent=thread.agent,
            conversation_id=thread.conversation_id,
            thread=thread.thread,
            place=thread.place,
            messages=given.said,
            decisions=thread.decisions,
            options=RunOptions(
                dialect=DIALECT,
                streamed=bool(request.stream),
                stream_tokens=True,
                status_events=True,
                item_events=True,
                background=not request.is_foreground,
                max_steps=min(RunOptions().max_steps, self.submissions.max_steps),
                run_type=RUN_TYPE,
                compaction=self._compaction(thread) if given.compacts else None,
                compact_over=request.compact_over,
                client_tools=[*client_tools_of(request.declared_tools())],
                tool_choice=tool_choice_of(request),
                max_tool_calls=request.max_tool_calls,
                demanded=[
                    *sorted(set(request.asked_options()) - _LEFT_TO_MODELS),
                    *([FILES] if given.has_files else []),
                ],
                override_model=thread.model,
                override_system=(instructions or "") if thread.is_plain else None,
                added_system=None if thread.is_plain else instructions,
                model_options=request.model_options(thread.options),
                submitted_by=headers.key_id,
                keys_scope=scope,
                echoed=request.echo(compacts=given.compacts),
            ),
            if_busy=headers.if_busy or "reject",
            keys=keys,
            priority=headers.priority,
        )

    def _compaction(self, thread: ResponseThread) -> CompactionOptions:
        """Compacts the whole history: the client may use the summary in place of all of it."""
        return replace(thread.agent.window.when_full, mode="all")

    def _hung_up(self, run: Run, *, is_kept: bool) -> Callable[[], Awaitable[None]]:
        """Called when the client of a foreground response disconnects."""

        async def cancel() -> None:
            log.info("client_hung_up", run_id=run.id)
            await self.cancels.canceller.cancel(run, actor="client", reason=HUNG_UP, wait_s=0.0 if is_kept else None)
            if not is_kept:
                await self._forget(run)

        return cancel

    async def _when_ended(self, run: Run, http: Request, leave: Callable[[], Awaitable[None]] | None) -> Run | Response:
        """The ended run, for a client that waits for it; if that fails, the answer for the client."""
        http.scope["state"][ENDS_WITH_CLIENT] = True
        ended: list[Run | None] = []

        async def wait() -> None:
            ended.append(await self.waiter.ended(run))

        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(wait(), name="wait for a response's end")
            leaving = group.create_task(_disconnected(http), name="watch for disconnect")
            await asyncio.wait([waiting, leaving], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            leaving.cancel()
        if not ended:
            if leave is not None:
                await leave()
            return Response(status_code=499)  # the client has disconnected
        if ended[0] is None:
            return elsewhere(run)
        return ended[0]


async def _disconnected(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _begun(run: Run) -> dict[str, Any]:
    fold = fold_of(run)
    for _ in fold.take(FIRST_SEQ, RunCreated(unix_ms(run.created_at))):
        pass
    return fold.response()


def _was_left(run: Run) -> bool:
    """Whether a foreground response was cancelled because its client disconnected."""
    return run.cancel is not None and run.cancel.reason == HUNG_UP


def _scope(project_id: ProjectId, keys: SubmissionKeys, sender: str) -> ThreadId | None:
    """The thread in which a repeated submission with these keys is found. None: no key applies. `sender` is the API key
    that sees only its own submissions; empty for a key of the whole project."""
    if keys == NO_KEYS:
        return None
    named = keys.names or ([] if keys.body is None else [keys.body.key])
    return ThreadId(
        "responses:"
        + hashlib.sha256("\n".join([project_id, *([sender] if sender else []), *named]).encode()).hexdigest()
    )


# A run's stream as the events of a response.


BEFORE_ALL = -1
"""The cursor of a new reader: the first event has the number 0."""

LONGEST_SILENCE_S = 15.0
"""Proxies and clients give up a stream after 20 to 60 seconds without a byte."""

DONE = b"data: [DONE]\n\n"
"""The mark of the stream's end. Open Responses requires it, and OpenAI's SDKs skip it."""

_encoder = msgspec.json.Encoder()


def event_bytes(event: ResponseEvent) -> bytes:
    """One event, without an SSE `id`: clients resume by its `sequence_number`."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encoder.encode(event))


class ResponseStream:
    """A reader of a response, from the event after `starting_after`. The fold always begins with the log's first entry,
    since the last events contain the whole text."""

    shared_as = None
    longest_silence_s = LONGEST_SILENCE_S
    cut = None
    """Clients take any clean end of a stream for its last event, but resume a broken connection."""

    def __init__(self, run: Run, starting_after: int = BEFORE_ALL, kept: Sequence[Event] = ()) -> None:
        """`kept` as in `ResponseFold`."""
        self._fold = fold_of(run, kept)
        self._after = starting_after

    def of(self, entries: Entries) -> tuple[bytes, bool]:
        """The events of some entries, and whether the last one ends the stream. Raises `StreamBroken`."""
        made = [one for seq, entry in entries for one in self._fold.take(seq, decode(entry))]
        shown = b"".join(event_bytes(one) for one in made if one["sequence_number"] > self._after)
        if self._fold.is_contradicted:
            raise StreamBroken
        if self._fold.ended is None:
            return shown, False
        if made and made[-1]["sequence_number"] < self._after:
            # The reader has not seen this end: its cursor is from events that were lost.
            shown = event_bytes(made[-1])
        return shown + DONE, True

    def silence(self, _last: Seq, _now: datetime) -> bytes:
        """No event: these clients know no event for this, and a comment keeps the stream alive."""
        return b""

    def end_of(self, _last: Seq) -> bytes:
        """The end of a stream whose log has no end, as after the run was deleted."""
        return b"".join(map(event_bytes, self._fold.lost_ending())) + DONE
