"""Callbacks: who asked to be called back learns what became of the run, once, however long that takes."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from arq.connections import ArqRedis

from api.callbacks.delivery import RETRY_AFTER_S
from api.callbacks.outboxes import key_of_project, signed_headers, signing_key
from api.main import serving
from shared.domain.ids import ProjectId
from shared.sql.engine import Database
from tests.kit.clocks import SettableClock
from tests.kit.model_server import ModelServer
from tests.kit.product import Product, running_product
from tests.kit.product.callback_receiver import CallbackReceiver
from tests.kit.tools import LAUNCH
from tests.kit.wait_until import wait_until

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
def clock() -> SettableClock:
    """The product's clock."""
    return SettableClock()


@pytest.fixture
async def product(
    database: Database, redis: ArqRedis, models: ModelServer, clock: SettableClock
) -> AsyncIterator[Product]:
    """The product, with a secret to sign with and a clock that the test puts forward."""
    settings = {"callback_secret": SECRET}
    async with running_product(database, redis, models, clock=clock, settings=settings) as running:
        yield running


@pytest.fixture
async def receiver() -> AsyncIterator[CallbackReceiver]:
    """Who is called back."""
    async with CallbackReceiver() as server:
        yield server


async def submitted(product: Product, url: str, **agent: Any) -> str:
    """A run that calls back; its id."""
    made = await product.agent(**agent)
    run = await product.client.agents.messages.create_async(agent_id=made.id, input="Hello", callback_url=url)
    return run.id


async def attempted(product: Product, run_id: str) -> dict[str, Any]:
    """Waits for an attempt to be recorded; the run then."""

    async def look() -> dict[str, Any] | None:
        run = await product.run(run_id)
        return run if run["callback_status_code"] or run["callback_error"] else None

    return await wait_until(look, description="an attempt to be recorded")


async def test_the_receiver_gets_what_the_run_has_come_to(product: Product, receiver: CallbackReceiver) -> None:
    product.models.say("Good morning.")
    run_id = await submitted(product, receiver.url)

    callback = await receiver.called()

    body = callback.body
    run = await attempted(product, run_id)
    assert (body["run_id"], body["status"], body["completed_at"]) == (run_id, "completed", run["completed_at"])
    assert body["metadata"]["run_type"] == "send_message_async"
    result = body["metadata"]["result"]
    assert [(one["message_type"], one["content"]) for one in result["messages"]] == [
        ("user_message", "Hello"), ("assistant_message", "Good morning."),
    ]  # fmt: skip
    assert result["stop_reason"] == {"message_type": "stop_reason", "stop_reason": "end_turn"}
    assert result["usage"]["message_type"] == "usage_statistics"
    assert result["usage"]["total_tokens"] > 0
    assert (callback.path, callback.headers["content-type"]) == ("/called?by=holdfast", "application/json")
    assert callback.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert (run["callback_status_code"], run["callback_error"]) == (200, None)
    assert run["callback_sent_at"] is not None


async def test_receivers_that_look_for_content_type_as_it_is_usually_written_did_not_find_it(
    product: Product, receiver: CallbackReceiver
) -> None:
    await submitted(product, receiver.url)

    callback = await receiver.called()

    assert {"Host", "Content-Type", "User-Agent"} <= set(callback.written)


async def test_a_callback_is_signed(product: Product, receiver: CallbackReceiver) -> None:
    run_id = await submitted(product, receiver.url)

    callback = await receiver.called()

    expected = signed_headers(
        key_of_project(signing_key(SECRET), ProjectId("default")),
        message_id=run_id,
        timestamp=int(callback.headers["webhook-timestamp"]),
        body=callback.content,
    )
    assert {name: callback.headers[name] for name in expected} == expected


async def test_a_run_that_failed_says_so(product: Product, receiver: CallbackReceiver) -> None:
    product.models.fail("auth")
    await submitted(product, receiver.url)

    body = (await receiver.called()).body

    assert (body["status"], body["project_id"]) == ("failed", "default")
    assert body["metadata"]["error"]["error_type"] == "llm_authentication"


async def test_a_run_that_waits_for_a_person_says_so_and_its_end_comes_later(
    product: Product, receiver: CallbackReceiver
) -> None:
    tool = await product.tool(LAUNCH, default_requires_approval=True)
    product.models.call("launch", target="moon")
    run_id = await submitted(product, receiver.url, tools=[tool])

    asked = (await receiver.called()).body
    assert (asked["run_id"], asked["status"]) == (run_id, "completed")
    assert asked["metadata"]["result"]["stop_reason"]["stop_reason"] == "requires_approval"
    [waiting] = (await product.http.get("/v1/approvals")).json()
    await product.http.post(f"/v1/approvals/{waiting['id']}", json={"decision": "approve"})

    ended = (await receiver.called(2)).body
    assert ended["metadata"]["continues_run_id"] == run_id
    assert ended["metadata"]["result"]["stop_reason"]["stop_reason"] == "end_turn"


