"""A share of the day that agents, keys and projects have: a run that would go over fails, or waits for room."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from arq.connections import ArqRedis

from shared.domain.ids import ProjectId
from shared.domain.limits import NOTHING, day_of
from shared.sql.engine import Database
from shared.sql.runs.budgets import AccountTotal, BudgetStore
from tests.kit.clocks import SettableClock
from tests.kit.model_server import Call, ModelServer, Turn
from tests.kit.product import Product, running_product
from tests.kit.wait_until import wait_until

Limited = Callable[..., AbstractAsyncContextManager[Product]]

LONG = "word " * 800
"""About 1,000 tokens."""


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def limited(database: Database, redis: ArqRedis, models: ModelServer, clock: SettableClock) -> Limited:
    @asynccontextmanager
    async def limited(**settings: Any) -> AsyncGenerator[Product]:
        async with running_product(database, redis, models, settings=settings, clock=clock) as product:
            yield product

    return limited


async def totals(product: Product) -> dict[str, AccountTotal]:
    """Today's accounts of the default project, by what kind they are."""
    day = day_of(product.context.clock.now())
    found = await BudgetStore(product.context.database).totals(day, ProjectId("default"))
    return {total.account.partition(":")[0]: total for total in found}


async def waiting(product: Product, run_id: str) -> dict[str, Any]:
    """The run, when it waits for room."""

    async def look() -> dict[str, Any] | None:
        run = await product.run(run_id)
        return run if "waiting" in run["metadata"] else None

    return await wait_until(look, description="the run to wait for room")


@pytest.mark.parametrize("kind", ["agent", "key", "project"])
async def test_a_run_that_would_go_over_fails_before_it_asks(limited: Limited, kind: str) -> None:
    async with limited(**{f"{kind}_daily_tokens": 10_000}) as product:
        agent = await product.agent(model_settings={"provider_type": "openai", "max_output_tokens": 100})
        product.models.play(Turn(text="So much!", prompt_tokens=9_500))
        await product.client.agents.messages.create(agent.id, input="Hello")
        asked = len(product.models.requests)

        run = await product.client.agents.messages.create_async(agent.id, input=LONG)

        ended = await product.ended(run.id)
        assert (ended["status"], ended["metadata"]["cause"]) == ("failed", "budget")
        assert ended["metadata"]["error"]["error_type"] == "budget_exceeded"
        assert f"the {kind}'s budget of this day" in ended["metadata"]["error"]["detail"]
        assert len(product.models.requests) == asked


@pytest.mark.parametrize("kind", ["agent", "key", "project"])
async def test_a_question_to_a_model_counts_and_is_refused_before_it_is_asked(limited: Limited, kind: str) -> None:
    async with limited(**{f"{kind}_daily_tokens": 10_000}) as product:
        agent = await product.agent(model_settings={"provider_type": "openai", "max_output_tokens": 100})
        product.models.play(Turn(text="So much!", prompt_tokens=9_500))
        path = f"/v1/agents/{agent.id}/generate"
        answer = await product.http.post(path, json={"prompt": "Hello"})
        assert (await totals(product))[kind].used.tokens == answer.json()["usage"]["total_tokens"] > 9_500

        refused = await product.http.post(path, json={"prompt": LONG})

        assert (refused.status_code, refused.json()["code"]) == (500, "budget_exceeded")
        assert f"the {kind}'s budget of this day" in refused.text
        assert len(product.models.requests) == 1
        assert (await totals(product))[kind].reserved == NOTHING


async def test_the_accounts_have_what_the_runs_have(limited: Limited) -> None:
    async with limited(project_daily_tokens=1_000_000, agent_daily_tokens=1_000_000) as product:
        tool = await product.tool('def look() -> str:\n    """Looks."""\n    return "seen"\n')
        product.models.play(Turn(calls=[Call("look", {})]), Turn(text="I have seen it."))
        agent = await product.agent(tools=[tool])
        await product.client.agents.messages.create(agent.id, input="Look!")
        product.models.play(Turn(text="one two three", break_="drop", break_after=2))
        run = await product.client.agents.messages.create_async(agent.id, input="And again?")
        await product.ended(run.id)

        found = await totals(product)
        runs = (await product.http.get("/v1/runs/", params={"agent_id": agent.id})).json()
        used = [(await product.http.get(f"/v1/runs/{run['id']}/usage")).json() for run in runs]
        assert found["agent"].used == found["project"].used
        assert found["agent"].used.tokens == sum(one["prompt_tokens"] + one["completion_tokens"] for one in used) > 0
        assert {total.reserved for total in found.values()} == {NOTHING}


