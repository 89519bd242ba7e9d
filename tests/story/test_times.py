"""Every time in every answer says in which zone it is."""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, cast

import pytest

from tests.kit.product import Product
from tests.kit.product.callback_receiver import CallbackReceiver
from tests.kit.wait_until import wait_until

pytestmark = pytest.mark.shared_product

_LOOKS_LIKE_A_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")
_NAMED_LIKE_A_TIME = re.compile(r".+_at|date|timestamp|last_run_completion", re.IGNORECASE)


def _times(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Every time that stands in the value, with the name of its field."""
    if isinstance(value, dict):
        for key, inner in cast("dict[str, Any]", value).items():
            yield from _times(inner, key)
    elif isinstance(value, list):
        for inner in cast("list[Any]", value):
            yield from _times(inner, name)
    elif isinstance(value, str) and (_NAMED_LIKE_A_TIME.fullmatch(name) or _LOOKS_LIKE_A_TIME.match(value)):
        yield name, value


def _names_of_times(value: object) -> set[str]:
    """The names of the fields that hold times. Fails for a time without a zone."""
    found = set[str]()
    for name, text in _times(value):
        assert datetime.fromisoformat(text).tzinfo is not None, f"{name} has no zone: {text}"
        found.add(name)
    return found


async def test_a_run_began_in_one_zone_and_ended_in_another(product: Product) -> None:
    async with CallbackReceiver() as receiver:
        agent = await product.agent(memory_blocks=[{"label": "notes", "value": "none"}])
        await product.http.post(f"/v1/agents/{agent.id}/archival-memory", json={"text": "A passage."})
        sent = await product.client.agents.messages.create_async(
            agent_id=agent.id, input="Hello", callback_url=receiver.url
        )
        called = await receiver.called()
        assert "completed_at" in _names_of_times(called.body)

        async def taken() -> dict[str, Any] | None:
            run = await product.run(sent.id)
            return run if run["callback_sent_at"] else None

        run = await wait_until(taken, description="the callback to be recorded")
        assert {"created_at", "completed_at", "callback_sent_at"} <= _names_of_times(run)


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/v1/runs", "completed_at"), ("/v1/runs/{run}", "completed_at"), ("/v1/runs/{run}/messages", "date"),
        ("/v1/runs/{run}/steps", ""), ("/v1/runs/{run}/metrics", ""), ("/v1/runs/{run}/trace", "Timestamp"),
        ("/v1/steps", ""), ("/v1/agents", "created_at"), ("/v1/agents/{agent}", "last_run_completion"),
        ("/v1/agents/{agent}/messages", "date"), ("/v1/agents/{agent}/core-memory/blocks", ""),
        ("/v1/agents/{agent}/archival-memory", "created_at"), ("/v1/blocks", ""), ("/v1/tools", ""),
        ("/v1/conversations/?agent_id={agent}", "created_at"), ("/v1/agents/{agent}/context", ""),
        ("/v1/agents/{agent}/export", "created_at"), ("/v1/archives", "created_at"),
    ],
)  # fmt: skip
async def test_every_time_of_a_list_has_its_zone(product: Product, path: str, named: str) -> None:
    agent = await product.agent(memory_blocks=[{"label": "notes", "value": "none"}])
    await product.http.post(f"/v1/agents/{agent.id}/archival-memory", json={"text": "A passage."})
    await product.http.post(f"/v1/conversations/?agent_id={agent.id}", json={})
    run = await product.client.agents.messages.create_async(agent_id=agent.id, input="Hello")
    await product.ended(run.id)
    answer = await product.http.get(path.format(run=run.id, agent=agent.id))
    assert answer.status_code == 200, answer.text
    names = _names_of_times(answer.json())
    assert not named or named in names
