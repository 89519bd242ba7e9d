"""What runs and steps tell of their times: on the run, in metrics, as spans; and what is left of it after retention."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from letta_client import AsyncLetta

from shared.concurrency import unix_ms
from shared.domain.lifecycle import RunTrigger
from shared.domain.runs import Run, RunOptions, Step, StepTiming, ToolTiming, Usage
from shared.sql.paging import Page
from shared.sql.runs.steps import StepFilter
from tests.kit.product.in_process import api_client
from tests.kit.runs.definitions import NOW, PROJECT
from tests.kit.runs.stored_runs import AGENT, IDS, Stores, answer, approve, call, checkpoint, stored_runs

KEY = "the-long-key-of-our-project"
BEGAN = unix_ms(NOW)
MS = 1_000_000
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"

TOOLS = [
    ToolTiming("a", "look", BEGAN + 900, BEGAN + 1100),
    ToolTiming("b", "look", BEGAN + 1000, BEGAN + 1400, is_error=True),
    ToolTiming("c", "book", BEGAN + 1500, BEGAN + 1600),
]


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


@pytest.fixture
async def http(stores: Stores) -> AsyncGenerator[httpx.AsyncClient]:
    async with api_client(stores.database, api_keys=f"{PROJECT}={KEY}") as http:
        http.headers["Authorization"] = f"Bearer {KEY}"
        yield http


@pytest.fixture
def client(http: httpx.AsyncClient) -> AsyncLetta:
    return AsyncLetta(base_url="http://localhost", api_key=KEY, max_retries=0, http_client=http)


def step_of(run: Run, number: int, timing: StepTiming) -> Step:
    return Step(
        id=IDS.step(),
        run_id=run.id,
        agent_id=AGENT.id,
        number=number,
        model="openai/gpt-4o-mini",
        status="success",
        usage=Usage(prompt_tokens=50, completion_tokens=30),
        timing=timing,
        created_at=NOW,
    )


FIRST = StepTiming(asked_at=BEGAN + 100, first_token_at=BEGAN + 300, answered_at=BEGAN + 800, tools=TOOLS)
SECOND = StepTiming(asked_at=BEGAN + 2000, first_token_at=BEGAN + 2500, answered_at=BEGAN + 3000)


async def timed_run(stores: Stores, **fields: Any) -> tuple[Run, Step, Step]:
    """A run of two steps whose times are known."""
    run = await stores.claimed(**fields)
    one, two = step_of(run, 1, FIRST), step_of(run, 2, SECOND)
    await stores.checkpoints.record(run, checkpoint(run, answer("let me see"), step=one))
    ended = await stores.settle(
        await stores.runs.look_up(run.id),
        step=two,
        step_count=2,
        now=NOW + timedelta(seconds=4),
        usage=Usage(prompt_tokens=100, completion_tokens=60),
    )
    return ended.run, one, two


async def test_the_first_token_of_a_run_is_that_of_the_first_step_that_was_stored(stores: Stores) -> None:
    run, one, _ = await timed_run(stores)
    assert run.first_token_at == NOW.replace(microsecond=NOW.microsecond // 1000 * 1000) + timedelta(milliseconds=300)
    assert (await stores.steps.list(PROJECT, Page(ascending=True), StepFilter(run_id=run.id)))[0] == one


SHOWN_AT = BEGAN + 50
"""When a worker that was lost has shown the first piece of an answer."""


@pytest.mark.parametrize("way", ["checkpoint", "settle", "park"])
async def test_a_piece_that_an_earlier_worker_has_shown_is_the_first(stores: Stores, way: str) -> None:
    """The step has the times of the worker that finished it."""
    run = await stores.claimed()
    step = step_of(run, 1, FIRST)
    if way == "checkpoint":
        await stores.checkpoints.record(run, checkpoint(run, answer("let me see"), step=step, shown_at=SHOWN_AT))
    elif way == "park":
        asking = checkpoint(run, answer("", call("a")), step=step, shown_at=SHOWN_AT)
        await stores.settlements.park(run, asking, [])
    else:
        await stores.settle(run, step=step, shown_at=SHOWN_AT)
    first_at = (await stores.runs.look_up(run.id)).first_token_at
    assert first_at == datetime.fromtimestamp(SHOWN_AT / 1000, UTC)


async def test_a_piece_that_was_shown_later_is_not_the_first(stores: Stores) -> None:
    run = await stores.claimed()
    shown_at = FIRST.first_token_at + 20
    settled = await stores.settle(run, step=step_of(run, 1, FIRST), shown_at=shown_at)
    assert settled.run.first_token_at == datetime.fromtimestamp(FIRST.first_token_at / 1000, UTC)


async def test_the_answer_that_asks_a_person_counts_as_well(stores: Stores) -> None:
    run = await stores.claimed()
    asking = checkpoint(run, answer("", call("a")), step=step_of(run, 1, FIRST))
    await stores.settlements.park(run, asking, [])
    assert (await stores.runs.look_up(run.id)).first_token_at is not None


async def test_a_continuation_began_to_answer_before_it_was_submitted(stores: Stores) -> None:
    """Its first checkpoint stores the step of the run that asked, and the moment of that one's answer was taken."""
    parked = await stores.claimed()
    asked = step_of(parked, 1, FIRST)
    parked = await stores.park(parked, call("a", needs_approval=True))
    run = await stores.claim(await stores.decide(approve("a"), created_at=NOW + timedelta(seconds=9)))
    await stores.checkpoints.record(run, checkpoint(run, answer("launched"), step=asked))
    assert (await stores.runs.look_up(run.id)).first_token_at is None

    ended = await stores.settle(await stores.runs.look_up(run.id), step=asked)
    assert ended.run.first_token_at is None


