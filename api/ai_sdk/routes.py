"""Chats of the AI SDK, under their own prefix: the paths that `DefaultChatTransport` requests, and two for its page."""

from typing import Annotated, Any, cast

from fastapi import APIRouter, Path, Query, Response
from starlette.routing import Match
from starlette.types import Scope

from api.ai_sdk.answer_chunks import NEWEST_SDK, Sdk
from api.ai_sdk.chat_request import UiChatRequest
from api.ai_sdk.chats import UiChats
from api.dependencies import AgentIdPath, LastEventIdDep, OnlyThreadDep, ProjectDep, SubmissionHeadersDep, served
from api.direct_route import DirectRoute, LateRoute
from api.pages.submission import PageService
from api.pages.threads import LONGEST_NAME, PageThreads
from api.runs.thread_projection import page_cursor_of

UiChatsDep = Annotated[UiChats, served(UiChats)]
PageServiceDep = Annotated[PageService, served(PageService)]
PageThreadsDep = Annotated[PageThreads, served(PageThreads)]
ChatId = Annotated[str, Path(min_length=1, max_length=LONGEST_NAME)]
SdkQuery = Annotated[int, Query(ge=5, le=7)]
"""The major version of the page's `ai` package. Older versions refuse chunks that newer versions know."""


class ChatRoute(LateRoute):
    """A route below a chat's name, whose slashes pages escape: the path of the chat `x/stream` is no stream of `x`."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        end = self.path.rpartition("/")[2].encode()
        is_meant = end.startswith(b"{") or scope["raw_path"].rstrip(b"/").endswith(b"/" + end)
        return super().matches(scope) if is_meant else (Match.NONE, {})


router = APIRouter(tags=["ai-sdk"], route_class=ChatRoute)
create_router = APIRouter(tags=["ai-sdk"], route_class=DirectRoute)


@create_router.post("/ai-sdk/{agent_id}/chat", response_model=None)
async def chat(
    agent_id: AgentIdPath,
    request: UiChatRequest,
    chats: UiChatsDep,
    project_id: ProjectDep,
    only: OnlyThreadDep,
    headers: SubmissionHeadersDep,
    sdk: SdkQuery = NEWEST_SDK,
) -> Response:
    """Answers the new messages of a chat with a UI message stream. The run goes on when its reader disconnects."""
    return await chats.answer(project_id, agent_id, request, headers, sdk=cast("Sdk", sdk), only=only)


@router.get("/ai-sdk/{agent_id}/chat/{chat_id:path}/stream", response_model=None)
async def resume(
    agent_id: AgentIdPath,
    chat_id: ChatId,
    chats: UiChatsDep,
    threads: PageThreadsDep,
    project_id: ProjectDep,
    only: OnlyThreadDep,
    last_event_id: LastEventIdDep,
    sdk: SdkQuery = NEWEST_SDK,
    after: str | None = None,
) -> Response:
    """The answer at work from its beginning, or its rest after a cursor. 204 if there is none."""
    cursor = page_cursor_of(after, last_event_id)
    thread = await threads.find(project_id, agent_id, chat_id, only=only)
    return await chats.resumed(thread, sdk=cast("Sdk", sdk), after=cursor)


@router.get("/ai-sdk/{agent_id}/chat/{chat_id:path}")
async def show(
    agent_id: AgentIdPath,
    chat_id: ChatId,
    chats: UiChatsDep,
    threads: PageThreadsDep,
    project_id: ProjectDep,
    only: OnlyThreadDep,
    sdk: SdkQuery = NEWEST_SDK,
) -> dict[str, Any]:
    """The chat's UI messages, for `useChat({messages})`, equal to those of a page that has read every answer. The
    answer at work is omitted, because the stream shows it from its beginning."""
    thread = await threads.find(project_id, agent_id, chat_id, only=only)
    return await chats.shown(thread, sdk=cast("Sdk", sdk))


@router.post("/ai-sdk/{agent_id}/chat/{chat_id:path}/stop")
async def stop(
    agent_id: AgentIdPath,
    chat_id: ChatId,
    pages: PageServiceDep,
    threads: PageThreadsDep,
    project_id: ProjectDep,
    only: OnlyThreadDep,
) -> dict[str, Any]:
    """Cancels the chat's running or parked run, else its oldest queued run."""
    run = await pages.stop(await threads.find(project_id, agent_id, chat_id, only=only))
    return {"run_id": run.id, "status": run.status}
