"""What is set aside for a call, and what a run has used: counted once, whoever writes it and whoever dies."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest
from msgspec.structs import replace

from shared.domain.errors import BudgetExceeded, StaleFence
from shared.domain.ids import ThreadId
from shared.domain.lifecycle import RunTrigger
from shared.domain.limits import NOTHING, Account, Amount, Limit, day_of, next_day
from shared.domain.runs import Run, Usage
from shared.sql.runs.budgets import BudgetStore
from tests.kit.runs.definitions import NOW, PROJECT
from tests.kit.runs.stored_runs import Stores, answer, call, checkpoint, ending, second_process, some_run, stored_runs

CALL = Amount(tokens=100, nano_usd=40)
USED = Usage(prompt_tokens=60, completion_tokens=10, cost_nano_usd=25)


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


def accounts(tokens: int | None = 1000, nano_usd: int | None = None) -> list[Account]:
    limit = Limit(tokens, nano_usd)
    return [Account("agent", "agent-1", limit), Account("key", "key-1", limit), Account("project", PROJECT, limit)]


async def totals(stores: Stores, day: str = day_of(NOW)) -> tuple[Amount, Amount]:
    """What every account has used and has set aside: they are all alike."""
    found = {(total.used, total.reserved) for total in await BudgetStore(stores.database).totals(day, PROJECT)}
    [both] = found or {(NOTHING, NOTHING)}
    return both


async def reserve(stores: Stores, run: Run, amount: Amount = CALL, tokens: int | None = 1000) -> None:
    await BudgetStore(stores.database).reserve(run, accounts(tokens), amount, NOW)


async def test_a_call_is_set_aside_and_then_counted(stores: Stores) -> None:
    run = await stores.claimed()
    await reserve(stores, run)
    assert await totals(stores) == (NOTHING, CALL)

    said = checkpoint(run, answer("so"), usage=USED)
    await stores.checkpoints.record(run, said)
    await stores.checkpoints.record(run, said)  # the answer was lost

    assert await totals(stores) == (Amount(70, 25), NOTHING)


async def test_each_write_counts_what_came_since_the_last_one(stores: Stores) -> None:
    run = await stores.claimed()
    await reserve(stores, run)
    await stores.checkpoints.record(run, checkpoint(run, answer("so"), usage=USED))
    run = await stores.runs.look_up(run.id)
    await reserve(stores, run)

    twice = USED.plus(USED)
    await stores.settle(run, usage=twice)
    await stores.settlements.settle(run, ending(RunTrigger.COMPLETE, run, usage=twice))  # the answer was lost

    assert await totals(stores) == (Amount(140, 50), NOTHING)


async def test_a_parked_run_keeps_nothing_set_aside(stores: Stores) -> None:
    run = await stores.claimed()
    await reserve(stores, run)
    await stores.park(run, call("c1", needs_approval=True))
    assert await totals(stores) == (NOTHING, NOTHING)


async def test_the_next_owner_of_a_lost_run_sets_aside_in_place_of_the_last_one(stores: Stores) -> None:
    run = await stores.claimed()
    await reserve(stores, run)
    await stores.runs.dispatch_again(await stores.listing.quiet(NOW + timedelta(days=1), NOW))
    again = await stores.claim(run)

    with pytest.raises(StaleFence):
        await reserve(stores, run)
    await reserve(stores, again, Amount(tokens=30))
    assert await totals(stores) == (NOTHING, Amount(tokens=30))

    await stores.settle(again, RunTrigger.FAIL, usage=USED)
    assert await totals(stores) == (Amount(70, 25), NOTHING)


async def test_a_worker_that_died_with_nothing_set_aside_has_lost_no_call(stores: Stores) -> None:
    """The run had shown thousands of tokens that no model was asked for, and its accounts had not."""
    run = await stores.claimed()
    await reserve(stores, run)
    await stores.checkpoints.record(run, checkpoint(run, answer("so"), usage=USED))
    run = await stores.runs.look_up(run.id)
    lost = Usage(prompt_tokens=50, context_tokens=50, estimated=True)

    await stores.settlements.settle(run, replace(ending(RunTrigger.CANCEL, run, usage=USED), lost=lost))

    assert (await stores.runs.look_up(run.id)).usage.prompt_tokens == USED.prompt_tokens
    assert await totals(stores) == (Amount(70, 25), NOTHING)


async def test_a_repeated_reservation_is_one(stores: Stores) -> None:
    run = await stores.claimed()
    await reserve(stores, run)
    await reserve(stores, run)
    assert await totals(stores) == (NOTHING, CALL)


async def test_a_call_that_would_go_over_changes_nothing_and_says_what_it_would_come_to(stores: Stores) -> None:
    run = await stores.claimed()
    await reserve(stores, run)
    await stores.checkpoints.record(run, checkpoint(run, answer("so"), usage=USED))
    run = await stores.runs.look_up(run.id)

    with pytest.raises(BudgetExceeded, match=r"the agent's budget of this day to 170 tokens of 169$") as refused:
        await reserve(stores, run, tokens=169)

    assert refused.value.room_at == next_day(NOW)
    assert await totals(stores) == (Amount(70, 25), NOTHING)
    await reserve(stores, run, tokens=170)


async def test_money_is_limited_beside_tokens(stores: Stores) -> None:
    run = await stores.claimed()
    store = BudgetStore(stores.database)
    with pytest.raises(BudgetExceeded, match=r"\$0\.0000 of \$0\.0000"):
        await store.reserve(run, accounts(tokens=None, nano_usd=39), CALL, NOW)
    await store.reserve(run, accounts(tokens=None, nano_usd=40), CALL, NOW)


async def test_two_processes_cannot_both_have_the_last_of_it(stores: Stores) -> None:
    first = await stores.claimed(thread_id=ThreadId("conv-a"))
    second = await stores.claimed(thread_id=ThreadId("conv-b"))
    async with second_process(stores) as others:
        got = await asyncio.gather(
            reserve(stores, first, tokens=199), reserve(others, second, tokens=199), return_exceptions=True
        )
    [refused] = [one for one in got if one is not None]
    assert isinstance(refused, BudgetExceeded)
    assert "with the calls that are under way" in str(refused)
    assert await totals(stores) == (NOTHING, CALL)


async def test_what_was_set_aside_before_midnight_is_counted_for_that_day(stores: Stores) -> None:
    run = await stores.claimed()
    await reserve(stores, run)
    tomorrow = next_day(NOW) + timedelta(seconds=1)
    await stores.checkpoints.record(run, checkpoint(run, answer("so"), usage=USED, now=tomorrow))

    assert await totals(stores) == (Amount(70, 25), NOTHING)
    assert await totals(stores, day_of(tomorrow)) == (NOTHING, NOTHING)


async def test_a_smaller_figure_of_another_release_takes_nothing_back(stores: Stores) -> None:
    """A worker that does not know prices writes a usage without one."""
    run = await stores.claimed()
    await reserve(stores, run)
    await stores.checkpoints.record(run, checkpoint(run, answer("so"), usage=USED))
    run = await stores.runs.look_up(run.id)
    await reserve(stores, run)
    await stores.settle(run, usage=Usage(prompt_tokens=80, completion_tokens=10))
    assert await totals(stores) == (Amount(90, 25), NOTHING)


async def test_a_run_that_waits_is_left_alone_until_its_time_or_a_cancel(stores: Stores) -> None:
    run = await stores.claimed()
    until = NOW + timedelta(hours=1)
    await stores.checkpoints.hand_over(run, checkpoint(run).tail, NOW, waits_until=until)
    later = NOW + timedelta(minutes=30)

    assert (await stores.runs.look_up(run.id)).waits_until == until
    assert await stores.listing.quiet(later, later) == []
    assert [quiet.run_id for quiet in await stores.listing.quiet(until, until)] == [run.id]

    other = await stores.runs.submit(some_run(thread_id=ThreadId("conv-2")), [])
    assert other.is_new
