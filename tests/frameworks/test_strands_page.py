"""docs/agents-strands.md, run as its reader would: the agent in `holdfast dev`, and Letta's client beside it."""

import asyncio
import os
import re
import signal
from pathlib import Path

from tests.kit.clients.installations import python_of
from tests.kit.frameworks.pages import serving_page
from tests.kit.frameworks.table import FRAMEWORKS
from tests.kit.model_server import Call, ModelServer, Turn
from tests.kit.project.documents import ROOT, blocks
from tests.kit.wait_until import wait_until

BEGINNING = """
from letta_client import Letta

client = Letta(base_url="http://127.0.0.1:8283", api_key="none")
agent = client.agents.create(name="my second support", model="code/support")
"""
"""What the page's last program has from the one before."""


async def test_the_program_does_what_it_says(tmp_path: Path) -> None:
    agent, client, again = blocks(ROOT / "docs/agents-strands.md", "python")
    python = await asyncio.to_thread(python_of, FRAMEWORKS["strands"].requirements("newest"))
    async with ModelServer() as models, serving_page("support", agent, python, models, tmp_path) as server:
        models.play(
            Turn(text="I read.", calls=[Call("fetch", {"url": "https://example.org"})]),
            Turn(text="Shall I?", calls=[Call("publish", {"text": "It is a page."})]),
            Turn(text="It is published."),
        )
        models.answer_with(lambda _: Turn(text="Well,", silent_after=0))  # until it is cancelled
        await server.client(client)
        assert models.requests[2].body["messages"][-1]["content"] == "published: It is a page."
        models.forget()
        models.play(
            Turn(calls=[Call("fetch", {"url": "https://example.com"})]),
            Turn(text="It is a page.", silent_after=1),
            Turn(text="It is a page."),
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.client(f"{BEGINNING}{again}"))
            await wait_until(lambda: len(models.requests) == 2, description="the second answer to begin")
            await wait_until(lambda: models.requests[1].pieces_sent, description="its first piece")
            [process] = re.findall(r"process (\d+) reads https://example.com", server.log)
            os.kill(int(process), signal.SIGKILL)
        assert len(models.requests) == 3, "the answer that was cut off, and no other, is asked for again"
