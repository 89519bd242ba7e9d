"""A crash before and after every durable write: what was accepted ends once, no tool starts twice, no frame is missing.

A crash ends one process, as `kill -9` would, and another one goes on. A lost answer leaves the process alive: the write
has happened, and its author is told that it may not have. Then the author has to find out by itself: in those tests no
sweeper comes by.

One run's life passes nearly all points: a message is injected, a tool is called, another one waits for a person, the
decision is followed, and the model answers. The others have a short story of their own.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import httpx
import pytest

from shared.concurrency import background
from shared.crash_points import CrashPoint
from tests.kit.free_ports import free_port
from tests.kit.model_server import Call, ModelServer, ReceivedRequest, Turn
from tests.kit.product import Product
from tests.kit.product.careful_client import ask, ask_until_answered, deciding
from tests.kit.product.frame_reader import read_whole, reading
from tests.kit.product.processes import Processes, api_at
from tests.kit.provider_rules.request import broken_rules
from tests.kit.runs.quiet_runs import grow_quiet
from tests.kit.services.redis_losses import end_leases
from tests.kit.tools import PLAIN_TOOLS
from tests.kit.wait_until import wait_until
from worker.run.publisher import SPILL_AT

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

IN_EVERY_LIFE = (
    CrashPoint.DISPATCH,
    CrashPoint.CLAIM,
    CrashPoint.OPEN_LOG,
    CrashPoint.APPEND,
    CrashPoint.DELIVER,
    CrashPoint.CHECKPOINT,
    CrashPoint.INTENT,
    CrashPoint.EDIT_MEMORY,
    CrashPoint.REMEMBER,
    CrashPoint.PARK,
    CrashPoint.SETTLE,
    CrashPoint.FINISH_JOB,
)
"""What a worker writes in the story of a run."""

IN_AN_ANSWER = (CrashPoint.SPILL, CrashPoint.ADOPT, CrashPoint.HAND_OVER)
"""What a worker writes of an answer that is long, cut off by a death, or handed over. That the answer to the first of
these is lost is shown in the tests of the publisher: here the checkpoint would now and then be faster."""

BY_API = (CrashPoint.SUBMIT, CrashPoint.DISPATCH, CrashPoint.DECIDE, CrashPoint.INJECT)
BY_CANCEL = (CrashPoint.CANCEL, CrashPoint.ANNOUNCE_CANCEL)
ELSEWHERE = (
    CrashPoint.DISPATCH_AGAIN,
    CrashPoint.TAKE_OVER,
    CrashPoint.SUBMIT_REFUSED,
    CrashPoint.SETTLE_EFFECT,  # in `test_crash_in_tool_run.py`
    CrashPoint.RESULT,  # in `test_crash_beside_calls.py`
    CrashPoint.LET_WAIT,  # in `test_crash_in_run_trees.py`, as the next
    CrashPoint.WAKE,
    CrashPoint.COMPACT,  # in `test_crash_in_full_window.py`
    CrashPoint.JOURNAL,  # in `test_crash_in_code_agents.py`
    *(CrashPoint.COUNT_TURNS, CrashPoint.TURNS_DELIVERED),  # in `test_crash_between_turns.py`
    CrashPoint.NEW_FENCE,  # after 990,000 events: in the tests of the publisher
)
DIES = ("before", "after")
LOSES = ("lost", "lost:1:2")
"""One answer, and the first two."""

NEVER_S = 3600.0
UNSWEPT = {"sweep_s": NEVER_S, **PLAIN_TOOLS}
LONG_S = 180.0


def each_write_once(sides: Sequence[str]) -> list[Any]:
    """`make test` has each durable write once: it was stored, and its writer killed."""
    return [pytest.param(side, marks=[] if side == "after" else pytest.mark.exhaustive) for side in sides]


def answers(log: Path) -> Callable[[ReceivedRequest], Turn]:
    """A model that calls the first tool, then the second, then answers, by what its history says."""

    def answer(request: ReceivedRequest) -> Turn:
        told = [message for message in request.body["messages"] if message["role"] == "tool"]
        if len(told) == 0:
            remembering = Call("core_memory_append", {"label": "human", "content": "first"})
            storing = Call("archival_memory_insert", {"content": "The first."})
            return Turn(calls=[Call("note", {"word": "first", "log": str(log)}), remembering, storing], text="First.")
        if len(told) == 3:
            return Turn(text="Second.", calls=[Call("note_if_allowed", {"word": "second", "log": str(log)})])
        return Turn(text="All is noted.")

    return answer


async def agent_of(product: Product, models: ModelServer, log: Path) -> str:
    models.answer_with(answers(log))
    tools = [await product.tool(NOTES), await product.tool(ASKED_NOTES, default_requires_approval=True)]
    for name in ("core_memory_append", "archival_memory_insert"):
        tools.append((await product.client.tools.list(name=name)).items[0].id)
    return (await product.agent(tools=tools, memory_blocks=[{"label": "human", "value": "begin"}])).id


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


async def assert_nothing_was_lost(
    product: Product, models: ModelServer, agent_id: str, log: Path, *, behind: str | None = None
) -> None:
    """The story had one end, whoever died in it. `behind`: what was said to the run that was queued behind it."""
    asked, *queued, continuation = await all_ended(product.http, agent_id, runs=2 if behind is None else 3)
    assert [(run["status"], run["stop_reason"]) for run in queued] == [("completed", "end_turn")] * len(queued)
    assert (asked["status"], asked["stop_reason"]) == ("completed", "requires_approval")
    assert (continuation["status"], continuation["stop_reason"]) == ("completed", "end_turn")
    words = words_in(log)
    assert len(words) == len(set(words)), "a tool was started twice"

    history = await product.history(agent_id)
    returns = [message for message in history if message["message_type"] == "tool_return_message"]
    assert len(returns) == 2
    for returned, word in zip(returns, ("first", "second"), strict=True):
        assert returned["tool_return"] == f"noted {word}" or "outcome unknown" in returned["tool_return"]
        assert word in words or returned["status"] == "error"
    memory = await product.client.agents.blocks.retrieve("human", agent_id=agent_id)
    assert memory.value == "begin\nfirst", "an edit is made once"
    passages = await ask(product.http, "GET", f"/v1/agents/{agent_id}/archival-memory")
    assert passages is not None
    assert [passage["text"] for passage in passages.json()] == ["The first."], "a passage is stored once"
    assert returns[0]["tool_returns"][1]["tool_return"] == memory.value
    said = [message["content"] for message in history if message["message_type"] == "user_message"]
    assert sorted(said) == sorted(["And this.", "Note it.", *([] if behind is None else [behind])])
    assert history[-1]["content"] == "All is noted."
    assert [rule for request in models.requests for rule in broken_rules(request)] == []
    shown: list[str] = []
    for run in (asked, *queued, continuation):
        whole = await read_whole(product.http, run["id"])
        whole.assert_complete()
        assert (await read_whole(product.http, run["id"])).raw == whole.raw
        assert len(whole.of_type("stop_reason")) == 1
        shown += [frame["content"] for frame in whole.of_type("user_message")]
    assert shown == ["And this."], "an injected message is shown once"


def test_every_durable_write_is_walked() -> None:
    assert {*IN_EVERY_LIFE, *IN_AN_ANSWER, *BY_API, *BY_CANCEL, *ELSEWHERE} == set(CrashPoint)


async def begin_story(product: Product, agent_id: str) -> None:
    """A run, a message that is injected into it, and a run behind it."""
    path = f"/v1/agents/{agent_id}/messages/async"
    run = await ask_until_answered(product.http, path, {"input": "Note it."})
    await ask_until_answered(
        product.http, f"/v1/runs/{run['id']}/inject", {"messages": [{"role": "user", "content": "And this."}]}
    )
    await ask_until_answered(product.http, path, {"input": "And then?"})


@pytest.mark.parametrize("side", each_write_once(DIES))
@pytest.mark.parametrize("write", [*IN_EVERY_LIFE, CrashPoint.DISPATCH_AGAIN])
async def test_a_worker_that_dies_there(
    product: Product, processes: Processes, models: ModelServer, tmp_path: Path, write: CrashPoint, side: str
) -> None:
    log = tmp_path / "words"
    agent_id = await agent_of(product, models, log)
    await begin_story(product, agent_id)
    if write is CrashPoint.DISPATCH_AGAIN:
        await cast("Any", product.context.redis).flushdb()  # only the sweeper can find the run now
        await grow_quiet(product.context.database)
    async with deciding(product.http):
        dying = await processes.worker(crash_at=f"{write}:{side}", **PLAIN_TOOLS)
        assert await dying.ended(within_s=LONG_S) == -9
        await end_leases(product.context.redis)
        await grow_quiet(product.context.database)
        await processes.worker(**PLAIN_TOOLS)
        await assert_nothing_was_lost(product, models, agent_id, log, behind="And then?")


@pytest.mark.parametrize("lost", each_write_once(LOSES))
@pytest.mark.parametrize("write", IN_EVERY_LIFE)
async def test_a_worker_that_loses_the_answer(
    product: Product, processes: Processes, models: ModelServer, tmp_path: Path, write: CrashPoint, lost: str
) -> None:
    """A settle or a park that was stored was refused when it was repeated: the stream had no end, and the next run of
    the thread waited for the sweeper."""
    log = tmp_path / "words"
    agent_id = await agent_of(product, models, log)
    await begin_story(product, agent_id)
    async with deciding(product.http):
        worker = await processes.worker(crash_at=f"{write}:{lost}", **UNSWEPT)
        await assert_nothing_was_lost(product, models, agent_id, log, behind="And then?")
    assert f"point={write}" in worker.log.read_text()
    assert len(words_in(log)) == 2, "nobody died, so both tools have run"


async def begin_answer(product: Product, write: CrashPoint, models: ModelServer) -> tuple[str, str]:
    """A run whose answer is streamed word by word, and a run behind it; the ids of agent and run."""
    if write is CrashPoint.SPILL:
        models.say("word " * (SPILL_AT + 100), silent_after=SPILL_AT + 50)
    else:
        models.say("one two three four", silent_after=3)
    models.answer_with(lambda _: Turn(text="All of it."))
    agent = await product.agent()
    path = f"/v1/agents/{agent.id}/messages/async"
    run = await ask_until_answered(product.http, path, {"input": "Hello", "stream_tokens": True})
    await ask_until_answered(product.http, path, {"input": "And then?"})
    return agent.id, run["id"]


async def shown(http: httpx.AsyncClient, run_id: str, frames: int) -> None:
    async with reading(http, run_id) as reader:
        await reader.reach(frames)


async def assert_both_ended(product: Product, agent_id: str) -> None:
    ended = await all_ended(product.http, agent_id, runs=2)
    assert [run["status"] for run in ended] == ["completed"] * 2
    said = [frame["content"] for frame in await product.history(agent_id) if frame["message_type"] == "user_message"]
    assert said == ["Hello", "And then?"]
    for run in ended:
        whole = await read_whole(product.http, run["id"])
        whole.assert_complete()
        assert len(whole.of_type("stop_reason")) == 1


@pytest.mark.parametrize("side", each_write_once(DIES))
@pytest.mark.parametrize("write", IN_AN_ANSWER)
async def test_a_worker_that_dies_there_in_an_answer(
    product: Product, processes: Processes, models: ModelServer, write: CrashPoint, side: str
) -> None:
    agent_id, run_id = await begin_answer(product, write, models)
    if write is CrashPoint.ADOPT:
        first = await processes.worker(**PLAIN_TOOLS)
        await shown(product.http, run_id, 4)
        await first.kill()
        await end_leases(product.context.redis)
    dying = await processes.worker(crash_at=f"{write}:{side}", **PLAIN_TOOLS)
    if write is CrashPoint.HAND_OVER:
        await shown(product.http, run_id, 4)
        dying.ask_to_end()
    assert await dying.ended(within_s=LONG_S) == -9
    await end_leases(product.context.redis)
    await processes.worker(**PLAIN_TOOLS)
    await assert_both_ended(product, agent_id)


@pytest.mark.parametrize("lost", each_write_once(LOSES))
@pytest.mark.parametrize("write", [CrashPoint.ADOPT, CrashPoint.HAND_OVER])
async def test_a_worker_that_loses_the_answer_in_an_answer(
    product: Product, processes: Processes, models: ModelServer, write: CrashPoint, lost: str
) -> None:
    agent_id, run_id = await begin_answer(product, write, models)
    if write is CrashPoint.ADOPT:
        first = await processes.worker(sweep_s=NEVER_S)
        await shown(product.http, run_id, 4)
        await first.kill()
        await end_leases(product.context.redis)
    worker = await processes.worker(crash_at=f"{write}:{lost}", **UNSWEPT)
    if write is CrashPoint.HAND_OVER:
        await shown(product.http, run_id, 4)
        await processes.worker(sweep_s=NEVER_S)
        assert await worker.terminate() == 0
    await assert_both_ended(product, agent_id)
    assert f"point={write}" in worker.log.read_text()


@pytest.mark.parametrize("side", each_write_once((*DIES, *LOSES)))
@pytest.mark.parametrize("write", BY_API)
async def test_an_api_that_dies_there_or_loses_the_answer(
    product: Product, processes: Processes, models: ModelServer, tmp_path: Path, write: CrashPoint, side: str
) -> None:
    log = tmp_path / "words"
    agent_id = await agent_of(product, models, log)
    port = free_port()
    dying = await processes.api(port, crash_at=f"{write}:{side}")
    said = {"messages": [{"role": "user", "content": "Note it.", "otid": str(uuid4())}]}
    injected = {"messages": [{"role": "user", "content": "And this.", "otid": str(uuid4())}]}

    async def client(http: httpx.AsyncClient) -> None:
        run = await ask_until_answered(http, f"/v1/agents/{agent_id}/messages/async", said)
        await ask_until_answered(http, f"/v1/runs/{run['id']}/inject", injected)
        await processes.worker(**PLAIN_TOOLS)

    async with api_at(port) as http, deciding(http), background(client(http), name="a client that asks again"):
        if side in DIES:
            assert await dying.ended(within_s=LONG_S) == -9
            await grow_quiet(product.context.database)
            await processes.api(port)
        await assert_nothing_was_lost(product, models, agent_id, log)
    assert side in DIES or f"point={write}" in dying.log.read_text()


@pytest.mark.parametrize("side", each_write_once(DIES))
@pytest.mark.parametrize("write", BY_CANCEL)
async def test_an_api_that_dies_over_a_cancel(
    product: Product, processes: Processes, models: ModelServer, write: CrashPoint, side: str
) -> None:
    models.say("never said", silent_before_headers=3600)
    agent = await product.agent()
    port = free_port()
    dying, _ = await asyncio.gather(processes.api(port, crash_at=f"{write}:{side}"), processes.worker(**PLAIN_TOOLS))
    run = await ask_until_answered(product.http, f"/v1/agents/{agent.id}/messages/async", {"input": "Hello"})
    await wait_until(lambda: models.requests, description="the model to be asked")

    async with api_at(port) as http:
        assert await ask(http, "POST", f"/v1/runs/{run['id']}/cancel", {}) is None
        assert await dying.ended() == -9
        if (write, side) == (CrashPoint.CANCEL, "before"):
            await processes.api(port)  # nothing was recorded: the client has to ask again
            receipt = await ask_until_answered(http, f"/v1/runs/{run['id']}/cancel", {})
            assert receipt["status"] == "cancelled"

    assert (await product.ended(run["id"]))["status"] == "cancelled"
    whole = await read_whole(product.http, run["id"])
    whole.assert_complete()
    assert [frame["stop_reason"] for frame in whole.of_type("stop_reason")] == ["cancelled"]
    await wait_until(lambda: models.requests[0].client_left, description="the model's connection to be closed")


@pytest.mark.parametrize("side", each_write_once((*DIES, *LOSES)))
async def test_an_api_that_dies_over_a_run_whose_worker_is_gone(
    product: Product, processes: Processes, models: ModelServer, side: str
) -> None:
    models.say("one two three four", silent_after=3)
    agent = await product.agent()
    port = free_port()
    dying, worker = await asyncio.gather(
        processes.api(port, crash_at=f"{CrashPoint.TAKE_OVER}:{side}"),
        processes.worker(sweep_s=NEVER_S),
    )
    path = f"/v1/agents/{agent.id}/messages/async"
    run = await ask_until_answered(product.http, path, {"input": "Hello", "stream_tokens": True})
    await shown(product.http, run["id"], 4)
    await worker.kill()
    await end_leases(product.context.redis)
    async with api_at(port) as http:
        answer = await ask(http, "POST", f"/v1/runs/{run['id']}/cancel", {})
        if side in DIES:
            assert answer is None
            assert await dying.ended() == -9
            await processes.worker(**PLAIN_TOOLS)  # its sweeper finds what was asked for
        else:
            assert answer is not None
            assert answer.json()["status"] == "cancelled"
            assert "point=take_over" in dying.log.read_text()
    assert (await product.ended(run["id"]))["status"] == "cancelled"
    whole = await read_whole(product.http, run["id"])
    whole.assert_complete()
    assert [frame["stop_reason"] for frame in whole.of_type("stop_reason")] == ["cancelled"]


@pytest.mark.parametrize("side", each_write_once((*DIES, *LOSES)))
async def test_a_submission_that_was_refused_is_not_executed_later(
    product: Product, processes: Processes, models: ModelServer, tmp_path: Path, side: str
) -> None:
    """It was stored as a run that waits, and then ended in a second transaction: a crash between the two left a run
    that was executed when the thread was free."""
    models.call("note_if_allowed", word="first", log=str(tmp_path / "words"))
    models.answer_with(lambda _: Turn(text="All is noted."))
    agent = await product.agent(tools=[await product.tool(ASKED_NOTES, default_requires_approval=True)])
    path = f"/v1/agents/{agent.id}/messages/async"
    await ask_until_answered(product.http, path, {"input": "Note it."})
    await processes.worker(**PLAIN_TOOLS)

    async def is_asked() -> bool:
        return bool((await product.http.get("/v1/approvals")).json())

    await wait_until(is_asked, description="a tool to wait for a person")
    port = free_port()
    dying = await processes.api(port, crash_at=f"{CrashPoint.SUBMIT_REFUSED}:{side}")
    async with api_at(port) as http:
        answer = await ask(http, "POST", path, {"input": "Let me in."})
    if side in DIES:
        assert answer is None
        assert await dying.ended() == -9
    else:
        assert answer is not None and answer.json()["status"] == "failed"
    async with deciding(product.http):
        ended = await all_ended(product.http, agent.id, runs=2)
    assert sum(run["status"] == "failed" for run in ended) == (side != "before")
    assert "Let me in." not in str([request.body for request in models.requests])
