"""A crash before and after every durable write: what was accepted ends once, no tool starts twice, no frame is missing.

One run's life passes them all: a message is injected, a tool is called, another one waits for a person, the decision is
carried out, and the model answers. Each test has one process die at one point, as `kill -9` would have it, and another
one go on.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import httpx
import pytest

from shared.concurrency import background
from shared.crash_points import CrashPoint
from tests.kit.model_server import Call, ModelServer, ReceivedRequest, Turn
from tests.kit.product import Product
from tests.kit.product.frame_reader import read_whole
from tests.kit.product.processes import Processes, api_at
from tests.kit.provider_rules.request import broken_rules
from tests.kit.services.tcp_proxy import free_port
from tests.kit.wait_until import wait_until

NOTES = '''
def note(word: str, log: str) -> str:
    """
    Notes a word.

    Args:
        word (str): The word.
        log (str): The file that it is written to.
    """
    with open(log, "a") as words:
        words.write(word + "\\n")
    return "noted " + word
'''
ASKED_NOTES = NOTES.replace("def note(", "def note_if_allowed(")

BY_API = (
    CrashPoint.SUBMIT,
    CrashPoint.DISPATCH,
    CrashPoint.DECIDE,
    CrashPoint.CANCEL,
    CrashPoint.ANNOUNCE_CANCEL,
    CrashPoint.INJECT,
)
BY_WORKER = tuple(write for write in CrashPoint if write not in BY_API)
SIDES = ("before", "after")
LONG_S = 60.0


def answers(log: Path) -> Callable[[ReceivedRequest], Turn]:
    """A model that calls the first tool, then the second, then answers, by what its history says."""

    def answer(request: ReceivedRequest) -> Turn:
        told = [message for message in request.body["messages"] if message["role"] == "tool"]
        if len(told) == 0:
            return Turn(text="First.", calls=[Call("note", {"word": "first", "log": str(log)})])
        if len(told) == 1:
            return Turn(text="Second.", calls=[Call("note_if_allowed", {"word": "second", "log": str(log)})])
        return Turn(text="All is noted.")

    return answer


@asynccontextmanager
async def deciding(http: httpx.AsyncClient) -> AsyncGenerator[None]:
    """Somebody approves whatever waits, for as long as the block lasts; an API that is away is tried again."""

    async def look() -> bool:
        answer = await ask(http, "GET", "/v1/approvals")
        waiting_requests: list[dict[str, Any]] = [] if answer is None else answer.json()
        for waiting in waiting_requests:
            await ask(http, "POST", f"/v1/approvals/{waiting['id']}", {"decision": "approve"})
        return False

    async with background(wait_until(look, description="nothing", timeout=3600, every=0.05), name="decide"):
        yield


async def ask(http: httpx.AsyncClient, method: str, path: str, body: Any = None) -> httpx.Response | None:
    """The answer; None when the API is away."""
    try:
        return await http.request(method, path, json=body)
    except httpx.TransportError:
        return None


async def insist(http: httpx.AsyncClient, path: str, body: Any) -> Any:
    """Sends a request until it is answered, as a careful client would."""

    async def try_it() -> httpx.Response | None:
        answer = await ask(http, "POST", path, body)
        return None if answer is None or answer.status_code == 503 else answer

    answer = await wait_until(try_it, description=f"POST {path} to be answered", timeout=LONG_S, every=0.1)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def agent_of(product: Product, models: ModelServer, log: Path) -> str:
    models.answer_with(answers(log))
    tools = [await product.tool(NOTES), await product.tool(ASKED_NOTES, default_requires_approval=True)]
    return (await product.agent(tools=tools)).id


async def all_ended(http: httpx.AsyncClient, agent_id: str, *, runs: int) -> list[dict[str, Any]]:
    """The agent's runs, oldest first, when there are so many and all have ended."""

    async def look() -> list[dict[str, Any]] | None:
        listed = await ask(http, "GET", f"/v1/runs/?agent_id={agent_id}&ascending=true")
        found: list[dict[str, Any]] = [] if listed is None else listed.json()
        over = [run for run in found if run["status"] in ("completed", "failed", "cancelled")]
        waits = [run for run in over if run["stop_reason"] == "requires_approval"]
        return found if len(over) == len(found) >= runs and len(waits) < len(found) else None

    return await wait_until(look, description=f"{runs} runs to end", timeout=LONG_S)


def words_in(log: Path) -> list[str]:
    """What the tools have written."""
    return log.read_text().split() if log.exists() else []


