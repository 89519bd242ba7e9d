"""Messages to an agent or into a conversation, answered whole, as a stream, or later."""

import asyncio
from dataclasses import dataclass

from fastapi.responses import JSONResponse
from starlette.responses import Response

from api.errors import RETRY_AFTER_S, model_error_answer
from api.letta.frames import FrameOptions
from api.letta.message_input import MessagesRequest
from api.letta.refusals import NO_MESSAGES, STREAM_DEFAULTS, without_stream
from api.letta.runs import wire_answer, wire_run
from api.runs.reader import RunReader
from api.runs.streaming import StreamService
from api.runs.submission import Submission, SubmissionService
from shared.domain.ids import Seq
from shared.domain.lifecycle import RunStatus
from shared.domain.runs import Run
from shared.sql.history.messages import MessageStore
from shared.sql.runs.run_store import RunStore


@dataclass(frozen=True, kw_only=True)
class AnswerService:
    """Submits messages and answers their senders."""

    submissions: SubmissionService
    streaming: StreamService
    reader: RunReader
    runs: RunStore
    messages: MessageStore

    async def send(self, submission: Submission) -> Response:
        """Submits, and answers as the request asks: a stream, or the whole answer when the run has ended.

        The run goes on when the client leaves.
        """
        request = submission.request
        refusal = _refusal(request)
        if refusal is not None:
            return JSONResponse({"detail": refusal}, 422)
        run = await self.submissions.submit(submission)
        if request.streaming:
            return self.streaming.stream(run, Seq(0), frame_options(request, status_events=run.options.status_events))
        if not await self._ends(run):
            return _elsewhere(run)
        return await self._whole_answer(await self.runs.look_up(run.id))

    async def _ends(self, run: Run) -> bool:
        """Waits for the run's end. False when this process ends before."""
        ending = self.streaming.ending
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(self.reader.wait_for_end(run), name=f"wait for {run.id}")
            leaving = group.create_task(wait_for(ending), name="wait for the server's end")
            await asyncio.wait([waiting, leaving], return_when=asyncio.FIRST_COMPLETED)
            has_ended = waiting.done()
            waiting.cancel()
            leaving.cancel()
        return has_ended

    async def send_later(self, submission: Submission) -> Response:
        """Submits and answers with the run."""
        if not submission.request.given_messages():
            return JSONResponse({"detail": NO_MESSAGES}, 422)
        return JSONResponse(wire_run(await self.submissions.submit_or_fail(submission)))

    async def _whole_answer(self, run: Run) -> Response:
        if run.status is RunStatus.FAILED and run.error is not None:
            error = run.error
            return model_error_answer(error.error_type, error.detail, error.message)
        return JSONResponse(wire_answer(run, await self.messages.list_of_run(run.id)))


def _elsewhere(run: Run) -> Response:
    """The answer of a process that ends: the run goes on, and the caller has to ask another process for it. A client
    that sent the message again would send it twice."""
    said = f"SERVICE_UNAVAILABLE: this server is ending. The run goes on: see GET /v1/runs/{run.id} and its messages"
    headers = {"Retry-After": str(RETRY_AFTER_S), "x-should-retry": "false"}
    return JSONResponse({"detail": said, "run_id": run.id}, 503, headers)


async def wait_for(event: asyncio.Event) -> None:
    """Returns when it is set."""
    await event.wait()


def frame_options(request: MessagesRequest, *, status_events: bool) -> FrameOptions:
    """What the sender of this request wants to see of the stream."""
    wanted = request.include_return_message_types
    return FrameOptions(
        pings=request.include_pings,
        status_events=status_events,
        message_types=None if wanted is None else frozenset(wanted),
    )


def _refusal(request: MessagesRequest) -> str | None:
    if not request.given_messages():
        return NO_MESSAGES
    if request.streaming:
        return None
    given = {option: getattr(request, option) for option in STREAM_DEFAULTS}
    return next((without_stream(name) for name, value in given.items() if value != STREAM_DEFAULTS[name]), None)
