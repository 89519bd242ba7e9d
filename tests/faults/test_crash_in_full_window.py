"""A crash before and after the write that makes room in the middle of a run."""

import pytest

from shared.crash_points import CrashPoint
from tests.kit.model_server import ModelServer, Turn
from tests.kit.model_server.window import CountingModel
from tests.kit.product import Product
from tests.kit.product.careful_client import ask_until_answered
from tests.kit.product.frame_reader import read_whole
from tests.kit.product.processes import Processes
from tests.kit.provider_rules.request import broken_rules
from tests.kit.services.redis_losses import end_leases


@pytest.mark.parametrize("side", ["before", "after", "lost", "lost:1:2"])
async def test_a_worker_that_dies_over_a_compaction_or_loses_its_answer(
    product: Product, processes: Processes, models: ModelServer, side: str
) -> None:
    """One summary takes the place of what left, whoever died over it, and is shown once."""
    models.answer_with(CountingModel(lambda _: Turn(text="It was. " * 200)))
    agent = await product.agent(context_window_limit=2_000)
    path = f"/v1/agents/{agent.id}/messages/async"
    first = await processes.worker(sweep_s=3600.0)
    for number in range(3):
        run = await ask_until_answered(product.http, path, {"input": f"long ago {number} " + "and so on " * 90})
        await product.ended(run["id"])
    assert await first.terminate() == 0
    run = await ask_until_answered(
        product.http, path, {"input": "and so on " * 90, "include_compaction_messages": True}
    )
    worker = await processes.worker(crash_at=f"{CrashPoint.COMPACT}:{side}", sweep_s=3600.0)
    if side in ("before", "after"):
        assert await worker.ended() == -9
        await end_leases(product.context.redis)
        await processes.worker()
    ended = await product.ended(run["id"])
    assert (ended["status"], ended["stop_reason"]) == ("completed", "end_turn")
    listed = await product.history(agent.id)
    [summary] = [message for message in listed if message["message_type"] == "summary_message"]
    assert sum("long ago" in str(message.get("content")) for message in listed) == 3
    told = str([one.body for one in models.requests][-1])
    assert (told.count("Summary: they have talked."), told.count("long ago 0")) == (1, 0)
    assert [rule for request in models.requests for rule in broken_rules(request)] == []
    whole = await read_whole(product.http, run["id"])
    whole.assert_complete()
    void = [one for note in whole.notes("step_restarted") for one in note["void_message_ids"]]
    valid = [frame["id"] for frame in whole.of_type("summary_message") if frame["id"] not in void]
    assert valid == [summary["id"]]