async def assert_nothing_was_lost(product: Product, models: ModelServer, agent_id: str, log: Path) -> None:
    """The story had one end, whoever died in it."""
    asked, carried = await all_ended(product.http, agent_id, runs=2)
    assert (asked["status"], asked["stop_reason"]) == ("completed", "requires_approval")
    assert (carried["status"], carried["stop_reason"]) == ("completed", "end_turn")
    words = words_in(log)
    assert len(words) == len(set(words)), "a tool was started twice"

    history = await product.history(agent_id)
    returns = [message for message in history if message["message_type"] == "tool_return_message"]
    assert len(returns) == 2
    for returned, word in zip(returns, ("first", "second"), strict=True):
        assert returned["tool_return"] == f"noted {word}" or "outcome unknown" in returned["tool_return"]
        assert word in words or returned["status"] == "error"
    said = [message["content"] for message in history if message["message_type"] == "user_message"]
    assert sorted(said) == ["And this.", "Note it."]
    assert history[-1]["content"] == "All is noted."
    assert [rule for request in models.requests for rule in broken_rules(request)] == []
    shown: list[str] = []
    for run in (asked, carried):
        whole = await read_whole(product.http, run["id"])
        whole.assert_complete()
        assert (await read_whole(product.http, run["id"])).raw == whole.raw
        shown += [frame["content"] for frame in whole.of_type("user_message")]
    assert shown == ["And this."], "an injected message is shown once"


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("write", BY_WORKER)
async def test_a_worker_that_dies_there(
    product: Product, processes: Processes, models: ModelServer, tmp_path: Path, write: CrashPoint, side: str
) -> None:
    log = tmp_path / "words"
    agent_id = await agent_of(product, models, log)
    run = await insist(product.http, f"/v1/agents/{agent_id}/messages/async", {"input": "Note it."})
    await insist(product.http, f"/v1/runs/{run['id']}/inject", {"messages": [{"role": "user", "content": "And this."}]})
    if write is CrashPoint.DISPATCH_AGAIN:
        await cast("Any", product.parts.redis).flushdb()  # only the sweeper can find the run now
    async with deciding(product.http):
        dying = await processes.worker(crash_at=f"{write}:{side}")
        assert await dying.ended(within_s=LONG_S) == -9
        await processes.worker()
        await assert_nothing_was_lost(product, models, agent_id, log)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("write", [CrashPoint.SUBMIT, CrashPoint.DISPATCH, CrashPoint.DECIDE, CrashPoint.INJECT])
async def test_an_api_that_dies_there(
    product: Product, processes: Processes, models: ModelServer, tmp_path: Path, write: CrashPoint, side: str
) -> None:
    log = tmp_path / "words"
    agent_id = await agent_of(product, models, log)
    port = free_port()
    dying = await processes.api(port, crash_at=f"{write}:{side}")
    said = {"messages": [{"role": "user", "content": "Note it.", "otid": str(uuid4())}]}
    injected = {"messages": [{"role": "user", "content": "And this.", "otid": str(uuid4())}]}

    async def client(http: httpx.AsyncClient) -> None:
        run = await insist(http, f"/v1/agents/{agent_id}/messages/async", said)
        await insist(http, f"/v1/runs/{run['id']}/inject", injected)
        await processes.worker()

    async with api_at(port) as http, deciding(http), background(client(http), name="a client that insists"):
        assert await dying.ended(within_s=LONG_S) == -9
        await processes.api(port)
        await assert_nothing_was_lost(product, models, agent_id, log)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("write", [CrashPoint.CANCEL, CrashPoint.ANNOUNCE_CANCEL])
async def test_an_api_that_dies_over_a_cancel(
    product: Product, processes: Processes, models: ModelServer, write: CrashPoint, side: str
) -> None:
    models.say("never said", silent_before_headers=3600)
    agent = await product.agent()
    port = free_port()
    dying, _ = await asyncio.gather(processes.api(port, crash_at=f"{write}:{side}"), processes.worker())
    run = await insist(product.http, f"/v1/agents/{agent.id}/messages/async", {"input": "Hello"})
    await wait_until(lambda: models.requests, description="the model to be asked")

    async with api_at(port) as http:
        assert await ask(http, "POST", f"/v1/runs/{run['id']}/cancel", {}) is None
        assert await dying.ended() == -9
        if (write, side) == (CrashPoint.CANCEL, "before"):
            await processes.api(port)  # nothing was recorded: the client has to ask again
            receipt = await insist(http, f"/v1/runs/{run['id']}/cancel", {})
            assert receipt["status"] == "cancelled"

    assert (await product.ended(run["id"]))["status"] == "cancelled"
    whole = await read_whole(product.http, run["id"])
    whole.assert_complete()
    assert [frame["stop_reason"] for frame in whole.of_type("stop_reason")] == ["cancelled"]
    await wait_until(lambda: models.requests[0].client_left, description="the model's connection to be closed")
