"""Chat completions in OpenAI's dialect: another way to send messages and to be answered. Runs are like any other."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

import msgspec
from fastapi.responses import JSONResponse
from starlette.responses import Response

from api.caller_quotas import CallerQuotas
from api.errors import SHOULD_RETRY, model_error_answer
from api.event_stream import EventStream, finishes
from api.letta.message_input import MessageIn
from api.long_answers import json_answer
from api.openai.chat_answer import ChatAnswer
from api.openai.chat_chunks import ChatChunks
from api.openai.chat_request import ChatRequest
from api.openai.errors import interrupted
from api.runs.reader import RunReader
from api.runs.submission import Submission, SubmissionService
from api.runs.waiting import elsewhere
from shared.domain.errors import ErrorCode, PendingApproval
from shared.domain.events import decode
from shared.domain.ids import Seq
from shared.domain.runs import Run

LONGEST_SILENCE_S = 4.0
"""Voice clients give a stream up after five or ten seconds without a byte (LiveKit's), and ask once more."""

DROPPED = "The program has not made this call, and asks something else."
"""What the model is told of a call of the program's own tools to which the program brought no result."""

DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


def chunk_bytes(chunk: object) -> bytes:
    """One chunk, or an error in its place. Without a number: OpenAI's streams cannot be resumed."""
    return b"data: %b\n\n" % _encoder.encode(chunk)


@dataclass(frozen=True, kw_only=True)
class ChatService:
    """Submits requests for chat completions and answers them."""

    submissions: SubmissionService
    reader: RunReader
    keepalive_s: float
    quotas: CallerQuotas
    ending: asyncio.Event
    """Set when this process ends."""

    async def send(self, submission: Submission, request: ChatRequest) -> Response:
        """Submits, and answers with a stream of chunks, or with the whole completion when the run has ended.

        The run goes on when the client leaves.
        """
        run = await self._submit(submission)
        if request.stream:
            cut = interrupted("This server is ending, and the run goes on", ErrorCode.SERVER_ENDING, run.id)
            return EventStream(
                lambda: self._chunks(run, request),
                self.ending,
                cut=chunk_bytes(cut) + DONE,
                entrance=lambda scope: self.quotas.reading_of(run.project_id, scope),
            )
        answer = ChatAnswer(run, request.model)
        if not await finishes(self._read(run, answer), self.ending):
            return elsewhere(run)
        failure, error = answer.outcome.failure, answer.outcome.error
        if failure is not None:
            return model_error_answer(failure.error_type, failure.detail, failure.message)
        if error is not None:
            return JSONResponse(error, 500, {SHOULD_RETRY: "false"})
        return await json_answer(answer.completion())

    async def _submit(self, submission: Submission) -> Run:
        """Submits. Where nothing waits but calls that the program was to make itself, and it asks something else, these
        are answered as dropped, beside the question. Raises as `SubmissionService.submit`."""
        try:
            return await self.submissions.submit(submission)
        except PendingApproval:
            project_id = submission.agent.project_id
            waiting = await self.submissions.approvals.waiting_on_thread(project_id, submission.thread_id)
            if not waiting or not all(one.client_side for one in waiting):
                raise
        dropped = [
            {"type": "tool", "tool_call_id": one.tool_call_id, "tool_return": DROPPED, "status": "error"}
            for one in waiting
        ]
        answered = MessageIn(type="tool_return", tool_returns=dropped)
        messages = [answered, *submission.request.given_messages()]
        request = submission.request.model_copy(update={"messages": messages, "input": None})
        return await self.submissions.submit(replace(submission, request=request))

    async def _read(self, run: Run, answer: ChatAnswer) -> None:
        async for entries in self.reader.follow(run, Seq(0), quiet_s=self.keepalive_s):
            for seq, entry in entries:
                answer.take(seq, decode(entry))

    async def _chunks(self, run: Run, request: ChatRequest) -> AsyncGenerator[bytes]:
        """Batches of chunks. One with nothing to show is a sign of life: the agent thinks, or its tools work."""
        chunks = ChatChunks(run, request.model, with_usage=request.shows_usage)
        async for entries in self.reader.follow(run, Seq(0), quiet_s=min(self.keepalive_s, LONGEST_SILENCE_S)):
            yield b"".join(chunk_bytes(chunk) for seq, entry in entries for chunk in chunks.of(seq, decode(entry)))
        yield b"".join(map(chunk_bytes, chunks.lost_ending())) + DONE
