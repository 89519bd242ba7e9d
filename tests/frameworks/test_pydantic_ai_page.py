"""docs/agents-pydantic-ai.md, run as its reader would: the agent in `holdfast dev`, and Letta's client beside it."""

from pathlib import Path

from tests.kit.frameworks.pages import serving_page
from tests.kit.frameworks.world import Hosted
from tests.kit.model_server import Call, Turn
from tests.kit.project.documents import ROOT, blocks

FRAMEWORK = "pydantic_ai"


async def test_the_program_does_what_it_says(hosted: Hosted, tmp_path: Path) -> None:
    agent, client = blocks(ROOT / "docs/agents-pydantic-ai.md", "python")
    models = hosted.models
    models.forget()
    models.play(
        Turn(text="I look.", calls=[Call("order", {"number": 7})]),
        Turn(text="Shall I?", calls=[Call("refund", {"number": 7, "euros": 20})]),
        Turn(text="The money is on its way."),
        Turn(calls=[Call("audit")]),
        Turn(text="I do not know how the audit ended."),
        Turn(text="Well,", silent_after=0),
    )
    async with serving_page("desk", agent, hosted.python, models, tmp_path) as server:
        printed = (
            "print(answer.messages[-1].content)",
            "print(said.content)",
        )
        assert all(one in client for one in printed)
        client = client.replace(printed[0], 'assert answer.messages[-1].content == "The money is on its way."')
        client = client.replace(printed[1], 'assert said.content == "I do not know how the audit ended."')
        await server.client(client)
    refunded, unknown = (models.requests[number].body["input"][-1]["output"] for number in (2, 4))
    assert refunded == "refunded 20.00 euros of order 7"
    assert "unknown" in unknown