async def test_a_run_waits_for_the_next_day_and_goes_on(limited: Limited, clock: SettableClock) -> None:
    async with limited(agent_daily_tokens=10_000, budget_action="wait") as product:
        agent = await product.agent(model_settings={"provider_type": "openai", "max_output_tokens": 100})
        product.models.play(Turn(text="So much!", prompt_tokens=9_500), Turn(text="It is a new day."))
        await product.client.agents.messages.create(agent.id, input="Hello")
        run = await product.client.agents.messages.create_async(agent.id, input=LONG)

        waits = await waiting(product, run.id)
        assert waits["status"] == "running"
        assert waits["metadata"]["waiting"]["for"] == "budget"

        clock.advance(seconds=24 * 3600)
        assert (await product.ended(run.id))["status"] == "completed"
        history = await product.history(agent.id)
        assert history[-1]["content"] == "It is a new day."


async def test_a_run_that_waits_is_cancelled_at_once(limited: Limited) -> None:
    async with limited(agent_daily_tokens=10_000, budget_action="wait") as product:
        agent = await product.agent(model_settings={"provider_type": "openai", "max_output_tokens": 100})
        product.models.play(Turn(text="So much!", prompt_tokens=9_500))
        await product.client.agents.messages.create(agent.id, input="Hello")
        run = await product.client.agents.messages.create_async(agent.id, input=LONG)
        await waiting(product, run.id)

        answer = await product.http.post(f"/v1/runs/{run.id}/cancel", json={"wait": 1})

        assert answer.json()["status"] == "cancelled", answer.text
        assert (await product.ended(run.id))["status"] == "cancelled"
        assert "waiting" not in (await product.run(run.id))["metadata"]


async def test_a_call_that_no_day_has_room_for_does_not_wait(limited: Limited) -> None:
    async with limited(agent_daily_tokens=2_000, budget_action="wait") as product:
        agent = await product.agent(model_settings={"provider_type": "openai", "max_output_tokens": 1_500})
        run = await product.client.agents.messages.create_async(agent.id, input=LONG)
        ended = await product.ended(run.id)
        assert "tokens of 2,000 that the agent has a day" in ended["metadata"]["error"]["detail"]


async def test_money_is_counted_by_the_operators_prices(limited: Limited, tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    file.write_text(json.dumps({"openai/gpt-4o-mini": {"input": 1_000, "output": 1_000}}))
    async with limited(project_daily_cost=10.0, prices_file=file) as product:
        agent = await product.agent()
        await product.client.agents.messages.create(agent.id, input="Hello")
        spent = (await totals(product))["project"].used
        assert spent.nano_usd == spent.tokens * 1_000_000

        unknown = await product.agent(model="openai/of-which-nobody-knows-the-price")
        run = await product.client.agents.messages.create_async(unknown.id, input="Hello")
        ended = await product.ended(run.id)
        assert ended["metadata"]["error"]["error_type"] == "llm_bad_request"
        assert "HOLDFAST_PRICES_FILE" in ended["metadata"]["error"]["detail"]


async def test_one_run_has_a_budget_of_its_own(limited: Limited) -> None:
    async with limited(run_token_budget=800) as product:
        agent = await product.agent()
        run = await product.client.agents.messages.create_async(agent.id, input=LONG)
        ended = await product.ended(run.id)
        assert ended["metadata"]["error"]["error_type"] == "budget_exceeded"
        assert "HOLDFAST_RUN_TOKEN_BUDGET" in ended["metadata"]["error"]["detail"]
        assert not product.models.requests
