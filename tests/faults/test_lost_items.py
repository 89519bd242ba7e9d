"""Workers that die with items open, in a log that has the events of items: no item is opened again that was closed, and
none stays open that a reader cannot close."""

from pathlib import Path

import pytest

from shared.domain.events import Answered, CallDecided, StepRestarted, ToolEnded, ToolsReturned, ToolStarted
from tests.faults.test_crash_in_tool_run import KILLS
from tests.faults.test_worker_lost import words_shown
from tests.kit.model_server import ModelServer
from tests.kit.product import Product
from tests.kit.product.frame_reader import reading
from tests.kit.product.processes import Processes
from tests.kit.runs.folded_items import FoldedItems
from tests.kit.runs.item_runs import log_of, submit_run
from tests.kit.services.redis_losses import end_leases
from tests.kit.tools import PLAIN_TOOLS

pytestmark = pytest.mark.timeout(300)

CONTINUES = "anthropic/claude-3-5-haiku-20241022"


@pytest.mark.parametrize(("model", "goes_on"), [("openai/gpt-4o-mini", False), (CONTINUES, True)])
async def test_a_worker_that_died_in_an_answer(
    product: Product, processes: Processes, models: ModelServer, model: str, *, goes_on: bool
) -> None:
    models.say("one two three four", silent_after=3)
    models.say(" four" if goes_on else "All of it.")
    first = await processes.worker()
    agent = await product.agent(model=model)
    run_id = await submit_run(product, agent.id, item_events=True, stream_tokens=True)
    async with reading(product.http, run_id) as reader:
        await words_shown(reader, 3)
        await first.kill()
    await end_leases(product.context.redis)
    await processes.worker()
    log = await log_of(product, run_id)

    folded = FoldedItems(log)
    assert folded.broken == []
    assert len([event for event in log if isinstance(event, Answered)]) == 1
    assert any(isinstance(event, StepRestarted) for event in log) is not goes_on
    whole = [text for key, text in folded.closed.items() if key not in folded.void]
    assert whole == ["one two three four" if goes_on else "All of it."]


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_worker_that_died_in_a_tool(
    product: Product, processes: Processes, models: ModelServer, tmp_path: Path, *, idempotent: bool
) -> None:
    """The tool ends when it was started again, or with a result that says that nobody knows what it came to."""
    models.call("kills", log=str(tmp_path / "starts"))
    models.say("Done.")
    agent = await product.agent(tools=[await product.tool(KILLS, tags=["idempotent"] if idempotent else [])])
    run_id = await submit_run(product, agent.id, item_events=True, stream_tokens=True)
    worker = await processes.worker(**PLAIN_TOOLS)
    assert await worker.ended() == -9
    await end_leases(product.context.redis)
    await processes.worker(**PLAIN_TOOLS)
    log = await log_of(product, run_id)

    folded = FoldedItems(log)
    assert (folded.broken, folded.unanswered) == ([], set())
    happened = [type(event) for event in log if isinstance(event, ToolStarted | ToolEnded | ToolsReturned)]
    if idempotent:
        assert happened == [ToolStarted, ToolStarted, ToolEnded, ToolsReturned]
    else:
        assert happened == [ToolStarted, ToolsReturned]


async def test_a_decision_that_was_shown_is_not_shown_again(
    product: Product, processes: Processes, models: ModelServer, tmp_path: Path
) -> None:
    """The worker of the run that continues dies in the tool that a person has approved."""
    models.call("kills", log=str(tmp_path / "starts"))
    models.say("Done.")
    tool = await product.tool(KILLS, tags=["idempotent"], default_requires_approval=True)
    agent = await product.agent(tools=[tool])
    run_id = await submit_run(product, agent.id, item_events=True)
    worker = await processes.worker(**PLAIN_TOOLS)
    assert FoldedItems(await log_of(product, run_id)).broken == []
    [asked] = (await product.http.get("/v1/approvals", params={"agent_id": agent.id})).json()
    decided = await product.http.post(f"/v1/approvals/{asked['id']}", json={"decision": "approve"})
    assert await worker.ended() == -9
    await end_leases(product.context.redis)
    await processes.worker(**PLAIN_TOOLS)
    log = await log_of(product, decided.json()["run"]["id"])

    assert FoldedItems(log).broken == []
    happened = [
        type(event) for event in log if isinstance(event, CallDecided | StepRestarted | ToolStarted | ToolsReturned)
    ]
    assert happened == [CallDecided, ToolStarted, StepRestarted, ToolStarted, ToolsReturned]