async def test_a_receiver_that_fails_is_tried_again_later(
    product: Product, receiver: CallbackReceiver, clock: SettableClock
) -> None:
    receiver.answer(500, None)
    run_id = await submitted(product, receiver.url)

    first = await receiver.called()
    run = await attempted(product, run_id)
    assert (run["status"], run["callback_status_code"]) == ("completed", 500)
    assert run["callback_error"] == "the receiver answered 500"
    clock.advance(seconds=7)
    await receiver.called(2)

    async def dropped() -> bool:
        return "RemoteProtocolError" in ((await product.run(run_id))["callback_error"] or "")

    await wait_until(dropped, description="the second failure to be recorded")
    clock.advance(seconds=37)
    third = await receiver.called(3)

    async def delivered() -> bool:
        return (await product.run(run_id))["callback_status_code"] == 200

    await wait_until(delivered, description="the delivery to be recorded")
    assert third.body == first.body
    assert third.headers["webhook-id"] == first.headers["webhook-id"]
    assert third.headers["webhook-timestamp"] > first.headers["webhook-timestamp"]


def test_a_receiver_is_tried_for_three_days() -> None:
    assert list(RETRY_AFTER_S) == sorted(RETRY_AFTER_S)
    assert 2.5 < sum(RETRY_AFTER_S) / 86400 <= 3.0


async def test_a_receiver_that_is_gone_for_good_is_left_alone(
    product: Product, receiver: CallbackReceiver, clock: SettableClock
) -> None:
    receiver.answer(410)
    run_id = await submitted(product, receiver.url)
    await attempted(product, run_id)
    clock.advance(days=4)

    # Another callback shows that the outbox has been looked at since.
    await submitted(product, receiver.url)
    second = await receiver.called(2)

    assert second.body["run_id"] != run_id
    assert (await product.run(run_id))["callback_status_code"] == 410


async def test_a_redirect_is_not_followed(product: Product, receiver: CallbackReceiver) -> None:
    receiver.answer_headers["location"] = f"http://127.0.0.1:{receiver.port}/elsewhere"
    receiver.answer(307)
    run_id = await submitted(product, receiver.url)

    run = await attempted(product, run_id)

    assert run["callback_error"] == "the receiver answered 307"
    assert [callback.path for callback in receiver.received] == ["/called?by=holdfast"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1"])
async def test_private_addresses_are_refused(
    database: Database, redis: ArqRedis, models: ModelServer, receiver: CallbackReceiver, host: str
) -> None:
    async with running_product(database, redis, models, settings={"callback_allow_private": False}) as product:
        run_id = await submitted(product, f"http://{host}:{receiver.port}/")

        run = await attempted(product, run_id)

    assert (run["status"], run["callback_status_code"]) == ("completed", None)
    assert run["callback_error"].startswith(f"{host} is not at a public address")
    assert receiver.received == []


async def test_a_network_of_the_operators_can_be_called(
    database: Database, redis: ArqRedis, models: ModelServer, receiver: CallbackReceiver
) -> None:
    settings = {"callback_allow_private": False, "reachable_networks": "127.0.0.1/32"}
    async with running_product(database, redis, models, settings=settings) as product:
        run_id = await submitted(product, receiver.url)

        assert (await receiver.called()).body["run_id"] == run_id


async def test_nobody_at_the_address_does_not_hurt_the_run(product: Product) -> None:
    async with CallbackReceiver() as gone:
        url = gone.url
    run_id = await submitted(product, url)

    run = await attempted(product, run_id)

    assert (run["status"], run["stop_reason"], run["callback_status_code"]) == ("completed", "end_turn", None)
    assert run["callback_error"].startswith("ConnectError")


@pytest.mark.parametrize(
    "url", ["ftp://example.com/", "example.com", "http://", "http://[::1", "http://a:99999/", "http://a b/", "/x", "http://a:6379/",
     "http://a:22/"],
)  # fmt: skip
async def test_what_is_no_url_is_refused_by_name(product: Product, url: str) -> None:
    agent = await product.agent()
    answer = await product.http.post(
        f"/v1/agents/{agent.id}/messages/async", json={"input": "Hello", "callback_url": url}
    )
    assert answer.status_code == 422
    assert "callback_url" in answer.json()["detail"]


async def test_two_api_processes_deliver_once(product: Product, receiver: CallbackReceiver) -> None:
    async with serving(product.context):
        runs = [await submitted(product, receiver.url) for _ in range(5)]

        await receiver.called(5)

        for run_id in runs:
            await attempted(product, run_id)
        assert sorted(callback.body["run_id"] for callback in receiver.received) == sorted(runs)


async def test_a_callback_survives_a_restart(
    database: Database, redis: ArqRedis, models: ModelServer, receiver: CallbackReceiver, clock: SettableClock
) -> None:
    receiver.answer(503)
    async with running_product(database, redis, models, clock=clock) as product:
        run_id = await submitted(product, receiver.url)
        await attempted(product, run_id)
    clock.advance(minutes=1)
    async with running_product(database, redis, models, clock=clock):
        assert (await receiver.called(2)).body["run_id"] == run_id
