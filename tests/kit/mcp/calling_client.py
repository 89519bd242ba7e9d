"""The official package's client at a product's `/mcp`, as programs use it.

The package knows no tasks, but has a place for such an extension: `Tasks` is what a program would write for it.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Literal

import httpx2
import mcp_types
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from pydantic import ConfigDict, Field

from tests.kit.wait_until import HANGS_S, wait_until

Mode = Literal["2026-07-28", "auto", "legacy"]

MODERN: Mode = "2026-07-28"

Answer = Callable[[str], mcp_types.ElicitResult]
"""A person's answer to a question."""

TASKS = "io.modelcontextprotocol/tasks"


class Task(mcp_types.Result):
    """A new task, by the extension's specification."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    result_type: Literal["task"] = Field(alias="resultType")
    task_id: str = Field(alias="taskId")
    status: Literal["working", "input_required", "completed", "cancelled", "failed"]
    created_at: str = Field(alias="createdAt")
    last_updated_at: str = Field(alias="lastUpdatedAt")
    ttl_ms: int | None = Field(alias="ttlMs")
    poll_interval_ms: int = Field(alias="pollIntervalMs")


class TaskNow(mcp_types.Result):
    """A task in the answer to `tasks/get`."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    result_type: Literal["complete"] = Field(alias="resultType")
    task_id: str = Field(alias="taskId")
    status: Literal["working", "input_required", "completed", "cancelled", "failed"]
    status_message: str = Field(alias="statusMessage")
    requests: dict[str, mcp_types.ElicitRequest] | None = Field(default=None, alias="inputRequests")
    outcome: mcp_types.CallToolResult | None = Field(default=None, alias="result")


class _TaskRequest(mcp_types.Request[dict[str, Any], str]):
    name_param: ClassVar[str | None] = "taskId"


class Tasks(ClientExtension):
    """The extension in a client: calls are finished by asking until they are over."""

    identifier = TASKS

    def __init__(self) -> None:
        self.made: list[Task] = []

    def claims(self) -> Sequence[ResultClaim[Any]]:
        """Answers that are tasks."""
        return [ResultClaim(result_type="task", model=Task, resolve=self._resolve)]

    async def _resolve(self, made: Task, context: ClaimContext) -> mcp_types.CallToolResult:
        self.made.append(made)

        async def look() -> TaskNow | None:
            now = await _asked(context.session, "tasks/get", TaskNow, taskId=made.task_id)
            return now if now.status not in ("working", "input_required") else None

        ended = await wait_until(look, description=f"{made.task_id} to end")
        return ended.outcome or mcp_types.CallToolResult(content=[], is_error=True)


async def _asked(session: Any, method: str, result: Any, **params: Any) -> Any:
    return await session.send_request(_TaskRequest(method=method, params=params), result)


async def task_now(client: Client, task_id: str) -> TaskNow:
    """Requests the state of a task."""
    return await _asked(client.session, "tasks/get", TaskNow, taskId=task_id)


async def update_task(client: Client, task_id: str, **responses: mcp_types.ElicitResult) -> mcp_types.EmptyResult:
    """Sends the decision of a person."""
    given = {name: one.model_dump(mode="json", exclude_none=True) for name, one in responses.items()}
    return await _asked(client.session, "tasks/update", mcp_types.EmptyResult, taskId=task_id, inputResponses=given)


async def cancel_task(client: Client, task_id: str) -> mcp_types.EmptyResult:
    """Cancels a task."""
    return await _asked(client.session, "tasks/cancel", mcp_types.EmptyResult, taskId=task_id)


async def made_task(client: Client, name: str, message: str, **call: Any) -> Task:
    """Calls a tool, and returns the task in the answer."""
    made: Any = await client.session.call_tool(name, {"message": message}, allow_claimed=True, **call)
    assert isinstance(made, Task), made
    return made


@asynccontextmanager
async def calling_client(
    base_url: str,
    key: str = "none",
    *,
    mode: Mode = MODERN,
    answer: Answer | None = None,
    tasks: Tasks | None = None,
) -> AsyncGenerator[Client]:
    """A connected client. `answer` plays its person; without it, the client supports no questions to a person."""

    async def elicit(context: Any, params: Any) -> mcp_types.ElicitResult:
        del context
        assert answer is not None
        return answer(params.message)

    headers = {"Authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(timeout=HANGS_S, headers=headers) as sent_by:
        client = Client(
            streamable_http_client(f"{base_url}/mcp", http_client=sent_by),
            mode=mode,
            elicitation_callback=None if answer is None else elicit,
            extensions=None if tasks is None else [tasks],
        )
        async with client:
            yield client


def said(result: mcp_types.CallToolResult) -> str:
    """The text of a result."""
    return "".join(part.text for part in result.content if isinstance(part, mcp_types.TextContent))
