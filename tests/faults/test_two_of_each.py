"""Two API processes and two workers on one Redis and one database: it does not matter which one a client meets."""

import asyncio
from typing import Any

import httpx
import mcp_types
import pytest
from letta_client import AsyncLetta
from mcp import MCPError

from tests.kit.free_ports import free_port
from tests.kit.mcp.calling_client import Tasks, calling_client, made_task, said, task_now, update_task
from tests.kit.model_server import Call, ModelServer, ReceivedRequest, Turn
from tests.kit.product import Product
from tests.kit.product.frame_reader import read_whole, reading
from tests.kit.product.processes import Processes, api_at
from tests.kit.tools import LAUNCH
from tests.kit.wait_until import wait_until

WAITING = 120


async def test_a_stream_that_began_at_one_api_is_resumed_at_the_other(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    models.play(Turn(text="word " * 200, pace=0.005))
    ports = [free_port(), free_port()]
    workers = (processes.worker(max_runs=1) for _ in range(2))
    await asyncio.gather(*(processes.api(port) for port in ports), *workers)
    async with api_at(ports[0]) as one, api_at(ports[1]) as other:
        agent = await product.agent()
        run_id = await submit(one, agent.id)
        async with reading(one, run_id) as begun:
            await begun.reach(20)
        seen = begun.seq_ids[-1]
        resumed = await read_whole(other, run_id, starting_after=seen)
        resumed.assert_complete()
        whole = await read_whole(one, run_id)

    whole.assert_complete()
    assert [*begun.raw, *resumed.raw] == whole.raw


async def test_an_api_that_is_told_to_end_sends_its_readers_to_another_one(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    models.say("one two three four", silent_after=3)
    port = free_port()
    api, _ = await asyncio.gather(processes.api(port), processes.worker())
    run_id = await submit(product.http, (await product.agent()).id)
    async with api_at(port) as http, reading(http, run_id) as sent_away:
        await wait_until(lambda: len(sent_away.of_type("assistant_message")) == 3, description="the first words")
        assert await api.terminate() == 0
        await sent_away.end()

    assert sent_away.is_sent_away
    await product.http.post(f"/v1/runs/{run_id}/cancel")
    rest = await read_whole(product.http, run_id, starting_after=sent_away.seq_ids[-1])
    rest.assert_complete()


async def test_a_caller_that_waits_for_a_whole_answer_is_told_where_it_will_be(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    """It got a bare 500, and a client that sends again what failed would have sent its message twice."""
    models.say("one two three four", silent_after=3)
    port = free_port()
    api, _ = await asyncio.gather(processes.api(port), processes.worker())
    agent = await product.agent()
    async with api_at(port) as http:
        asking = asyncio.ensure_future(http.post(f"/v1/agents/{agent.id}/messages", json={"input": "Hello"}))
        await wait_until(lambda: models.requests, description="the model to be asked")
        assert await api.terminate() == 0
        answer = await asking

    assert (answer.status_code, answer.headers["x-should-retry"]) == (503, "false")
    run_id = answer.json()["run_id"]
    assert (await product.run(run_id))["status"] == "running"
    await product.http.post(f"/v1/runs/{run_id}/cancel")


async def test_the_sdk_reads_on_elsewhere_when_its_api_is_told_to_end(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    models.play(Turn(text="word " * 300, pace=0.005))
    port = free_port()
    api, _ = await asyncio.gather(processes.api(port), processes.worker())
    agent = await product.agent()
    async with AsyncLetta(base_url=f"http://127.0.0.1:{port}", api_key="none", max_retries=0) as client:
        stream: Any = await client.agents.messages.create(
            agent.id, input="Hello", streaming=True, stream_tokens=True, background=True
        )
        seen = [await anext(stream) for _ in range(20)]
        assert await api.terminate() == 0
        seen += [chunk async for chunk in stream]
    assert seen[-1].message_type != "stop_reason"

    rest: Any = await product.client.runs.messages.stream(seen[-1].run_id, starting_after=seen[-1].seq_id)
    seen += [chunk async for chunk in rest]
    assert [chunk.seq_id for chunk in seen] == list(range(1, len(seen) + 1))
    assert "".join(chunk.content for chunk in seen if chunk.message_type == "assistant_message") == "word " * 300


async def test_runs_that_wait_for_a_slow_model_do_not_keep_new_runs_from_starting(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    def answer(request: ReceivedRequest) -> Turn:
        return Turn(text="slow", silent_after_headers=3600) if request.model == "gpt-4o" else Turn(text="quick")

    models.answer_with(answer)
    settings: dict[str, object] = {"max_runs": 100}
    await asyncio.gather(processes.worker(**settings), processes.worker(**settings))
    slow = [await product.agent(model="openai/gpt-4o") for _ in range(WAITING)]
    quick = await product.agent()
    for agent in slow:
        await submit(product.http, agent.id)
    await wait_until(lambda: len(models.requests) == WAITING, description="all of them to wait for the model")

    run_id = await submit(product.http, quick.id)
    whole = await read_whole(product.http, run_id)

    assert len(models.requests) == WAITING + 1
    assert not any(request.client_left for request in models.requests[:WAITING]), "all of them wait still"
    whole.assert_complete()
    assert whole.of_type("assistant_message")[0]["content"] == "quick"


async def submit(http: httpx.AsyncClient, agent_id: str) -> str:
    """A run in token mode; its id."""
    answer = await http.post(f"/v1/agents/{agent_id}/messages/async", json={"input": "Hello", "stream_tokens": True})
    return answer.json()["id"]


async def test_a_task_is_made_at_one_api_and_followed_at_the_other(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    """The client's program asks whoever answers: nothing of the task is in the process that made it."""
    models.play(Turn(calls=[Call("launch", {"target": "moon"})]), Turn(text="It flies."))
    ports = [free_port(), free_port()]
    api, *_ = await asyncio.gather(*(processes.api(port) for port in ports), processes.worker())
    await product.agent(tools=[await product.tool(LAUNCH, default_requires_approval=True)])
    async with calling_client(f"http://127.0.0.1:{ports[0]}", tasks=Tasks()) as client:
        [tool] = (await client.list_tools()).tools
        made = await made_task(client, tool.name, "Launch")
    assert await api.terminate() == 0

    async with calling_client(f"http://127.0.0.1:{ports[1]}", tasks=Tasks()) as client:
        waiting = await task_at(client, made.task_id, "input_required")
        [asked] = waiting.requests
        answer = mcp_types.ElicitResult(action="accept", content={"approve": True})
        await update_task(client, made.task_id, **{asked: answer})
        ended = await task_at(client, made.task_id, "completed")

    assert said(ended.outcome) == "It flies."


async def task_at(client: Any, task_id: str, status: str) -> Any:
    async def look() -> Any:
        now = await task_now(client, task_id)
        return now if now.status == status else None

    return await wait_until(look, description=f"{task_id} to be {status}")


async def test_a_caller_of_a_tool_is_told_that_its_run_goes_on_when_the_api_ends(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    models.say("one two three", silent_after=1)
    port = free_port()
    api, _ = await asyncio.gather(processes.api(port), processes.worker())
    agent = await product.agent()
    async with calling_client(f"http://127.0.0.1:{port}") as client:
        [tool] = (await client.list_tools()).tools
        calling = asyncio.create_task(client.call_tool(tool.name, {"message": "Count"}), name="call")

        async def running() -> Any:
            runs = (await product.http.get("/v1/runs", params={"agent_id": agent.id})).json()
            return next((run for run in runs if run["status"] == "running"), None)

        run = await wait_until(running, description="the run to begin")
        assert await api.terminate() == 0
        with pytest.raises(MCPError, match="the run goes on") as refused:
            await calling

    assert refused.value.error.data["run_id"] == run["id"]
    assert (await product.run(run["id"]))["status"] == "running"
    await product.http.post(f"/v1/runs/{run['id']}/cancel")
