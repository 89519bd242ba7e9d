"""Chat completions: agents for clients of OpenAI's dialect."""

from typing import Annotated

from fastapi import APIRouter, Response

from api.dependencies import ProjectDep, SubmissionHeadersDep, served
from api.direct_route import LateRoute
from api.openai.chat_request import ChatRequest
from api.openai.chat_service import ChatService
from api.runs.command import AgentThread, AgentThreads
from shared.domain.errors import NotFound, UnknownModel
from shared.domain.ids import ProjectId, is_id

AgentThreadsDep = Annotated[AgentThreads, served(AgentThreads)]
ChatServiceDep = Annotated[ChatService, served(ChatService)]

router = APIRouter(tags=["chat"], route_class=LateRoute)


@router.post("/v1/chat/completions", response_model=None)
@router.post("/v1/chat/completions/chat/completions", response_model=None)
async def create_chat_completion(
    request: ChatRequest,
    chat: ChatServiceDep,
    threads: AgentThreadsDep,
    project_id: ProjectDep,
    headers: SubmissionHeadersDep,
) -> Response:
    """Sends the new messages to the agent that `model` names. Answers with the agent's text, whole or streamed.

    A request to a busy history waits in the queue, unless the header says otherwise.
    """
    return await chat.send(await _thread(threads, project_id, request.model), request, headers)


async def _thread(threads: AgentThreads, project_id: ProjectId, model: str) -> AgentThread:
    if not is_id(model, "agent") and not is_id(model, "conv"):
        raise UnknownModel(model)
    try:
        return await threads.find(project_id, model)
    except NotFound as error:
        raise UnknownModel(model) from error
