"""A crash before and after the write of a compaction that a client of responses has asked for."""

import pytest

from shared.crash_points import CrashPoint
from tests.kit.model_server import ModelServer, Turn
from tests.kit.product import Product
from tests.kit.product.processes import Processes
from tests.kit.product.responses_client import assert_sound, created, responses_client, resumed, when_over
from tests.kit.services.redis_losses import end_leases


@pytest.mark.parametrize("side", ["before", "after", "lost"])
async def test_a_worker_that_dies_over_the_summary_leaves_one(
    product: Product, processes: Processes, models: ModelServer, side: str
) -> None:
    models.play(*[Turn(text="They have talked.")] * (2 if side == "before" else 1))
    async with responses_client(product.base_url, product.key) as openai:
        asked = [{"role": "user", "content": "I am Ada."}, {"type": "compaction_trigger"}]
        begun = await created(openai, input=asked, background=True)
        worker = await processes.worker(crash_at=f"{CrashPoint.COMPACT}:{side}", sweep_s=3600.0)
        if side != "lost":
            assert await worker.ended() == -9
            await end_leases(product.context.redis)
            await processes.worker()
        response = await when_over(openai, begun.id)
        [item] = response.output
        assert (response.status, item.type) == ("completed", "compaction")
        events = await resumed(openai, begun.id)
        assert_sound(events)
        assert len(models.requests) == (2 if side == "before" else 1)
        models.play(Turn(text="You are Ada."))
        then = await created(openai, input="Who am I?", previous_response_id=begun.id)
        assert then.output_text == "You are Ada."
        assert str(models.requests[-1].body).count("They have talked.") == 1
