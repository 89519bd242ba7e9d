"""Dependencies that routes declare: services, the caller's project, checked ids, pages.

All are `async`, although none waits: FastAPI runs a plain function in a thread, which costs more than most of these
functions do.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Annotated, Any, Literal

from fastapi import Depends, Header, Path, Query, Request
from pydantic import BeforeValidator

from api.access.accepted_keys import LONGEST
from api.access.callers import Caller, may_see_instructions
from api.agent_answers import MessageAnswers, types_for
from api.input_limits import InputLimits
from api.letta.message_input import MessageType
from api.offered_models import OfferedModels
from api.runs.cancel import CancelService
from api.runs.command import BusyPolicy, SubmissionHeaders, try_of
from shared.concurrency import Clock
from shared.domain.errors import InvalidRequest
from shared.domain.ids import (
    MAX_SEQ,
    UUID4_PATTERN,
    AgentId,
    ArchiveId,
    BlockId,
    ConversationId,
    IdMaker,
    PassageId,
    ProjectId,
    RunId,
    StepId,
    ThreadId,
    ToolId,
    is_id,
)
from shared.domain.runs import PRIORITIES
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.history.messages import MessageStore
from shared.sql.paging import MOST_ROWS, Page
from shared.sql.runs.run_store import RunStore


@cache
def served(kind: Any) -> Any:
    """A dependency that returns the service of this type. `Services` has one of each type."""

    async def find(request: Request) -> object:
        return request.app.state.served[kind]

    return Depends(find)


# The services that many routes use. A service of few routes is declared beside them.

AgentEditorDep = Annotated[AgentEditor, served(AgentEditor)]
CancelServiceDep = Annotated[CancelService, served(CancelService)]
ClockDep = Annotated[Clock, served(Clock)]
IdMakerDep = Annotated[IdMaker, served(IdMaker)]
InputLimitsDep = Annotated[InputLimits, served(InputLimits)]
MessageAnswersDep = Annotated[MessageAnswers, served(MessageAnswers)]
MessageStoreDep = Annotated[MessageStore, served(MessageStore)]
OfferedModelsDep = Annotated[OfferedModels, served(OfferedModels)]
RunStoreDep = Annotated[RunStore, served(RunStore)]
EnvironmentDep = Annotated[Mapping[str, str], served(Mapping[str, str])]
"""The process's environment variables: which model providers are configured."""


async def caller_of(request: Request) -> Caller:
    """The caller that `Authentication` has identified."""
    return request.state.caller


CallerDep = Annotated[Caller, Depends(caller_of)]


async def project_of(caller: CallerDep) -> ProjectId:
    """The caller's project."""
    return caller.project_id


ProjectDep = Annotated[ProjectId, Depends(project_of)]


async def only_thread_of(caller: CallerDep) -> ThreadId | None:
    """The only thread that the caller may see, if it is a page with a token. None: all that its key sees."""
    return caller.thread_id


OnlyThreadDep = Annotated[ThreadId | None, Depends(only_thread_of)]


async def agents_of_key(caller: CallerDep) -> frozenset[AgentId]:
    """The agents that the caller's key is bound to. Empty: the key sees its whole project."""
    return caller.scopes.agents


AgentsOfKeyDep = Annotated[frozenset[AgentId], Depends(agents_of_key)]


async def shows_instructions(caller: CallerDep) -> bool:
    """Whether the caller may see the instructions that the project gives to agents."""
    return may_see_instructions(caller)


ShowsInstructionsDep = Annotated[bool, Depends(shows_instructions)]


AgentIdPath = Annotated[AgentId, Path(pattern=f"^agent-{UUID4_PATTERN}$")]
ArchiveIdPath = Annotated[ArchiveId, Path(pattern=f"^archive-{UUID4_PATTERN}$")]
BlockIdPath = Annotated[BlockId, Path(pattern=f"^block-{UUID4_PATTERN}$")]
ConversationIdPath = Annotated[ConversationId, Path(pattern=f"^conv-{UUID4_PATTERN}$")]
PassageIdPath = Annotated[PassageId, Path(pattern=f"^passage-{UUID4_PATTERN}$")]
StepIdPath = Annotated[StepId, Path(pattern=f"^step-{UUID4_PATTERN}$")]
ToolIdPath = Annotated[ToolId, Path(pattern=f"^tool-{UUID4_PATTERN}$")]

AgentIdQuery = Annotated[AgentId, Query(pattern=f"^agent-{UUID4_PATTERN}$")]
OptionalAgentIdQuery = Annotated[AgentId | None, Query(pattern=f"^agent-{UUID4_PATTERN}$")]


ThreadName = Annotated[str, Path(pattern=f"^(default|(conv|agent)-{UUID4_PATTERN})$")]
"""The id of a conversation; `default`, with the agent's id beside it; or the agent's id, which names the same
history."""


async def run_id_of(run_id: Annotated[str, Path(json_schema_extra={"pattern": f"^run-{UUID4_PATTERN}$"})]) -> RunId:
    """The run id of the path. A malformed id is a 400 on Letta's wire, not a 422."""
    if not is_id(run_id, "run"):
        raise InvalidRequest(f"Invalid run ID format: {run_id}. Expected format: 'run-<uuid4>'", field="path.run_id")
    return RunId(run_id)


