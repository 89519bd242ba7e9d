"""A tool's probe is asked what became of a lost call, and a person settles what it cannot tell."""

import dataclasses
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from arq.connections import ArqRedis

from shared.domain.effects import Effect, Outcome, SettledEffect
from shared.domain.errors import Conflict
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import ToolReturn
from shared.domain.runs import Run
from shared.domain.settling import OUTCOME_UNKNOWN
from shared.sql.runs.effects import EffectStore
from tests.kit.runs.definitions import NOW
from tests.kit.runs.sending_agent import SEND, WAYS, Sending, sending
from tests.kit.runs.stored_runs import CANCEL
from tests.kit.wait_until import wait_until
from worker.runners.mcp_tools import ALWAYS_ASKING, McpToolRunner

World = Callable[..., AbstractAsyncContextManager[Sending]]


@pytest.fixture
def world(database_url: str, redis: ArqRedis, tmp_path: Path) -> World:
    return partial(sending, database_url, redis, tmp_path / "service")


@pytest.fixture(params=WAYS)
async def any_way(request: pytest.FixtureRequest, world: World) -> AsyncGenerator[Sending]:
    """An agent whose tool, of each kind that may have a probe, has one."""
    async with world(way=request.param) as made:
        yield made


@pytest.fixture
async def asked(world: World) -> AsyncGenerator[Sending]:
    """An agent whose tool has a probe."""
    async with world() as made:
        yield made


async def test_a_call_has_its_effect_with_its_key(any_way: Sending) -> None:
    run = await any_way.submitted()
    assert (await any_way.done(run)).text == "sent hello"
    effect = await any_way.effect(run)
    assert (effect.call_id, effect.name, effect.state, effect.attempt) == ("call-1", "send", "done", 1)
    assert (effect.started_at is None, effect.ended_at is None, effect.settlement) == (False, False, None)
    assert any_way.sent == {effect.idempotency_key: ["hello"]}


async def test_a_call_that_had_its_effect_was_unknown_though_its_probe_could_tell(any_way: Sending) -> None:
    run = await any_way.lost("after")
    assert (await any_way.effect(run)).state == "started"
    result = await any_way.done(run)
    assert (result.status, result.text, result.is_unknown) == ("success", '{"found":["hello"]}', False)
    assert any_way.reached == ["before", "after", "asked"]
    assert list(any_way.sent.values()) == [["hello"]]
    effect = await any_way.effect(run)
    assert (effect.state, effect.attempt) == ("settled", 1)
    assert effect.settlement is not None
    assert (effect.settlement.by, effect.settlement.outcome, effect.settlement.result) == (
        *("probe", "happened"),
        result.text,
    )


async def test_a_call_that_did_not_happen_is_started_again_with_its_key(any_way: Sending) -> None:
    run = await any_way.lost("before")
    assert (await any_way.done(run)).text == "sent hello"
    assert any_way.reached == ["before", "asked", "before", "after"]
    effect = await any_way.effect(run)
    assert (effect.state, effect.attempt, effect.settlement) == ("done", 2, None)
    assert any_way.sent == {effect.idempotency_key: ["hello"]}


async def test_what_a_probe_cannot_tell_stays_unknown(any_way: Sending) -> None:
    (any_way.folder / "silent").touch()
    run = await any_way.lost("after")
    result = await any_way.done(run)
    assert (result.text, result.is_unknown) == (OUTCOME_UNKNOWN, True)
    assert any_way.reached == ["before", "after", "asked"]
    assert (await any_way.effect(run)).state == "unknown"


async def test_a_service_that_was_away_for_a_moment_left_a_call_unknown(any_way: Sending) -> None:
    run = await any_way.lost("after")
    (any_way.folder / "away").touch()
    assert (await any_way.done(run)).status == "success"
    assert any_way.reached == ["before", "after", "asked", "asked"]


async def test_the_probe_of_a_tool_whose_calls_share_a_folder_failed_its_run(world: World) -> None:
    """The folder is gone with its worker, and the probe gets an empty one."""
    async with world(scratch="run") as made:
        run = await made.lost("after")
        assert (await made.done(run)).text == '{"found":["hello"]}'


