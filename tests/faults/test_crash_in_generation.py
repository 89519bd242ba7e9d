"""A worker that dies over a question to a model: another one asks, and the client gets one answer."""

import httpx
import pytest

from shared.concurrency import background
from shared.crash_points import CrashPoint
from tests.kit.model_server import ModelServer
from tests.kit.product import Product
from tests.kit.product.frame_reader import read_whole
from tests.kit.product.processes import Processes
from tests.kit.services.redis_losses import end_leases
from tests.kit.wait_until import HANGS_S, wait_until

NEVER_S = 3600.0
PATIENCE_S = 2 * HANGS_S
"""Seconds that a client waits for the answer, which two workers have to start for."""


async def test_a_question_is_asked_again_when_its_worker_dies_in_the_middle_of_the_answer(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    agent, answers = await product.agent(), list[httpx.Response]()
    models.say("one two three", silent_after=2)
    models.say("All of it.")

    async def ask() -> None:
        path = f"/v1/agents/{agent.id}/generate"
        answers.append(await product.http.post(path, json={"prompt": "Count."}, timeout=PATIENCE_S))

    async with background(ask(), name="a question"):
        worker = await processes.worker(sweep_s=NEVER_S)
        await wait_until(lambda: len(models.requests) == 1, description="the model to be asked")
        await worker.kill()
        await end_leases(product.context.redis)
        await processes.worker()
        [answer] = await wait_until(lambda: answers, description="the answer", timeout=PATIENCE_S)

    assert (answer.status_code, answer.json()["content"]) == (200, "All of it.")
    usage = answer.json()["usage"]
    assert (usage["estimated"], usage["step_count"]) == (True, 1), "the call that was lost was paid for, too"
    [run_id] = usage["run_ids"]
    whole = await read_whole(product.http, run_id)
    whole.assert_complete()
    assert [frame["content"] for frame in whole.of_type("assistant_message")] == ["All of it."]
    assert (await product.client.agents.retrieve(agent.id)).last_stop_reason is None


@pytest.mark.parametrize("side", ["before", "after", "lost", "lost:1:2"])
async def test_a_question_gets_one_answer_though_its_worker_dies_over_the_end(
    product: Product, processes: Processes, models: ModelServer, side: str
) -> None:
    agent, answers = await product.agent(), list[httpx.Response]()
    models.say("First.")
    models.say("Second.")

    async def ask() -> None:
        path = f"/v1/agents/{agent.id}/generate"
        answers.append(await product.http.post(path, json={"prompt": "Say."}, timeout=PATIENCE_S))

    async with background(ask(), name="a question"):
        worker = await processes.worker(crash_at=f"{CrashPoint.SETTLE}:{side}", sweep_s=NEVER_S)
        if side in ("before", "after"):
            assert await worker.ended() == -9
            await end_leases(product.context.redis)
            await processes.worker()
        [answer] = await wait_until(lambda: answers, description="the answer", timeout=PATIENCE_S)

    said = "Second." if side == "before" else "First."
    assert (answer.status_code, answer.json()["content"]) == (200, said)
    assert len(models.requests) == (2 if side == "before" else 1)
    whole = await read_whole(product.http, answer.json()["usage"]["run_ids"][0])
    whole.assert_complete()
    void = [one for note in whole.notes("step_restarted") for one in note["void_message_ids"]]
    shown = [frame["content"] for frame in whole.of_type("assistant_message") if frame["id"] not in void]
    assert shown == [said]
