"""Agents that have not answered in time, and are at work while their callers go on and wait for others."""

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from shared.sql.run_tables import runs
from tests.kit.product import Product
from tests.kit.wait_until import wait_until
from tests.story.test_run_trees import begin, children_of, make, results, saying, script


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"child_wait": 600.0, "builtin_models": True, "sweep_s": 0.3, "lease_s": 2.0}


async def end_time_of_wait(product: Product, run_id: str, child_id: str) -> None:
    """The caller's time is over, as if the child had begun an hour ago."""
    created, until = runs.c.created_at, runs.c.waits_until
    hour = timedelta(hours=1)
    async with product.context.database.write() as connection:
        for which, column in ((child_id, created), (run_id, until)):
            [at] = (await connection.execute(sa.select(column).where(runs.c.id == which))).scalars()
            await connection.execute(sa.update(runs).where(runs.c.id == which).values({column: at - hour}))


async def test_an_agent_that_was_late_kept_its_caller_waiting_for_the_next_one(product: Product) -> None:
    top = await make(product, "top", "run_agent")
    for name in ("late", "quick"):
        await make(product, name)
    late, quick = script(saying("", first_delay_ms=300_000)), script(saying("Here.", first_delay_ms=500))
    tasks = [
        {"name": "run_agent", "arguments": {"agent": agent, "task": task}}
        for agent, task in (("late", late), ("quick", quick))
    ]
    run_id = await begin(product, top, script(*({"calls": [task]} for task in tasks), saying("Done.")))

    async def waits_for_late() -> dict[str, Any] | None:
        run = await product.run(run_id)
        is_waiting = run["metadata"].get("waiting", {}).get("for") == "runs"
        return (await children_of(product, run_id))[0] if is_waiting else None

    child = await wait_until(waits_for_late, description="the wait for the late one")
    await end_time_of_wait(product, run_id, child["id"])
    run = await product.ended(run_id)
    assert run["status"] == "completed"
    first, second = await results(product, top)
    assert "has not answered within 600 s" in first["tool_return"]
    assert (second["status"], second["tool_return"]) == ("success", "Here.")
    assert (await product.run(child["id"]))["status"] == "running"
    await product.http.post(f"/v1/runs/{child['id']}/cancel", json={})
