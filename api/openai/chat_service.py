"""Chat completions in OpenAI's dialect: another way to send messages to agents. The runs are ordinary runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fastapi.responses import JSONResponse
from msgspec import structs
from starlette.responses import Response

from api.errors import SHOULD_RETRY, model_error_answer
from api.event_stream import json_answer
from api.input_limits import InputLimits
from api.openai.chat_answer import ChatAnswer, ChunkStream
from api.openai.chat_request import ChatRequest
from api.runs.command import AgentThread, Command, Part, SubmissionHeaders, keys_of
from api.runs.reader import RunWaiter, elsewhere
from api.runs.streaming import StreamService
from api.runs.submission import SubmissionService
from shared.concurrency import Clock
from shared.domain.approvals import Approval
from shared.domain.errors import PendingApproval
from shared.domain.ids import Seq
from shared.domain.messages import Decision
from shared.domain.runs import Run, RunOptions

DIALECT = "openai.chat"
RUN_TYPE = "openai_chat_completions"

DROPPED = "The program has not made this call, and asks something else."
"""The result that the model gets for a call of the program's own tools if the program sends none."""


@dataclass(frozen=True, kw_only=True)
class ChatService:
    """Submits requests for chat completions and answers them."""

    submissions: SubmissionService
    streaming: StreamService
    waiter: RunWaiter
    input_limits: InputLimits
    clock: Clock

    async def send(self, thread: AgentThread, request: ChatRequest, headers: SubmissionHeaders) -> Response:
        """Submits a run. Answers with a stream of chunks, or with the whole completion when the run has ended.

        The run goes on when the client disconnects.
        """
        run = await self._submit(self._command(thread, request, headers))
        if request.stream:
            stream = ChunkStream(run, request.model, with_usage=request.shows_usage)
            return self.streaming.stream(run, Seq(0), stream)
        answer = ChatAnswer(run, request.model)
        if not await self.waiter.reads(run, answer.take):
            return elsewhere(run)
        failure, error = answer.outcome.failure, answer.outcome.error
        if failure is not None:
            return model_error_answer(failure.error_type, failure.detail, failure.message)
        if error is not None:
            return JSONResponse(error, 500, {SHOULD_RETRY: "false"})
        return await json_answer(answer.completion())

    def _command(self, thread: AgentThread, request: ChatRequest, headers: SubmissionHeaders) -> Command:
        given = request.given()
        for place, text in given.texts.items():
            self.input_limits.refuse_long_text(text, place)
        results, options = list(given.results), thread.model_options
        if request.answer_format is not None:
            options = structs.replace(options or thread.agent.options, response_format=request.answer_format)
        return Command(
            agent=thread.agent,
            conversation_id=thread.conversation_id,
            messages=[] if given.said is None else [given.said],
            decisions=(lambda _: results) if results else None,
            options=RunOptions(
                dialect=DIALECT,
                streamed=bool(request.stream),
                stream_tokens=bool(request.stream),
                status_events=headers.status_events,
                run_type=RUN_TYPE,
                client_tools=request.client_tools(),
                override_model=thread.model,
                model_options=options,
                demanded=[] if request.answer_format is None else ["response_format"],
                submitted_by=headers.key_id,
            ),
            # A request to a busy history waits in the queue: these clients cannot handle a refusal.
            if_busy=headers.if_busy or "enqueue",
            keys=keys_of(
                headers,
                f"{RUN_TYPE} False",
                self.clock.now(),
                body=request.model_dump_json,
                parts=[Part(None, request.model_dump_json)],
            ),
            priority=headers.priority,
        )

    async def _submit(self, command: Command) -> Run:
        """Submits a run. If only calls of the program's own tools wait, and the program sends a new question instead of
        results, the question answers these calls as dropped. Raises as `SubmissionService.submit`."""
        try:
            return await self.submissions.submit(command)
        except PendingApproval:
            waiting = await self.submissions.approvals.waiting_on_thread(command.agent.project_id, command.thread_id)
            if not waiting or not all(one.client_side for one in waiting):
                raise
        return await self.submissions.submit(replace(command, decisions=_dropped))


def _dropped(waiting: Sequence[Approval]) -> list[Decision]:
    return [
        Decision(tool_call_id=one.tool_call_id, kind="tool", tool_return=DROPPED, status="error") for one in waiting
    ]
