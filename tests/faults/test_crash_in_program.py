"""A worker that dies while it runs a program of the model's (`run_code`, `run_code_with_tools`): it is started once."""

from pathlib import Path

import httpx
import pytest

from shared.concurrency import background
from shared.sql.engine import Database
from tests.faults.test_crash_beside_calls import returned, stored
from tests.faults.test_crash_in_tool_run import PATIENCE_S
from tests.kit.model_server import Call, ModelServer, Turn
from tests.kit.product import Product
from tests.kit.product.careful_client import ask_until_answered
from tests.kit.product.processes import HoldfastProcess, Processes
from tests.kit.services.redis_losses import end_leases
from tests.kit.tools import PLAIN_TOOLS
from tests.kit.wait_until import wait_until

PROGRAM = """
import os, time
with open(os.path.join({folder!r}, "words"), "a") as words:
    words.write({word!r} + "\\n")
while os.path.exists(os.path.join({folder!r}, "wait-" + {word!r})):
    time.sleep(0.02)
"noted " + {word!r}
"""
ARGUMENTS: dict[str, dict[str, str]] = {"run_code": {"language": "python"}, "run_code_with_tools": {}}
WORDS = ("one", "two", "three")

both = pytest.mark.parametrize("tool", ARGUMENTS)


async def agent_with(product: Product, tool: str) -> str:
    made = await product.client.agents.create(model="openai/gpt-4o-mini", tools=[tool], include_base_tools=False)
    return made.id


def arguments(tool: str, word: str, folder: Path) -> dict[str, str]:
    return ARGUMENTS[tool] | {"code": PROGRAM.format(word=word, folder=str(folder))}


async def lose_worker(product: Product, processes: Processes, worker: HoldfastProcess, folder: Path, word: str) -> None:
    """Kills the worker while it runs the program of this word, and starts another one."""
    words = folder / "words"
    await wait_until(lambda: words.exists() and word in words.read_text(), description=f"program {word} to start")
    await worker.kill()
    (folder / f"wait-{word}").unlink()
    await end_leases(product.context.redis)
    await processes.worker(**PLAIN_TOOLS)


@both
async def test_a_program_that_lost_its_worker_was_started_again(
    product: Product, processes: Processes, tmp_path: Path, tool: str
) -> None:
    """A client asks for the call by itself."""
    agent_id, answers = await agent_with(product, tool), list[httpx.Response]()
    (tmp_path / "wait-one").touch()

    async def ask() -> None:
        path, args = f"/v1/agents/{agent_id}/tools/{tool}/run", arguments(tool, "one", tmp_path)
        answers.append(await product.http.post(path, json={"args": args}, timeout=PATIENCE_S))

    async with background(ask(), name="a call"):
        worker = await processes.worker(**PLAIN_TOOLS)
        await lose_worker(product, processes, worker, tmp_path, "one")
        [answer] = await wait_until(lambda: answers, description="the answer", timeout=PATIENCE_S)
    assert (tmp_path / "words").read_text().split() == ["one"]
    assert (answer.json()["status"], "outcome unknown" in answer.json()["stderr"][-1]) == ("error", True)


@both
async def test_programs_whose_results_were_stored_ran_again_beside_the_one_that_lost_its_worker(
    product: Product, processes: Processes, models: ModelServer, database: Database, tmp_path: Path, tool: str
) -> None:
    """The model asks for several in one answer."""
    (tmp_path / "wait-three").touch()
    models.play(Turn(calls=[Call(tool, arguments(tool, word, tmp_path)) for word in WORDS]))
    models.answer_with(lambda _: Turn(text="All is noted."))
    worker = await processes.worker(**PLAIN_TOOLS)
    agent_id = await agent_with(product, tool)
    await ask_until_answered(product.http, f"/v1/agents/{agent_id}/messages/async", {"input": "Note it."})
    await stored(database, 2)
    await lose_worker(product, processes, worker, tmp_path, "three")
    one, two, three = await returned(product, agent_id)
    assert sorted((tmp_path / "words").read_text().split()) == sorted(WORDS)
    assert ("noted one" in one["tool_return"], "noted two" in two["tool_return"]) == (True, True)
    assert (three.get("outcome"), "outcome unknown" in three["tool_return"]) == ("unknown", True)
