"""Bursts of submissions queue: first come, first served, and nobody else waits behind them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from api.admission import Admission, is_submission, release_permit
from api.every_answer import UnusedInputWarnings
from api.request_input import BodyReader, RequestInput, StrictRequests
from tests.kit.product.refusing import in_an_application
from tests.kit.wait_until import wait_until

SUBMIT = "/v1/agents/agent-1/messages"


class Storing:
    """Stands behind the queue: it stores a submission when it is told to, and notes in which order they came."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.stored = asyncio.Semaphore(0)
        self.answered = asyncio.Event()
        self.answers_later = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body: bytes = (await receive()).get("body", b"")
        if (scope["method"], scope["path"]) == ("POST", SUBMIT):
            self.begun.append(body.decode())
            await self.stored.acquire()
            if self.answers_later:
                release_permit()
                await self.answered.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})


def taking_turns(storing: Storing, admission: Admission) -> RequestInput:
    """What stands before the routes, for requests without keys of single agents."""
    return RequestInput(
        storing,
        bodies=BodyReader(max_bytes=1000, timeout_s=60),
        admission=admission,
        reach=cast("Any", None),
        strict=StrictRequests(routes=[], by_default=False, installs_packages=False),
        warnings=UnusedInputWarnings(installs_packages=False),
    )


@asynccontextmanager
async def queueing(
    *, at_once: int = 1, most_waiting: int = 10, wait_s: float = 60.0
) -> AsyncGenerator[tuple[Storing, Admission, httpx.AsyncClient]]:
    storing, refused = Storing(), list[str]()
    admission = Admission(at_once=at_once, most_waiting=most_waiting, wait_s=wait_s, on_refused=refused.append)
    turns = taking_turns(storing, admission)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(in_an_application(turns)), base_url="http://test"
    ) as http:
        yield storing, admission, http


@pytest.mark.parametrize(
    "path",
    [
        *("/ag-ui/agent-1", "/ag-ui/agent/agent-1/run", "/ai-sdk/agent-1/chat", "/v1/groups/group-1/messages"),
        *("/v1/groups/group-1/messages/stream", "/v1/conversations/conv-1/messages", "/openai/v1/responses"),
        *(
            "/v1/responses",
            "/v1/chat/completions",
            "/openai/v1/chat/completions",
            "/v1/agents/agent-1/messages/async",
            "/mcp",
        ),
    ],
)
def test_submissions_of_pages_and_groups_took_every_connection_to_the_database(path: str) -> None:
    """They did not wait for a permit, so that reads and cancels waited behind a burst of them."""
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": path, "headers": []}
    assert is_submission(scope)
    assert not is_submission({**scope, "method": "GET"})


@pytest.mark.parametrize(
    "path",
    ["/ag-ui/agent-1/stop", "/ag-ui/agent/agent-1/stop/tea", "/ag-ui/agent/agent-1/connect", "/ai-sdk/a/chat/c/stop"],
)
def test_stops_and_readers_wait_for_no_permit(path: str) -> None:
    assert not is_submission({"type": "http", "method": "POST", "path": path, "headers": []})


async def test_a_burst_is_stored_in_the_order_in_which_it_came() -> None:
    """400 submissions at once: 10 of them were answered 503."""
    async with queueing(at_once=2) as (storing, admission, http), asyncio.TaskGroup() as group:
        sent: list[asyncio.Task[httpx.Response]] = []
        for number in range(6):
            sent.append(group.create_task(http.post(SUBMIT, content=str(number)), name="submission"))
            await wait_until(
                lambda came=number + 1: len(storing.begun) + admission.waiting == came, description="it to come"
            )
        assert (storing.begun, admission.waiting) == (["0", "1"], 4)
        for _ in sent:
            storing.stored.release()
    assert [one.result().text for one in sent] == ["0", "1", "2", "3", "4", "5"]
    assert storing.begun == ["0", "1", "2", "3", "4", "5"]
    assert admission.waiting == 0


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/runs/run-1/cancel"),
        ("POST", "/v1/agents/agent-1/messages/cancel"),
        ("POST", "/v1/conversations/conv-1/cancel"),
        ("POST", "/v1/conversations/conv-1/stream"),
        ("POST", "/v1/runs/run-1/stream"),
        ("POST", "/v1/approvals/approval-1"),
        ("GET", "/v1/agents/agent-1/messages"),
        ("GET", "/v1/runs/run-1"),
    ],
)
async def test_reads_and_cancels_go_past_a_full_queue(method: str, path: str) -> None:
    async with queueing(most_waiting=0) as (storing, _, http), asyncio.TaskGroup() as group:
        group.create_task(http.post(SUBMIT), name="submission")
        await wait_until(lambda: bool(storing.begun), description="the submission to be at work")
        assert (await http.request(method, path)).status_code == 200
        storing.stored.release()