RunIdPath = Annotated[RunId, Depends(run_id_of)]


async def project_of_stream(
    caller: CallerDep, _token: Annotated[str | None, Query(alias="token", max_length=LONGEST)] = None
) -> ProjectId:
    """The project of the token for a stream or a page, or of the key. `Authentication` has checked it."""
    return caller.project_id


StreamProjectDep = Annotated[ProjectId, Depends(project_of_stream)]


async def last_event_id_of(request: Request, last_event_id: Annotated[str | None, Header()] = None) -> str | None:
    """The `Last-Event-ID` of a client that resumes a stream. Several such headers are joined to a text that is no valid
    number, because the API cannot tell which event the client saw last."""
    said = dict.fromkeys(request.headers.getlist("Last-Event-ID"))
    return ", ".join(said) if len(said) > 1 else last_event_id


LastEventIdDep = Annotated[str | None, Depends(last_event_id_of)]


async def starting_after_of(
    request: Request, starting_after: Annotated[int | None, Query(ge=0, le=MAX_SEQ)] = None
) -> int | None:
    """The cursor in the query of a stream. Raises `InvalidRequest` if the query has two."""
    said = dict.fromkeys(request.query_params.getlist("starting_after"))
    if len(said) > 1:
        raise InvalidRequest("starting_after is there more than once", field="query.starting_after")
    return starting_after


StartingAfterDep = Annotated[int | None, Depends(starting_after_of)]

MOST_MESSAGES = 10_000
Limit = Annotated[int, Query(ge=1, le=MOST_MESSAGES)]
Order = Literal["asc", "desc"]


def _page_of(
    default_limit: int, default_order: Order, most: int = MOST_ROWS, *, greatest: int = MOST_MESSAGES
) -> Callable[..., Awaitable[Page]]:
    async def page(
        limit: Annotated[int, Query(ge=1, le=greatest)] = default_limit,
        after: str | None = None,
        before: str | None = None,
        order: Order = default_order,
        ascending: bool | None = None,
    ) -> Page:
        upwards = order == "asc" if ascending is None else ascending
        whole = limit > most
        return Page(min(limit, most + 1), after or None, before or None, ascending=upwards, is_whole=whole)

    return page


TenNewestMessages = Annotated[Page, Depends(_page_of(10, "desc", MOST_MESSAGES))]
NewestFirst = Annotated[Page, Depends(_page_of(50, "desc"))]
OldestFirst = Annotated[Page, Depends(_page_of(50, "asc"))]
HundredNewestFirst = Annotated[Page, Depends(_page_of(100, "desc"))]
NewestRuns = Annotated[Page, Depends(_page_of(100, "desc", greatest=MOST_ROWS))]
"""Letta's server refuses a greater limit for this list alone."""
OldestMessages = Annotated[Page, Depends(_page_of(100, "asc", MOST_MESSAGES))]
NewestMessages = Annotated[Page, Depends(_page_of(100, "desc", MOST_MESSAGES))]

_AskedTypes = Annotated[list[MessageType] | None, Query(alias="include_return_message_types")]


async def _types_shown(caller: CallerDep, asked: _AskedTypes = None) -> list[str] | None:
    return types_for(caller, asked)


MessageTypes = Annotated[list[str] | None, Depends(_types_shown)]
"""The types of messages that a list contains; None: all."""

Texts = Annotated[list[str] | None, Query()]
"""A query parameter that may be repeated."""

_Part = Literal[
    "agent.blocks", "agent.identities", "agent.managed_group", "agent.pending_approval", "agent.secrets",
    "agent.sources", "agent.tags", "agent.tools",
]  # fmt: skip
Included = Annotated[list[_Part] | None, Query(), BeforeValidator(lambda given: [*filter(None, given or ())])]
"""The parts that an agent's state shall have. A wrong name is refused: the client would read a null as the part."""

Number = Annotated[int, Query(ge=-(2**31), lt=2**31)]
Numbers = Annotated[list[Number] | None, Query(max_length=1000)]


async def submission_headers(
    caller: CallerDep,
    idempotency_key: Annotated[str | None, Header(max_length=256)] = None,
    if_busy: Annotated[BusyPolicy | None, Header(alias="X-Holdfast-If-Busy")] = None,
    status_events: Annotated[bool, Header(alias="X-Holdfast-Status-Events")] = False,
    priority: Annotated[int, Header(alias="X-Holdfast-Priority", ge=PRIORITIES.start, lt=PRIORITIES.stop)] = 0,
    retry_count: Annotated[str | None, Header(alias="X-Stainless-Retry-Count")] = None,
    read_timeout: Annotated[str | None, Header(alias="X-Stainless-Read-Timeout")] = None,
    waits: Annotated[str | None, Header(alias="X-Stainless-Timeout")] = None,
) -> SubmissionHeaders:
    """The headers of a submission. Letta's SDKs for Python and TypeScript send their timeouts under different names."""
    tried = try_of(retry_count, read_timeout or waits)
    return SubmissionHeaders(
        idempotency_key, if_busy, status_events, priority, tried, caller.key_id, bool(caller.scopes.agents)
    )


SubmissionHeadersDep = Annotated[SubmissionHeaders, Depends(submission_headers)]