async def test_a_run_whose_model_never_answered_has_no_first_token(stores: Stores) -> None:
    run = await stores.claimed()
    failed = step_of(run, 1, StepTiming(asked_at=BEGAN))
    ended = await stores.settle(run, RunTrigger.FAIL, step=failed)
    assert ended.run.first_token_at is None


async def test_a_run_shows_its_waits(stores: Stores, http: httpx.AsyncClient) -> None:
    options = RunOptions(traceparent=f"00-{TRACE}-00f067aa0ba902b7-01")
    run, _, _ = await timed_run(stores, options=options)
    shown = (await http.get(f"/v1/runs/{run.id}")).json()
    first_ns = BEGAN * MS + 300 * MS - int(NOW.timestamp() * 1e6) * 1000
    assert shown["ttft_ns"] == first_ns
    assert shown["metadata"] == {
        "run_type": "send_message",
        "started_at": NOW.isoformat().replace("+00:00", "Z"),
        "queue_wait_ms": 0,
        "first_token_ms": first_ns / MS,
        "step_count": 2,
        "prompt_tokens": 100,
        "completion_tokens": 60,
        "first_words": "hi",
        "trace_id": TRACE,
    }


async def test_metrics_of_a_run_name_where_its_time_went(stores: Stores, http: httpx.AsyncClient) -> None:
    run, _, _ = await timed_run(stores)
    metrics = (await http.get(f"/v1/runs/{run.id}/metrics")).json()
    assert (metrics["run_ns"], metrics["num_steps"], metrics["queue_wait_ns"]) == (4000 * MS, 2, 0)
    assert metrics["run_start_ns"] == int(NOW.timestamp() * 1e6) * 1000
    assert metrics["model_ns"] == (700 + 1000) * MS
    assert metrics["tokens_per_second"] == 60
    assert metrics["tools"] == [
        {"name": "book", "calls": 1, "errors": 0, "total_ns": 100 * MS, "max_ns": 100 * MS},
        {"name": "look", "calls": 2, "errors": 1, "total_ns": 600 * MS, "max_ns": 400 * MS},
    ]
    assert (metrics["waiting_for_approval_ns"], metrics["pruned_at"]) == (None, None)


async def test_metrics_of_a_run_tell_how_long_it_waited_for_a_person(stores: Stores, http: httpx.AsyncClient) -> None:
    run = await stores.parked(call("a", needs_approval=True))
    address = f"/v1/runs/{run.id}/metrics"
    assert (await http.get(address)).json()["waiting_for_approval_ns"] is None
    await stores.decide(approve("a"), created_at=NOW + timedelta(seconds=9))
    assert (await http.get(address)).json()["waiting_for_approval_ns"] == 9000 * MS


async def test_metrics_of_a_run_without_times_are_null(stores: Stores, http: httpx.AsyncClient) -> None:
    run = await stores.submitted()
    metrics = (await http.get(f"/v1/runs/{run.id}/metrics")).json()
    unknown = ("run_ns", "queue_wait_ns", "ttft_ns", "model_ns", "tokens_per_second", "tools")
    assert [metrics[name] for name in unknown] == [None] * len(unknown)


async def test_the_sdk_reads_metrics_of_a_step(stores: Stores, client: AsyncLetta) -> None:
    run, one, two = await timed_run(stores)
    metrics = await client.steps.metrics.retrieve(one.id)
    assert (metrics.id, metrics.run_id, metrics.agent_id) == (one.id, run.id, AGENT.id)
    assert (metrics.llm_request_start_ns, metrics.llm_request_ns) == ((BEGAN + 100) * MS, 700 * MS)
    assert metrics.tool_execution_ns == 600 * MS, "two of the calls ran side by side"
    assert (metrics.step_start_ns, metrics.step_ns) == ((BEGAN + 100) * MS, 1500 * MS)
    assert (await client.steps.metrics.retrieve(two.id)).tool_execution_ns is None
    assert await client.steps.trace.retrieve(one.id) is None


