"""docs/agents-openai.md, run as its reader would: the agent in `holdfast dev`, and Letta's client beside it."""

import asyncio
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

from tests.kit.clients.installations import python_of
from tests.kit.frameworks.pages import PageServer, serving_page
from tests.kit.frameworks.table import FRAMEWORKS
from tests.kit.model_server import Call, ModelServer, Turn
from tests.kit.model_server.server import ReceivedRequest
from tests.kit.project.documents import ROOT, blocks
from tests.kit.wait_until import wait_until

BEGINNING = """
from letta_client import Letta

client = Letta(base_url="http://127.0.0.1:8283", api_key="none")
agent = client.agents.create(name="my second desk", model="code/desk")
asks = {"streaming": True, "stream_tokens": True, "background": True}
"""
"""What the page's last program has from the one before."""


def _answer(request: ReceivedRequest) -> Turn:
    """The answer of a model that has read the page."""
    asked = str(request.body["input"])
    if "order 8?" in asked:
        if "order 8: two" in asked:
            return Turn(text="Two wooden otters.")
        return Turn(text="I look.", calls=[Call("find_order", {"number": "8"})])
    if "the story" in asked:
        return Turn(text="Once upon a time there was an otter.", silent_after=3)
    if "were paid back" in asked:
        return Turn(text="It is done.")
    if "order 7: two" in asked:
        return Turn(calls=[Call("refund", {"number": "7", "euros": 40})])
    return Turn(text="I look for it.", calls=[Call("find_order", {"number": "7"})])


async def test_the_program_does_what_it_says(tmp_path: Path) -> None:
    agent, client, again = blocks(ROOT / "docs/agents-openai.md", "python")
    python = await asyncio.to_thread(python_of, FRAMEWORKS["openai_agents"].requirements("newest"))
    async with ModelServer() as models, serving_page("desk", agent, python, models, tmp_path) as server:
        models.answer_with(_answer)
        await server.client(client)
        assert models.requests[-1].client_left, "the model's connection is closed by the cancel"
        assert "process" in server.log
        models.requests.clear()
        models.answer_with(_silent_at_first(models))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.client(f"{BEGINNING}{again}"))
            await wait_until(lambda: len(models.requests) == 2, description="the second answer to begin")
            await wait_until(lambda: models.requests[1].pieces_sent, description="its first piece")
            os.kill(_pid(server), signal.SIGKILL)
        assert len(models.requests) == 3, "the answer that was cut off, and no other, is asked for again"


def _silent_at_first(models: ModelServer) -> Callable[[ReceivedRequest], Turn]:
    def answer(request: ReceivedRequest) -> Turn:
        turn = _answer(request)
        return Turn(text=turn.text, silent_after=1) if len(models.requests) == 1 else turn

    return answer


def _pid(server: PageServer) -> int:
    """The process that has looked for the order, as the log names it."""
    return int(re.findall(r"process (\d+) looks for order 8", server.log)[-1])