async def test_a_worker_that_dies_between_the_verdict_and_the_result_asks_nobody_again(asked: Sending) -> None:
    """The verdict and the result are one write."""
    run = await asked.lost("after")
    claimed = await asked.stores.runs.look_up(run.id)
    effect = await asked.effect(run)
    verdict = settlement(effect, by="probe", who=None, result="it was sent")
    result = ToolReturn(tool_call_id="call-1", tool_name="send", status="success", text="it was sent")
    await asked.stores.checkpoints.record_settled_effect(claimed, verdict, [result])
    assert (await asked.done(run)).text == "it was sent"
    assert asked.reached == ["before", "after"]
    assert (await asked.effect(run)).settlement == verdict


async def test_a_probe_was_asked_though_a_person_decides_on_every_call(world: World) -> None:
    """The operator, who does not take the server's word, demands that (`HOLDFAST_MCP_ALWAYS_ASK`)."""
    async with world(way="mcp") as made:
        run = await made.lost("after")
        assert isinstance(made.runner, McpToolRunner)
        strict = dataclasses.replace(made.runner, traits=ALWAYS_ASKING)
        later = dataclasses.replace(made, workers=made.later_workers(strict))
        assert (await later.done(run)).is_unknown
        assert made.reached == ["before", "after"]


async def test_a_tool_without_a_probe_is_not_asked(world: World) -> None:
    async with world(source=SEND) as made:
        run = await made.lost("after")
        assert (await made.done(run)).is_unknown
        assert made.reached == ["before", "after"]
        assert (await made.effect(run)).state == "unknown"


async def test_an_idempotent_tool_was_given_another_key_when_it_started_again(world: World) -> None:
    async with world(source=SEND, idempotent=True) as made:
        run = await made.lost("after")
        assert (await made.done(run)).text == "sent hello"
        effect = await made.effect(run)
        assert (effect.state, effect.attempt) == ("done", 2)
        assert made.sent == {effect.idempotency_key: ["hello", "hello"]}


async def test_a_cancelled_call_may_have_had_its_effect(asked: Sending) -> None:
    (asked.folder / "stop after").touch()
    run = await asked.submitted()
    worker = await asked.begun(run)
    await wait_until(lambda: "after" in asked.reached, description="the tool to have had its effect")
    await asked.stores.runs.request_cancel(await asked.stores.runs.look_up(run.id), CANCEL)
    assert await worker.ended() is None
    assert (await asked.stores.runs.look_up(run.id)).status is RunStatus.CANCELLED
    assert (await asked.effect(run)).state == "unknown"


def settlement(effect: Effect, **fields: object) -> SettledEffect:
    given = {
        "idempotency_key": effect.idempotency_key,
        "call_id": effect.call_id,
        "by": "person",
        "who": "ada",
        "outcome": "happened",
        "result": "order 7",
        "at": NOW,
    }
    return SettledEffect(**(given | fields))  # type: ignore[arg-type]


async def unknown(made: Sending) -> tuple[Run, Effect]:
    (made.folder / "silent").touch()
    run = await made.lost("after")
    await made.done(run)
    return await made.stores.runs.look_up(run.id), await made.effect(run)


async def test_a_person_settles_an_unknown_call_once(asked: Sending) -> None:
    run, effect = await unknown(asked)
    store, first = EffectStore(asked.stores.database), settlement(effect)
    assert await store.settle(run, first) == first
    assert await store.settle(run, first) == first
    with pytest.raises(Conflict, match="settled already, by ada: happened"):
        await store.settle(run, settlement(effect, outcome="did_not_happen", result=None, who="bob"))
    told = await asked.effect(run)
    assert (told.state, told.settlement) == ("settled", first)


@pytest.mark.parametrize("outcome", ["happened", "did_not_happen"])
async def test_what_a_person_settles_changes_no_conversation(asked: Sending, outcome: Outcome) -> None:
    run, effect = await unknown(asked)
    before = await asked.stores.context()
    await EffectStore(asked.stores.database).settle(run, settlement(effect, outcome=outcome, result=None))
    assert await asked.stores.context() == before
    assert asked.reached == ["before", "after", "asked"]


async def test_a_pruned_run_still_has_what_was_found_out(asked: Sending) -> None:
    run, effect = await unknown(asked)
    found_out = await EffectStore(asked.stores.database).settle(run, settlement(effect))
    assert run.completed_at is not None
    pruned = await asked.stores.retention.prune(run.completed_at + timedelta(seconds=1), NOW)
    assert pruned["tool_intents"] == 1
    told = await asked.effect(run)
    assert (told.state, told.settlement, told.started_at) == ("settled", found_out, None)
