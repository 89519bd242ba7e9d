"""Frames tell when their events were written, to the millisecond, for those who ask."""

import json
from datetime import datetime
from typing import Any

import pytest

from tests.kit.product import Product

pytestmark = pytest.mark.shared_product


async def test_frames_have_the_times_of_their_events_when_they_are_asked_for(product: Product) -> None:
    agent = await product.agent(model="builtin/echo")
    run = await product.client.agents.messages.create_async(agent_id=agent.id, input="Hello")
    await product.ended(run.id)

    async def frames(**body: bool) -> list[dict[str, Any]]:
        answer = await product.http.post(f"/v1/runs/{run.id}/stream", json=body)
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
        return [json.loads(line) for line in lines]

    plain, timed = await frames(), await frames(include_event_times=True)
    times = [frame.pop("at_ms") for frame in timed]
    assert timed == plain
    assert times == sorted(times)
    created = datetime.fromisoformat((await product.run(run.id))["created_at"])
    assert abs(times[0] - created.timestamp() * 1000) <= 1
