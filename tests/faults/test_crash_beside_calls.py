"""A worker that dies while it makes several calls of one answer: of those that have returned, the results are known."""

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from shared.crash_points import CrashPoint
from shared.sql.engine import Database
from shared.sql.run_tables import tool_intents
from tests.faults.test_crash_points import DIES, LONG_S, LOSES, UNSWEPT, each_write_once
from tests.kit.model_server import Call, ModelServer, Turn
from tests.kit.product import Product
from tests.kit.product.careful_client import ask_until_answered
from tests.kit.product.frame_reader import read_whole
from tests.kit.product.processes import Processes
from tests.kit.services.redis_losses import end_leases
from tests.kit.tools import PLAIN_TOOLS
from tests.kit.wait_until import wait_until

NOTES = '''
def note(word: str, folder: str) -> str:
    """
    Notes a word, and returns when it may.

    Args:
        word (str): The word.
        folder (str): Where it is written, and where the words lie that have to wait.
    """
    import os, time
    with open(os.path.join(folder, "words"), "a") as words:
        words.write(word + "\\n")
    while os.path.exists(os.path.join(folder, "wait-" + word)):
        time.sleep(0.02)
    return "noted " + word
'''
WORDS = ("one", "two", "three", "four", "five")


async def begin(product: Product, models: ModelServer, folder: Path, *, waiting: set[str], together: bool) -> str:
    """A run whose model calls the tool once for each word. Those of `waiting` do not return. Gives the agent's id."""
    for word in waiting:
        (folder / f"wait-{word}").touch()
    models.play(Turn(calls=[Call("note", {"word": word, "folder": str(folder)}) for word in WORDS]))
    models.answer_with(lambda _: Turn(text="All is noted."))
    tool = await product.tool(NOTES, enable_parallel_execution=together)
    agent = await product.agent(tools=[tool])
    run = await ask_until_answered(product.http, f"/v1/agents/{agent.id}/messages/async", {"input": "Note it."})
    assert run["id"]
    return agent.id


async def stored(database: Database, results: int) -> None:
    async def look() -> bool:
        async with database.read() as connection:
            query = sa.select(sa.func.count()).where(tool_intents.c.result.is_not(None))
            return (await connection.execute(query)).scalar_one() >= results

    await wait_until(look, description=f"{results} results to be stored", timeout=LONG_S)


async def returned(product: Product, agent_id: str) -> list[dict[str, Any]]:
    """What the calls came to, when the run has ended; the stream and the history say the same."""
    [run] = (await product.http.get("/v1/runs/", params={"agent_id": agent_id})).json()
    assert (await product.ended(run["id"]))["status"] == "completed"
    [message] = [one for one in await product.history(agent_id) if one["message_type"] == "tool_return_message"]
    whole = await read_whole(product.http, run["id"])
    whole.assert_complete()
    [shown] = whole.of_type("tool_return_message")
    assert shown["tool_returns"] == message["tool_returns"]
    return message["tool_returns"]


def came_to(results: list[dict[str, Any]]) -> dict[str, str | None]:
    """Each word with what its call returned; None: nobody knows."""
    known = {word: one["tool_return"] for word, one in zip(WORDS, results, strict=True)}
    unknown = {word for word, one in zip(WORDS, results, strict=True) if one.get("outcome") == "unknown"}
    assert all(("outcome unknown" in text) is (word in unknown) for word, text in known.items())
    return {word: None if word in unknown else text for word, text in known.items()}


async def test_three_of_five_calls_had_returned_and_all_were_unknown(
    product: Product, processes: Processes, models: ModelServer, database: Database, tmp_path: Path
) -> None:
    waiting = {"two", "five"}
    first = await processes.worker(**PLAIN_TOOLS)
    agent_id = await begin(product, models, tmp_path, waiting=waiting, together=True)
    await stored(database, 3)
    words = tmp_path / "words"
    await wait_until(lambda: len(words.read_text().split()) == len(WORDS), description="all tools to start")
    await first.kill()
    for word in waiting:
        (tmp_path / f"wait-{word}").unlink()
    await end_leases(product.context.redis)
    await processes.worker(**PLAIN_TOOLS)
    results = came_to(await returned(product, agent_id))
    assert results == {word: None if word in waiting else f"noted {word}" for word in WORDS}
    assert sorted((tmp_path / "words").read_text().split()) == sorted(WORDS), "no tool starts twice"


async def test_the_calls_before_the_one_that_runs_were_unknown(
    product: Product, processes: Processes, models: ModelServer, database: Database, tmp_path: Path
) -> None:
    first = await processes.worker(**PLAIN_TOOLS)
    agent_id = await begin(product, models, tmp_path, waiting={"three"}, together=False)
    await stored(database, 2)
    await wait_until(lambda: "three" in (tmp_path / "words").read_text(), description="the third tool to start")
    await first.kill()
    (tmp_path / "wait-three").unlink()
    await end_leases(product.context.redis)
    await processes.worker(**PLAIN_TOOLS)
    results = came_to(await returned(product, agent_id))
    assert results == {word: None if word == "three" else f"noted {word}" for word in WORDS}
    assert len((tmp_path / "words").read_text().split()) == len(WORDS)


@pytest.mark.parametrize("side", each_write_once((*DIES, *LOSES)))
async def test_a_worker_that_dies_over_a_result_or_loses_the_answer(
    product: Product, processes: Processes, models: ModelServer, tmp_path: Path, side: str
) -> None:
    """All but the first call wait, so that its result is stored by itself."""
    waiting: set[str] = set(WORDS[1:])
    dying = await processes.worker(crash_at=f"{CrashPoint.RESULT}:{side}", **UNSWEPT)
    agent_id = await begin(product, models, tmp_path, waiting=waiting, together=True)
    if side in DIES:
        assert await dying.ended(within_s=LONG_S) == -9
    else:
        await wait_until(lambda: "point=result" in dying.log.read_text(), description="an answer to be lost")
    for word in waiting:
        (tmp_path / f"wait-{word}").unlink()
    if side in DIES:
        await end_leases(product.context.redis)
        await processes.worker(**PLAIN_TOOLS)
    results = came_to(await returned(product, agent_id))
    known = {"before": set[str](), "after": {"one"}}.get(side, set(WORDS))
    assert results == {word: f"noted {word}" if word in known else None for word in WORDS}
    started = (tmp_path / "words").read_text().split()
    assert len(started) == len(set(started)), "a tool was started twice"