@pytest.mark.parametrize(
    "path",
    [
        SUBMIT,
        "/v1/agents/agent-1/messages/stream",
        "/v1/agents/agent-1/messages/async",
        "/v1/agents/agent-1/summarize",
        "/v1/agents/agent-1/generate",
        "/v1/agents/agent-1/tools/roll/run",
        "/v1/conversations/conv-1/messages",
        "/v1/conversations/conv-1/compact",
        "/v1/chat/completions",
    ],
)
async def test_a_full_queue_refuses_and_says_when_to_come_again(path: str) -> None:
    async with queueing(most_waiting=0) as (storing, _, http), asyncio.TaskGroup() as group:
        group.create_task(http.post(SUBMIT), name="submission")
        await wait_until(lambda: bool(storing.begun), description="the submission to be at work")
        refused = await http.post(path)
        storing.stored.release()
    assert refused.status_code == 503
    assert refused.headers["Retry-After"] == "2"
    assert "HOLDFAST_WAITING_SUBMISSIONS" in refused.text


async def test_a_submission_that_waits_too_long_is_refused_and_leaves_no_trace() -> None:
    async with queueing(wait_s=0.01) as (storing, admission, http), asyncio.TaskGroup() as group:
        group.create_task(http.post(SUBMIT, content="first"), name="submission")
        await wait_until(lambda: bool(storing.begun), description="the submission to be at work")
        refused = await http.post(SUBMIT, content="second")
        assert admission.waiting == 0
        storing.stored.release()
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
    assert "HOLDFAST_SUBMISSION_WAIT" in refused.json()["detail"]
    assert storing.begun == ["first"]


async def test_a_client_that_leaves_while_it_waits_has_submitted_nothing() -> None:
    async with queueing() as (storing, admission, http), asyncio.TaskGroup() as group:
        group.create_task(http.post(SUBMIT, content="first"), name="submission")
        await wait_until(lambda: bool(storing.begun), description="the submission to be at work")
        messages: list[Message] = [{"type": "http.disconnect"}, {"type": "http.request", "body": b"gone"}]

        async def receive() -> Message:
            return messages.pop()

        async def send(message: Message) -> None:
            raise AssertionError(f"{message} is sent to nobody")

        scope: Scope = {"type": "http", "method": "POST", "path": SUBMIT, "headers": []}
        await taking_turns(storing, admission)(scope, receive, send)
        assert admission.waiting == 0
        storing.stored.release()
        storing.stored.release()
        assert (await http.post(SUBMIT, content="third")).text == "third", "the turn was not lost"
    assert storing.begun == ["first", "third"]


async def test_a_turn_ends_when_the_run_is_stored_and_not_when_it_has_ended() -> None:
    """An answer that is no stream comes when its run has ended: nobody may wait for it in between."""
    async with queueing() as (storing, _, http), asyncio.TaskGroup() as group:
        storing.answers_later = True
        first = group.create_task(http.post(SUBMIT, content="first"), name="submission")
        group.create_task(http.post(SUBMIT, content="second"), name="submission")
        storing.stored.release()
        await wait_until(lambda: storing.begun == ["first", "second"], description="the second to have its turn")
        assert not first.done()
        storing.stored.release()
        storing.answered.set()
