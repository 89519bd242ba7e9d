"""Calls of models and calls that wait for a person, in the body of an operator's own code."""

import os
import signal
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from arq.connections import ArqRedis

from shared.domain.events import StatusChanged
from shared.domain.lifecycle import RunStatus
from shared.domain.limits import NOTHING, Budgets, Limit, day_of
from shared.domain.messages import Decision
from shared.domain.runs import Run, RunOptions
from shared.domain.tools import ClientTool
from shared.sql.runs.budgets import BudgetStore
from tests.kit.code_agents.world import World, world_of_agents
from tests.kit.runs.definitions import PROJECT
from tests.kit.runs.stored_runs import said


@pytest.fixture
async def world(database_url: str, redis: ArqRedis, tmp_path: Path) -> AsyncGenerator[World]:
    async with world_of_agents(database_url, redis, tmp_path) as world:
        yield world


async def _steps(world: World, run: Run) -> list[tuple[str, int, int]]:
    steps = await world.stores.steps.of_run(run)
    return [(one.model, one.usage.prompt_tokens, one.usage.completion_tokens) for one in steps]


async def test_answers_of_models_are_steps_with_their_tokens(world: World) -> None:
    run = await world.done(await world.submitted("asks", "2"))
    assert (run.status, run.step_count) == (RunStatus.COMPLETED, 3), run.error
    assert (run.usage.prompt_tokens, run.usage.completion_tokens) == (20, 20)
    assert (run.usage.cached_input_tokens, run.usage.reasoning_tokens) == (8, 2)
    assert await _steps(world, run) == [("house/small", 10, 10), ("house/small", 10, 10), ("house/small", 0, 0)]
    assert await world.shown_text(run) == "answer 0. answer 1. |answer 0.  answer 1.  inner"
    assert await world.results() == ["inner"]
    assert [one for one in world.stage.reached if one.startswith("'inside' waits for a person or a client inside of a")]


@pytest.mark.parametrize("moment", ["answered 0", "model 1", "answered 1", "asks"])
async def test_no_recorded_answer_is_asked_for_again(world: World, moment: str) -> None:
    """And readers have its text once, wherever the worker was lost."""
    run = await world.submitted("asks", "2")
    await (await world.begun(run, moment)).die()
    world.stage.go_on()
    run = await world.done(run)
    assert run.status is RunStatus.COMPLETED
    asked = [one for one in world.stage.reached if one.startswith("model ")]
    assert asked == (["model 0", "model 1", "model 1"] if moment == "model 1" else ["model 0", "model 1"])
    assert await world.shown_text(run) == "answer 0. answer 1. |answer 0.  answer 1.  inner"
    assert (run.usage.prompt_tokens, run.step_count) == (20, 3), "nothing was paid twice"


async def test_an_answer_holds_under_other_settings(world: World) -> None:
    run = await world.submitted("asks", "2")
    await (await world.begun(run, "answered 1")).die()
    world.stage.go_on()
    async with world.stage.agents(environment={"HOLDFAST_AGENTS_VERSION": "2"}) as newer:
        run = await world.done(run, newer)
    assert run.status is RunStatus.COMPLETED
    assert [one for one in world.stage.reached if one.startswith("model ")] == ["model 0", "model 1"]
    changes = [one.cause for one in await world.events(run) if isinstance(one, StatusChanged)]
    assert changes.count("instructions_changed") == 1


@pytest.mark.parametrize(("most", "asked"), [(2, 2), (3, 3)])
async def test_a_run_asks_models_no_oftener_than_it_may(world: World, most: int, asked: int) -> None:
    options = RunOptions(code_agent="asks", stream_tokens=True, max_steps=most)
    run = await world.done(await world.stores.submitted(said("4"), options=options))
    assert (run.status, run.stop_reason) == (RunStatus.COMPLETED, "max_steps")
    assert len([one for one in world.stage.reached if one.startswith("model ")]) == asked


