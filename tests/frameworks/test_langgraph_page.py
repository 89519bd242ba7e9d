"""docs/agents-langgraph.md, run as its reader would: the agent in `holdfast dev`, and Letta's client beside it."""

import asyncio
from pathlib import Path

from tests.kit.clients.installations import python_of
from tests.kit.frameworks.pages import serving_page
from tests.kit.frameworks.table import FRAMEWORKS
from tests.kit.model_server import Call, ModelServer, Turn
from tests.kit.project.documents import ROOT, blocks


async def test_the_program_does_what_it_says(tmp_path: Path) -> None:
    agent, client = blocks(ROOT / "docs/agents-langgraph.md", "python")
    python = await asyncio.to_thread(python_of, FRAMEWORKS["langgraph"].requirements("newest"))
    async with ModelServer() as models, serving_page("desk", agent, python, models, tmp_path) as server:
        models.play(
            Turn(text="I look.", calls=[Call("order", {"number": 7})]),
            Turn(text="Shall I?", calls=[Call("refund", {"number": 7, "euros": 20})]),
            Turn(text="The money is on its way."),
            Turn(calls=[Call("audit")]),
            Turn(text="I do not know how the audit ended."),
            Turn(text="Well,", silent_after=0),
        )
        await server.client(client)
        refunded, unknown = (models.requests[number].body["input"][-1]["output"] for number in (2, 4))
        assert refunded == "refunded 20.00 euros of order 7"
        assert "unknown" in unknown
