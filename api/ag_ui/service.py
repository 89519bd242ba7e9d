"""Runs, streams and stops of conversations for AG-UI's clients."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.responses import Response

from api.ag_ui.leg_fold import Client
from api.ag_ui.run_input import RunAgentInput
from api.ag_ui.thread_frames import ThreadFrames
from api.errors import Refused
from api.event_stream import HEADERS
from api.pages.decisions import PageRefusal
from api.pages.submission import PageService, PageSubmission
from api.pages.threads import PageThread, PageThreads
from api.runs.command import SubmissionHeaders
from api.runs.thread_projection import Thread, ThreadCursor
from api.runs.thread_streams import ThreadStreams
from shared.domain.agents import Agent
from shared.domain.errors import ErrorCode, InvalidRequest
from shared.domain.ids import AgentId, ProjectId, ThreadId
from shared.process.importing import VERSION

DIALECT = "ag_ui"


@dataclass(frozen=True)
class Asker:
    """The caller's project, and the only conversation that the caller may see. None: all conversations."""

    project_id: ProjectId
    only: ThreadId | None = None


@dataclass(frozen=True, kw_only=True)
class AgUiService:
    """Answers AG-UI's clients."""

    threads: PageThreads
    pages: PageService
    streams: ThreadStreams

    async def run(self, asker: Asker, agent_id: AgentId, body: RunAgentInput, headers: SubmissionHeaders) -> Response:
        """Submits messages, or answers to waiting calls, and streams the run. The run goes on when its client
        disconnects. Answers that do not fit the waiting calls get a stream with an error."""
        thread = await self.threads.find(asker.project_id, agent_id, body.thread_id, only=asker.only)
        try:
            submitted = await self.pages.submit(await self._submission(thread, body, headers))
        except PageRefusal as refusal:
            return _stream({"type": "RUN_ERROR", "message": refusal.message, "code": refusal.reason})
        run = submitted.run
        # The client may have a part of a run that is not new: its stream begins with all messages before the run.
        client = Client(body.thread_id, body.is_current, body.messages or () if submitted.is_new else None)
        return self.streams.stream_leg(Thread(run.project_id, run.agent_id, run.thread_id), run, ThreadFrames(client))

    async def connect(
        self, asker: Asker, agent_id: AgentId, client: Client, after: ThreadCursor | None, *, follow: bool
    ) -> Response:
        """Streams the conversation after a cursor; without a cursor, from its newest run on, with all messages before
        the run first. Without `follow` the stream ends when no run of the conversation is active or queued."""
        found = await self.threads.find(asker.project_id, agent_id, client.thread_name, only=asker.only)
        thread = found.streamed
        if thread is None:
            return _stream()
        start = after or await self.streams.newest_turn(thread)
        if start is None and not follow and not await self.streams.is_at_work(thread):
            return _stream()
        return self.streams.stream(thread, start or ThreadCursor(), ThreadFrames(client, after), follow=follow)

    async def stop(self, asker: Asker, agent_id: AgentId, thread_name: str, run: str | None) -> dict[str, Any]:
        """Cancels the conversation's run, or the run with this name. Returns a receipt."""
        thread = await self.threads.find(asker.project_id, agent_id, thread_name, only=asker.only)
        stopped = await self.pages.stop(thread, run)
        return {
            "stopped": True,
            "threadId": thread_name,
            "runId": stopped.options.named or stopped.id,
            "run_id": stopped.id,
            "status": stopped.status,
        }

    async def _submission(self, thread: PageThread, body: RunAgentInput, headers: SubmissionHeaders) -> PageSubmission:
        try:
            said, answers, if_busy = body.said(), body.answers(), body.if_busy()
        except InvalidRequest as error:
            raise Refused(422, ErrorCode.INVALID_ARGUMENT, f"INVALID_ARGUMENT: {error}", field=error.field) from error
        if said and answers and not body.resume and not await self.pages.waiting(thread):
            # The results answer calls of an earlier run, and the run that they continued ended before any output.
            answers = []
        return PageSubmission(
            thread=thread,
            dialect=DIALECT,
            said=said,
            said_at=body.said_at(),
            answers=answers,
            headers=headers,
            client_tools=body.client_tools(),
            added_system=body.instructions(),
            run_name=body.run_id,
            if_busy=if_busy,
        )


def runtime_info(agents: Iterable[Agent]) -> dict[str, Any]:
    """The answer to CopilotKit's first request to a runtime: the version and the agents."""
    shown = {one.id: {"name": one.name, "description": one.description or ""} for one in agents}
    return {"version": VERSION, "agents": shown, "mode": "sse", "audioFileTranscriptionEnabled": False}


def _stream(*events: dict[str, Any]) -> Response:
    """A complete stream of these events."""
    body = b"".join(b"data: %b\n\n" % msgspec.json.encode(event) for event in events)
    return Response(body, headers=HEADERS)
