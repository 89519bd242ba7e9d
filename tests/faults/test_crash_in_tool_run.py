"""A crash before and after what is written of a call that a client asked for: its answer comes, the memory is edited
once, and no tool starts twice. The writes that it has in common with every run are walked in `test_crash_points.py`."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.concurrency import background
from shared.crash_points import CrashPoint
from shared.domain.mcp_servers import RemoteProbe
from tests.kit.mcp.taken_over import taken_over
from tests.kit.node import need_node
from tests.kit.product import Product
from tests.kit.product.frame_reader import read_whole
from tests.kit.product.processes import Processes
from tests.kit.runs.sending_agent import IN_TYPESCRIPT, sending_server
from tests.kit.services.redis_losses import end_leases
from tests.kit.tools import PLAIN_TOOLS
from tests.kit.wait_until import HANGS_S, wait_until

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
KILLS = '''
def kills(log: str) -> str:
    """
    Kills the worker that it runs in, the first time.

    Args:
        log (str): The file that each start is written to.
    """
    import os, signal, time
    with open(log, "a") as starts:
        starts.write("started\\n")
    if len(open(log).read().split()) > 1:
        return "survived"
    watcher = os.getppid()
    status = open(f"/proc/{watcher}/stat").read().rpartition(")")[2].split()
    os.kill(int(status[1]), signal.SIGKILL)
    time.sleep(3600)
'''
PROBE = """
def _probe_kills(log: str, *, idempotency_key: str):
    return {"happened": True, "result": f"{idempotency_key} was seen"} if open(log).read() else {"happened": False}