@pytest.mark.parametrize(("tokens", "asked"), [(1000, 3), (40, 2)])
async def test_no_account_paid_for_the_calls_of_a_body(world: World, tokens: int, asked: int) -> None:
    """They were counted for the run alone, and went on when its project had nothing left. Found by chaos."""
    world = replace(world, budgets=Budgets(project=Limit(tokens=tokens)))
    run = await world.done(await world.submitted("asks", "3"))
    assert len([one for one in world.stage.reached if one.startswith("model ")]) == asked
    assert run.usage.prompt_tokens + run.usage.completion_tokens == asked * 20
    [paid] = await BudgetStore(world.stores.database).totals(day_of(datetime.now(UTC)), PROJECT)
    assert (paid.used.tokens, paid.reserved) == (asked * 20, NOTHING)
    assert run.status is (RunStatus.COMPLETED if asked == 3 else RunStatus.FAILED)
    if asked < 3:
        assert run.error is not None
        assert run.error.error_type == "budget_exceeded", run.error


async def test_a_tool_is_told_that_no_model_may_be_asked_any_more(world: World) -> None:
    options = RunOptions(code_agent="asks", stream_tokens=True, max_steps=1)
    run = await world.done(await world.stores.submitted(said("1"), options=options))
    assert run.status is RunStatus.COMPLETED
    assert await world.results() == ["StepsUsedUp"]


async def test_a_person_decides_before_a_tool_starts(world: World) -> None:
    run = await world.done(await world.submitted("gated"))
    assert run.status is RunStatus.AWAITING_APPROVAL
    [asked] = await world.stores.asked(run)
    assert (asked.tool_name, asked.arguments) == ("pay", '{"amount": 5, "to": "ada"}')
    assert not [one for one in world.stage.reached if one.startswith("pay")]
    run = await world.done(await world.approved(run))
    assert run.status is RunStatus.COMPLETED
    assert [one for one in world.stage.reached if one.startswith("pay")] == ["pay 5 ada 1"]
    assert await world.results() == ["paid 5 to ada"]


async def test_a_tool_starts_with_the_arguments_as_the_person_has_left_them(world: World) -> None:
    run = await world.done(await world.submitted("gated"))
    run = await world.done(await world.approved(run, '{"amount": 3, "to": "bob"}'))
    assert run.status is RunStatus.COMPLETED
    assert [one for one in world.stage.reached if one.startswith("pay")] == ["pay 3 bob 1"]
    assert await world.results() == ["paid 3 to bob"]


async def test_a_denied_tool_never_starts(world: World) -> None:
    run = await world.done(await world.submitted("gated"))
    run = await world.done(await world.denied(run, "too much"))
    assert run.status is RunStatus.COMPLETED
    assert not [one for one in world.stage.reached if one.startswith("pay")]
    assert (await world.texts())[-1] == "denied too much"
    assert await world.is_valid()


@pytest.mark.parametrize(("text", "pays", "end"), [("go", 1, "unknown"), ("again", 2, "paid 3 to bob")])
async def test_an_approved_tool_whose_process_is_killed(world: World, text: str, pays: int, end: str) -> None:
    """It starts at most once, or again with the same arguments if it is idempotent."""
    run = await world.done(await world.submitted("gated", text))
    run = await world.approved(run, '{"amount": 3, "to": "bob"}')
    worker = await world.begun(run, "pay 3 bob 1")
    os.kill(int([one for one in world.stage.reached if one.startswith("pid ")][-1].split()[1]), signal.SIGKILL)
    world.stage.go_on()
    assert await worker.ended() is None
    assert (await world.stores.runs.look_up(run.id)).status is RunStatus.COMPLETED
    assert [one for one in world.stage.reached if one.startswith("pay")] == [
        f"pay 3 bob {number + 1}" for number in range(pays)
    ]
    assert (await world.texts())[-1] == end
    assert await world.is_valid()


async def test_a_client_answers_without_bringing_its_tools_again(world: World) -> None:
    """The code asks for the same once more, so it has the tools of its turn."""
    sensor = ClientTool(name="sensor", description="", parameters={"type": "object"})
    options = RunOptions(code_agent="asks-client", client_tools=[sensor])
    run = await world.done(await world.stores.submitted(said("go"), options=options))
    assert run.status is RunStatus.AWAITING_APPROVAL, run.error
    [asked] = await world.stores.asked(run)
    answered = Decision(tool_call_id=asked.tool_call_id, kind="tool", tool_return="21 degrees")
    run = await world.done(await world.stores.decide(answered))
    assert run.status is RunStatus.COMPLETED, run.error
    assert await world.results() == ["21 degrees"]
