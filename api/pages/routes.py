"""The route that makes tokens for pages."""

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from api.access.accepted_keys import end_of_token
from api.access.authentication import Access, MayDo, PageReach
from api.dependencies import AgentIdPath, CallerDep, ClockDep, OnlyThreadDep, served
from api.direct_route import LateRoute
from api.pages.threads import LONGEST_NAME, PageThreads
from api.runs.command import DEFAULT
from shared.domain.api_keys import Level
from shared.domain.errors import NotFound
from shared.domain.ids import ThreadId

AccessDep = Annotated[Access, served(Access)]
PageThreadsDep = Annotated[PageThreads, served(PageThreads)]

router = APIRouter(prefix="/v1/agents/{agent_id}", tags=["pages"], route_class=LateRoute)


class PageTokenRequest(BaseModel):
    """The body of a request for a page token: the conversation, the permission and the lifetime."""

    model_config = ConfigDict(extra="ignore")

    thread_id: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
    """The conversation: its id, `default`, or the page's own name for it. A new name creates a conversation."""
    may: MayDo = "read"
    valid_for_s: Annotated[int, Field(ge=1, le=86_400)] = 900


@router.post("/page-token")
async def make_page_token(
    agent_id: AgentIdPath,
    request: PageTokenRequest,
    threads: PageThreadsDep,
    access: AccessDep,
    clock: ClockDep,
    caller: CallerDep,
    only: OnlyThreadDep,
) -> dict[str, Any]:
    """A token with which a web page may only read one conversation of the agent, or talk in it."""
    thread = await threads.find(caller.project_id, agent_id, request.thread_id, only=only)
    if thread.id is None:
        if not caller.scopes.include(Level.WRITE):
            raise NotFound(f"Conversation {request.thread_id!r} not found")
        thread = await threads.made(thread)
    reach = PageReach(agent_id, ThreadId(thread.conversation_id or agent_id), request.may)
    expires_at = end_of_token(clock.now(), request.valid_for_s)
    token = await access.page_tokens.make(caller, reach, expires_at)
    shown = expires_at.isoformat().replace("+00:00", "Z")
    return {"token": token, "expires_at": shown, "conversation_id": thread.conversation_id or DEFAULT}