"""
NEVER_S = 3600.0
PATIENCE_S = 2 * HANGS_S
"""Seconds that a client waits for the answer, which two workers have to start for."""


async def answer_of(
    product: Product, processes: Processes, path: str, args: dict[str, Any], crash_at: str
) -> httpx.Response:
    """The answer to a call whose first worker dies or loses an answer. Behind one that dies comes another."""
    answers: list[httpx.Response] = []

    async def ask() -> None:
        answers.append(await product.http.post(path, json={"args": args}, timeout=PATIENCE_S))

    async with background(ask(), name="a call"):
        worker = await processes.worker(crash_at=crash_at, sweep_s=NEVER_S, **PLAIN_TOOLS)
        if crash_at.endswith((":before", ":after")):
            assert await worker.ended() == -9
            await end_leases(product.context.redis)
            await processes.worker(**PLAIN_TOOLS)
        [answer] = await wait_until(lambda: answers, description="the answer", timeout=PATIENCE_S)
    assert crash_at.endswith((":before", ":after")) or "answer_lost_on_purpose" in worker.log.read_text()
    return answer


async def assert_ended_once(product: Product, agent_id: str) -> None:
    [run] = (await product.http.get("/v1/runs/", params={"agent_id": agent_id})).json()
    assert (run["status"], run["stop_reason"]) == ("completed", "end_turn")
    whole = await read_whole(product.http, run["id"])
    whole.assert_complete()
    assert [len(whole.of_type(kind)) for kind in ("tool_return_message", "stop_reason")] == [1, 1]
    void = [one for note in whole.notes("step_restarted") for one in note["void_message_ids"]]
    assert len(whole.of_type("tool_call_message")) - len(void) == 1


@pytest.mark.parametrize("side", ["before", "after", "lost", "lost:1:2"])
@pytest.mark.parametrize("write", [CrashPoint.EDIT_MEMORY, CrashPoint.SETTLE])
async def test_an_edit_is_made_once_though_its_worker_dies(
    product: Product, processes: Processes, write: CrashPoint, side: str
) -> None:
    made: dict[str, Any] = {"memory_blocks": [{"label": "human", "value": "begin"}], "tools": ["core_memory_append"]}
    agent = await product.client.agents.create(model="openai/gpt-4o-mini", include_base_tools=False, **made)

    path = f"/v1/agents/{agent.id}/tools/core_memory_append/run"
    args = {"label": "human", "content": "first"}
    answer = await answer_of(product, processes, path, args, f"{write}:{side}")

    assert (answer.status_code, answer.json()["status"]) == (200, "success")
    assert answer.json()["func_return"] == "begin\nfirst"
    assert (await product.client.agents.blocks.retrieve("human", agent_id=agent.id)).value == "begin\nfirst"
    await assert_ended_once(product, agent.id)


@pytest.mark.parametrize("side", ["before", "after", "lost", "lost:1:2"])
@pytest.mark.parametrize("write", [CrashPoint.CHECKPOINT, CrashPoint.SETTLE])
async def test_a_tool_starts_once_though_its_worker_dies(
    product: Product, processes: Processes, tmp_path: Path, write: CrashPoint, side: str
) -> None:
    log = tmp_path / "words"
    agent = await product.agent(tools=[await product.tool(NOTES)])

    path = f"/v1/agents/{agent.id}/tools/note/run"
    answer = await answer_of(product, processes, path, {"word": "first", "log": str(log)}, f"{write}:{side}")

    words = log.read_text().split() if log.exists() else []
    result = answer.json()
    if (write, side) in ((CrashPoint.CHECKPOINT, "after"), (CrashPoint.SETTLE, "before")):
        assert (result["status"], "outcome unknown" in result["stderr"][-1]) == ("error", True)
        assert words == ([] if write is CrashPoint.CHECKPOINT else ["first"])
    else:
        assert (result["status"], result["func_return"], words) == ("success", "noted first", ["first"])
    await assert_ended_once(product, agent.id)


@pytest.mark.parametrize("side", ["", "before", "after", "lost"])
async def test_a_call_that_lost_its_worker_was_unknown_though_its_probe_could_tell(
    product: Product, processes: Processes, tmp_path: Path, side: str
) -> None:
    """Also where the worker that has asked the probe dies over what it writes of that, or loses the answer."""
    log = tmp_path / "starts"
    agent = await product.agent(tools=[await product.tool(PROBE + KILLS)])
    path, args, answers = f"/v1/agents/{agent.id}/tools/kills/run", {"log": str(log)}, list[httpx.Response]()

    async def ask() -> None:
        answers.append(await product.http.post(path, json={"args": args}, timeout=PATIENCE_S))

    async with background(ask(), name="a call"):
        worker = await processes.worker(**PLAIN_TOOLS)
        assert await worker.ended() == -9
        await end_leases(product.context.redis)
        crash_at = f"{CrashPoint.SETTLE_EFFECT}:{side}" if side else ""
        worker = await processes.worker(crash_at=crash_at, **PLAIN_TOOLS)
        if side in ("before", "after"):
            assert await worker.ended() == -9
            await end_leases(product.context.redis)
            await processes.worker(**PLAIN_TOOLS)
        [answer] = await wait_until(lambda: answers, description="the answer", timeout=PATIENCE_S)

    [run] = (await product.http.get("/v1/runs/", params={"agent_id": agent.id})).json()
    [effect] = (await product.http.get(f"/v1/runs/{run['id']}/effects")).json()
    assert (effect["state"], effect["settled_by"], effect["attempt"]) == ("settled", "probe", 1)
    result = answer.json()
    assert (result["status"], result["func_return"]) == ("success", f"{effect['idempotency_key']} was seen")
    assert log.read_text().split() == ["started"]


@asynccontextmanager
async def tool_with_probe(product: Product, way: str) -> AsyncGenerator[str]:
    """The id of a tool `send` whose probe is no function in Python."""
    if way == "typescript":
        need_node()
        yield await product.tool(IN_TYPESCRIPT, source_type="typescript")
        return
    schema = {"type": "object", "properties": {"word": {"type": "string"}, "folder": {"type": "string"}}}
    probe = RemoteProbe(tool_name="was_sent", parameters=["folder", "idempotency_key"])
    async with sending_server() as server:
        [tool_id] = await taken_over(product, server.target, ["send"], parameters=schema, probe=probe)
        yield tool_id


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("way", ["typescript", "mcp"])
async def test_a_lost_call_of_another_kind_of_tool_had_no_probe(
    product: Product, processes: Processes, tmp_path: Path, way: str, place: str
) -> None:
    reached, stop = tmp_path / "reached", tmp_path / f"stop {place}"
    stop.touch()
    settings = {**PLAIN_TOOLS, "reachable_networks": "127.0.0.0/8"}
    answers = list[httpx.Response]()
    async with tool_with_probe(product, way) as tool_id:
        agent = await product.agent(tools=[tool_id])
        args = {"word": "hello", "folder": str(tmp_path)}

        async def ask() -> None:
            path = f"/v1/agents/{agent.id}/tools/send/run"
            answers.append(await product.http.post(path, json={"args": args}, timeout=PATIENCE_S))

        async with background(ask(), name="a call"):
            worker = await processes.worker(**settings)
            await wait_until(
                lambda: reached.exists() and place in reached.read_text().split(),
                description="the tool to be there",
                timeout=HANGS_S,
            )
            await worker.kill()
            stop.unlink()
            await end_leases(product.context.redis)
            await processes.worker(**settings)
            [answer] = await wait_until(lambda: answers, description="the answer", timeout=PATIENCE_S)

    [run] = (await product.http.get("/v1/runs/", params={"agent_id": agent.id})).json()
    [effect] = (await product.http.get(f"/v1/runs/{run['id']}/effects")).json()
    assert (tmp_path / f"sent {effect['idempotency_key']}").read_text() == "hello\n"
    assert effect["started_at"] < run["completed_at"]
    told = (answer.json()["func_return"], effect["state"], effect["attempt"], reached.read_text().split())
    if place == "after":
        found = {"found": ["hello"]} if way == "typescript" else '{"found":["hello"]}'
        assert told == (found, "settled", 1, ["before", "after", "asked"])
    else:
        assert told == ("sent hello", "done", 2, ["before", "asked", "before", "after"])


@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_tool_that_loses_its_worker_is_started_again_only_if_it_may_be(
    product: Product, processes: Processes, tmp_path: Path, *, idempotent: bool
) -> None:
    log = tmp_path / "starts"
    tool_id = await product.tool(KILLS, tags=["idempotent"] if idempotent else [])
    agent = await product.agent(tools=[tool_id])
    path, args, answers = f"/v1/agents/{agent.id}/tools/kills/run", {"log": str(log)}, list[httpx.Response]()

    async def ask() -> None:
        answers.append(await product.http.post(path, json={"args": args}, timeout=PATIENCE_S))

    async with background(ask(), name="a call"):
        worker = await processes.worker(**PLAIN_TOOLS)
        assert await worker.ended() == -9
        await end_leases(product.context.redis)
        await processes.worker(**PLAIN_TOOLS)
        [answer] = await wait_until(lambda: answers, description="the answer", timeout=PATIENCE_S)

    starts, result = log.read_text().split(), answer.json()
    if idempotent:
        assert (len(starts), result["status"], result["func_return"]) == (2, "success", "survived")
    else:
        assert (len(starts), result["status"], "outcome unknown" in result["stderr"][-1]) == (1, "error", True)
