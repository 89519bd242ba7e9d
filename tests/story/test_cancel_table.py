"""Cancel, in every state that a run can be in, in every mode.

For each cell: one terminal status, one end of the stream, the model's connection closed, no process left, nothing
written afterwards, and a conversation that goes on, by the rules of its provider.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shared.domain.errors import CancelMode
from shared.domain.ids import RunId
from shared.redis.connection import CancelSignal
from tests.kit.log_events import LogEvents, log_events
from tests.kit.model_server import ModelServer
from tests.kit.product import Product, running_product
from tests.kit.product.cancel_states import (
    ANSWERS_ALONE,
    STATES,
    CancelCase,
    State,
    awaiting_approval,
    claimed_but_no_request_sent,
    created,
    decision_just_posted,
    mid_tool_arguments,
    queued_behind_another_run,
    statuses_of,
)
from tests.kit.product.shared_product import Backends
from tests.kit.provider_rules.request import check_request
from tests.kit.services.databases import patient_database
from tests.kit.services.tcp_proxy import blackhole_address
from tests.kit.tools import PLAIN_TOOLS, is_alive
from tests.kit.wait_until import wait_until


@pytest.fixture
async def product(request: pytest.FixtureRequest, backends: Backends, models: ModelServer) -> AsyncIterator[Product]:
    """The product with the settings that the cell needs. Nobody answers at the address of its `ollama/` models."""
    params = request.node.callspec.params  # pyright: ignore
    settings = {**STATES[params["state"]], **PLAIN_TOOLS}
    if params["state"] is claimed_but_no_request_sent and params["mode"] is CancelMode.AFTER_STEP:
        settings = {"first_event_timeout": 1.0, **PLAIN_TOOLS}  # the step that is waited for has nobody to answer it
    database = patient_database(backends.database_url)
    with blackhole_address() as nowhere:
        environment = {**models.base_urls(), "OLLAMA_BASE_URL": nowhere}
        async with running_product(
            database, backends.redis.client(), models, settings=settings, environment=environment
        ) as running:
            yield running
    await database.aclose()


@pytest.mark.parametrize("mode", list(CancelMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
async def test_cancel(product: Product, state: State, mode: CancelMode, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    case = await state(product, pids)
    requests_before = len(product.models.requests)

    with log_events() as logged:
        receipt = await _cancel(case, mode, logged)
    run = await product.ended(case.run_id)
    wanted = statuses_of(state, mode)
    run = await wait_until(lambda: _with_status(product, case.run_id, wanted), description=f"status {wanted}")

    assert receipt["run_id"] == case.run_id
    await _assert_one_end(product, case, run, parked=state is awaiting_approval)
    if mode is not CancelMode.AFTER_STEP and state in ANSWERS_ALONE | {mid_tool_arguments}:
        await wait_until(lambda: product.models.requests[0].client_left, description="the model's connection to close")
    if pids.exists():
        assert not [pid for pid in pids.read_text().split() if is_alive(int(pid))], "a tool's process was left behind"
    if state not in (created, queued_behind_another_run, decision_just_posted, mid_tool_arguments):
        assert len(product.models.requests) == requests_before, "the model was asked after the cancel"
    before = await product.history(case.agent_id)
    if mode is CancelMode.ROLLBACK and wanted == {"cancelled"} and state is not decision_just_posted:
        assert not [m for m in before if m["run_id"] == case.run_id and m["message_type"] == "assistant_message"]

    await _assert_goes_on(product, case, before)


async def _cancel(case: CancelCase, mode: CancelMode, logged: LogEvents) -> dict[str, Any]:
    """Cancels the case's run. What stands still goes on when the cancel has reached the run, or has ended it."""

    def has_reached_the_run() -> bool:
        return logged.has("cancel_reached_run", run_id=case.run_id)

    product, body = case.product, {"mode": mode.value, "wait": 10}
    if case.announce_first:
        await CancelSignal(product.context.redis).announce(RunId(case.run_id), mode)
        if not case.may_come_too_late:
            await wait_until(has_reached_the_run, description="the cancel to reach the run")
    for release in case.release:
        await release()
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(product.http.post(f"/v1/runs/{case.run_id}/cancel", json=body))
        if mode is CancelMode.AFTER_STEP:
            await wait_until(lambda: asking.done() or has_reached_the_run(), description="the cancel to be noticed")
            case.go_on()
    case.go_on()
    answer = await asking
    assert answer.status_code == 200, answer.text
    return answer.json()


async def _with_status(product: Product, run_id: str, statuses: set[str]) -> dict[str, Any] | None:
    run = await product.run(run_id)
    return run if run["status"] in statuses else None


async def _assert_one_end(product: Product, case: CancelCase, run: dict[str, Any], *, parked: bool) -> None:
    answer = await product.http.post(f"/v1/runs/{case.run_id}/stream", json={"include_pings": False})
    data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    frames = [json.loads(line) for line in data if line != "[DONE]"]
    assert data.count("[DONE]") == 1 and data[-1] == "[DONE]"
    reasons = [frame["stop_reason"] for frame in frames if frame["message_type"] == "stop_reason"]
    assert reasons == (["requires_approval"] if parked else [run["stop_reason"]])
    assert len([frame for frame in frames if frame["message_type"] == "usage_statistics"]) == 1
    again = await product.run(case.run_id)
    assert (again["status"], again["completed_at"]) == (run["status"], run["completed_at"])


async def _assert_goes_on(product: Product, case: CancelCase, before: list[dict[str, Any]]) -> None:
    """The next message is answered, by a request that the provider would accept, and nothing was written meanwhile."""
    override = {"override_model": "openai/gpt-4o-mini"}
    answer = await asyncio.wait_for(
        product.http.post(f"/v1/agents/{case.agent_id}/messages", json={"input": "And now?", **override}), 20
    )
    assert answer.json()["stop_reason"]["stop_reason"] == "end_turn", answer.text
    request = product.models.requests[-1]
    assert check_request("/chat/completions", request.body) == []
    after = await product.history(case.agent_id)
    mine = [m["id"] for m in before if m["run_id"] == case.run_id]
    assert [m["id"] for m in after if m["run_id"] == case.run_id] == mine, "written after the run had ended"
    assert _call_ids(after, "tool_calls") == _call_ids(after, "tool_returns")


def _call_ids(messages: list[dict[str, Any]], field: str) -> list[str]:
    found: list[str] = []
    for message in messages:
        items: list[dict[str, Any]] = message.get(field) or []
        found.extend(item["tool_call_id"] for item in items)
    return sorted(found)