async def test_the_sdk_reads_a_run_as_spans(stores: Stores, client: AsyncLetta) -> None:
    run, one, two = await timed_run(stores)
    spans: list[dict[str, Any]] = await client.runs.trace.retrieve(run.id)
    names = [span["SpanName"] for span in spans]
    tool = "agent._execute_tool"
    assert names == ["run", "time_to_first_token", *["agent_step", "llm_request"], tool, tool, tool, names[2], names[3]]
    root, first, of_one = spans[:3]
    assert (root["ParentSpanId"], root["Duration"], root["StatusCode"]) == ("", 4000 * MS, "Ok")
    assert root["SpanAttributes"]["run.stop_reason"] == "end_turn"
    assert {span["TraceId"] for span in spans} == {run.id.removeprefix("run-").replace("-", "")}
    assert len({span["SpanId"] for span in spans}) == len(spans)
    assert (first["ParentSpanId"], of_one["ParentSpanId"]) == (root["SpanId"], root["SpanId"])
    assert [span["StatusCode"] for span in spans if span["SpanName"] == tool] == ["Ok", "Error", "Ok"]
    assert {span["ParentSpanId"] for span in spans if span["SpanName"] == tool} == {of_one["SpanId"]}
    assert of_one["SpanAttributes"]["step.id"] == one.id
    assert spans[-2]["SpanAttributes"]["step.id"] == two.id
    assert spans[-2]["Duration"] == 1000 * MS
    assert await client.runs.trace.retrieve(run.id) == spans
    assert await client.runs.trace.retrieve(run.id, limit=2) == spans[:2]


async def test_what_retention_took_from_a_run_is_said(stores: Stores, http: httpx.AsyncClient) -> None:
    run, _, _ = await timed_run(stores)
    parts = ("steps", "metrics", "trace", "stream")
    for part in parts[:3]:
        assert "warning" not in (await http.get(f"/v1/runs/{run.id}/{part}")).headers
    await stores.retention.prune(NOW + timedelta(days=9), NOW + timedelta(days=9))

    at = (NOW + timedelta(days=9)).isoformat().replace("+00:00", "Z")
    assert (await http.get(f"/v1/runs/{run.id}")).json()["metadata"]["pruned_at"] == at
    for part in parts:
        answered = await http.get(f"/v1/runs/{run.id}/{part}")
        assert answered.status_code == 200, answered.text
        assert f"run {run.id} was pruned at {at}" in answered.headers["warning"]
    listed = await http.get("/v1/steps", params={"run_id": run.id})
    assert (listed.json(), f"run {run.id} was pruned at {at}" in listed.headers["warning"]) == ([], True)
    unknown = await http.get("/v1/steps", params={"run_id": f"{run.id[:-1]}{'0' if run.id[-1] != '0' else '1'}"})
    assert (unknown.status_code, unknown.json(), "warning" in unknown.headers) == (200, [], False)
    metrics = (await http.get(f"/v1/runs/{run.id}/metrics")).json()
    assert (metrics["pruned_at"], metrics["tools"], metrics["run_ns"]) == (at, None, 4000 * MS)
    spans = (await http.get(f"/v1/runs/{run.id}/trace")).json()
    assert [span["SpanName"] for span in spans] == ["run", "time_to_first_token"]


async def test_what_a_person_thinks_of_a_step_is_kept_and_found(stores: Stores, client: AsyncLetta) -> None:
    run, one, two = await timed_run(stores)
    step = await client.steps.feedback.create(one.id, feedback="negative", tags=["Too long", 'said "no"'])
    assert (step.feedback, step.tags) == ("negative", ["Too long", 'said "no"'])
    kept = await client.steps.feedback.create(one.id, feedback="positive")
    assert (kept.feedback, kept.tags) == ("positive", ["Too long", 'said "no"'])

    async def found(**wanted: Any) -> list[str]:
        return [one.id for one in (await client.steps.list(**wanted)).items]

    assert await found(feedback="positive") == [one.id]
    assert await found(feedback="negative") == []
    assert (await found(has_feedback=True), await found(has_feedback=False)) == ([one.id], [two.id])
    assert await found(tags=['said "no"', "other"]) == [one.id]
    assert await found(tags=["too long"]) == await found(tags=["no"]) == []
    assert set(await found(model="gpt-4o-mini")) == set(await found(model="openai/gpt-4o-mini")) == {one.id, two.id}
    assert await found(model="mini") == []
    assert set(await found(start_date="2026-01-02T00:00:00", end_date="2026-01-03T00:00:00Z")) == {one.id, two.id}
    assert await found(end_date="2026-01-02T00:00:00Z") == []

    await stores.settle(await stores.claimed(), step=step_of(run, 3, SECOND))
    assert (await client.steps.retrieve(one.id)).feedback == "positive"
    cleared = await client.steps.feedback.create(one.id, feedback=None, tags=[])
    assert (cleared.feedback, cleared.tags) == (None, [])


async def test_a_worker_that_stores_the_step_again_leaves_what_a_person_thinks(stores: Stores) -> None:
    run = await stores.claimed()
    step = step_of(run, 1, FIRST)
    await stores.checkpoints.record(run, checkpoint(run, answer("so"), step=step))
    await stores.steps.give_feedback(PROJECT, step.id, feedback="positive", tags=["good"])
    await stores.settle(await stores.runs.look_up(run.id), step=step)
    stored = await stores.steps.get(PROJECT, step.id)
    assert (stored.feedback, stored.tags) == ("positive", ["good"])
