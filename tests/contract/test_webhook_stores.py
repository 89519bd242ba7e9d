"""Webhook endpoints and their outbox: the end of a background run writes a row for each endpoint that wants to hear of
it, and one process delivers each."""

from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest
from msgspec.structs import replace

from api.openai.response_object import DIALECT
from shared.domain.errors import StaleFence
from shared.domain.events import StopReason
from shared.domain.ids import ThreadId
from shared.domain.lifecycle import RunTrigger
from shared.domain.runs import RunOptions
from shared.domain.settling import RunOutcome
from shared.sql.runs.listing import RunStatStore
from shared.sql.runs.webhooks import (
    FORMER_SECRET,
    SECRET,
    EndpointSecretStore,
    WebhookDelivery,
    WebhookDeliveryStore,
    WebhookEndpoint,
    WebhookEndpointStore,
)
from tests.kit.runs.definitions import NOW, OTHER_PROJECT, PROJECT
from tests.kit.runs.stored_runs import Stores, approve, call, run_end, some_endpoint, stored_runs

HEARD = RunOptions(dialect=DIALECT, background=True)
EVERY: list[RunOutcome] = ["completed", "failed", "cancelled", "incomplete"]
WAITS = call("a", needs_approval=True)
LATER = NOW + timedelta(minutes=1)


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


async def endpoint(stores: Stores, **fields: object) -> WebhookEndpoint:
    return await WebhookEndpointStore(stores.database).create(some_endpoint(**fields))


async def claimed(stores: Stores, *, limit: int = 20) -> list[WebhookDelivery]:
    return await WebhookDeliveryStore(stores.database).claim_due(NOW, limit)


async def heard(stores: Stores) -> list[tuple[str, RunOutcome]]:
    return [(one.run_id, one.event.outcome) for one in await claimed(stores)]


ENDS: list[tuple[RunTrigger, str, RunOutcome]] = [
    (RunTrigger.COMPLETE, StopReason.ANSWERED, "completed"),
    (RunTrigger.COMPLETE, StopReason.ENDED_BY_RULE, "completed"),
    (RunTrigger.COMPLETE, StopReason.TOKENS_USED_UP, "incomplete"),
    (RunTrigger.COMPLETE, StopReason.STEPS_USED_UP, "incomplete"),
    (RunTrigger.FAIL, StopReason.FAILED, "failed"),
    (RunTrigger.CANCEL, StopReason.CANCELLED, "cancelled"),
]


@pytest.mark.parametrize(("trigger", "stop_reason", "outcome"), ENDS)
async def test_the_end_of_a_run_writes_what_its_endpoints_hear(
    stores: Stores, trigger: RunTrigger, stop_reason: str, outcome: RunOutcome
) -> None:
    first, second = await endpoint(stores), await endpoint(stores)
    run = await stores.claimed(options=HEARD)
    assert await claimed(stores) == []

    await stores.settle(run, trigger, end=run_end(trigger, stop_reason=stop_reason))

    found = await claimed(stores)
    assert {one.endpoint_id for one in found} == {first.id, second.id}
    assert [one.endpoint for one in found if one.endpoint_id == first.id] == [first]
    assert {(one.run_id, one.event.outcome, one.event.at, one.attempts) for one in found} == {(run.id, outcome, NOW, 1)}


async def test_an_endpoint_hears_what_it_has_asked_for_of_its_own_projects_background_runs(stores: Stores) -> None:
    await endpoint(stores, outcomes=["failed"])
    await endpoint(stores, project_id=OTHER_PROJECT)
    await endpoint(stores, dialect="another")
    await stores.ended(options=HEARD)
    assert await heard(stores) == []

    await endpoint(stores)
    await stores.ended(options=replace(HEARD, background=False))
    await stores.ended(options=replace(HEARD, dialect="letta"))
    assert await heard(stores) == []
    run = await stores.ended(options=HEARD)
    assert await heard(stores) == [(run.id, "completed")]


async def test_a_parked_run_is_heard_of_once_whatever_becomes_of_it(stores: Stores) -> None:
    await endpoint(stores)
    cancelled = await stores.parked(WAITS, options=HEARD)
    assert await heard(stores) == [(cancelled.id, "completed")]
    await stores.settle(cancelled, RunTrigger.CANCEL)

    decided = await stores.parked(WAITS, options=HEARD, thread_id=ThreadId("conv-2"))
    assert await heard(stores) == [(decided.id, "completed")]
    await stores.decide(approve("a"), thread_id=ThreadId("conv-2"))
    assert await heard(stores) == []


async def test_an_old_owners_end_is_not_heard_of(stores: Stores) -> None:
    await endpoint(stores)
    old = await stores.claimed(options=HEARD)
    new = await stores.claim(old)
    with pytest.raises(StaleFence):
        await stores.settle(old)
    assert await heard(stores) == []
    await stores.settle(new)
    assert await heard(stores) == [(old.id, "completed")]


async def test_what_is_on_its_way_is_counted_with_the_callbacks(stores: Stores) -> None:
    await endpoint(stores)
    await stores.ended(options=HEARD, callback_url="http://127.0.0.1/")
    assert (await RunStatStore(stores.database).of_deployment()).callbacks_waiting == 2


async def test_what_is_on_its_way_goes_where_the_endpoint_is_now(stores: Stores) -> None:
    kept, gone = await endpoint(stores), await endpoint(stores)
    store = WebhookEndpointStore(stores.database)
    await stores.ended(options=HEARD)
    await store.update(PROJECT, kept.id, lambda one: replace(one, url="http://b/"), act="webhook.changed", now=LATER)
    await store.delete(PROJECT, gone.id)
    urls = {one.endpoint_id: one.endpoint and one.endpoint.url for one in await claimed(stores)}
    assert urls == {kept.id: "http://b/", gone.id: None}


async def test_a_run_with_an_event_on_its_way_is_not_pruned(stores: Stores) -> None:
    await endpoint(stores)
    run = await stores.ended(options=HEARD)
    before, now = NOW + timedelta(days=1), NOW + timedelta(days=2)
    assert not await stores.retention.prune(before, now, 10)
    [one] = await claimed(stores)
    await WebhookDeliveryStore(stores.database).record_attempt(one, now=NOW, status_code=200, error=None, next_at=None)
    assert (await stores.retention.prune(before, now, 10))["webhook_deliveries"] == 1
    assert (await stores.runs.look_up(run.id)).pruned_at == now


async def test_secrets_are_replaced_as_long_as_they_are_what_was_seen(stores: Stores) -> None:
    made = await endpoint(stores, former_secret="whsec_BBBB", former_until=LATER)
    store = EndpointSecretStore(stores.database)
    [seen] = await store.some(0, 10)
    assert seen.secrets == {SECRET: "whsec_AAAA", FORMER_SECRET: "whsec_BBBB"}

    assert await store.replace(seen, {SECRET: "a", FORMER_SECRET: "b"})
    assert not await store.replace(seen, {SECRET: "c", FORMER_SECRET: "d"})
    stored = await WebhookEndpointStore(stores.database).get(PROJECT, made.id)
    assert (stored.secrets_at(NOW), stored.secrets_at(LATER)) == ({SECRET: "a", FORMER_SECRET: "b"}, {SECRET: "a"})
