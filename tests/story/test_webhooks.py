"""Webhook endpoints: a project's receivers hear how its background responses end, and OpenAI's SDK believes what they
are sent."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import sqlalchemy as sa
from arq.connections import ArqRedis
from openai import AsyncOpenAI, BadRequestError, InvalidWebhookSignatureError, NotFoundError

from api.openai.response_object import DIALECT, response_id
from shared.domain.ids import RunId
from shared.domain.tools import ClientTool
from shared.secret_keys import SecretKeys
from shared.sql.engine import Database
from shared.sql.run_tables import webhook_deliveries
from shared.sql.runs.webhooks import MOST_ENDPOINTS, SECRET
from shared.sql.tables import webhook_endpoints
from tests.kit.clocks import SettableClock
from tests.kit.model_server import Call, ModelServer, Turn
from tests.kit.product import Product, running_product
from tests.kit.product.callback_receiver import CallbackReceiver, ReceivedCallback
from tests.kit.product.chat_client import openai_client
from tests.kit.runs.item_runs import submit_run
from tests.kit.tools import ROLL_DICE
from tests.kit.wait_until import wait_until

EVERY: Any = ["response.completed", "response.failed", "response.cancelled", "response.incomplete"]
SENSOR = ClientTool(name="sensor", description="Reads.", parameters={"type": "object", "properties": {}})
KEY = f"new:{'B' * 43}="


@pytest.fixture
async def openai(product: Product) -> AsyncGenerator[AsyncOpenAI]:
    """The SDK, unmodified."""
    async with openai_client(f"{product.base_url}/openai", product.key) as client:
        yield client


@pytest.fixture
async def receiver() -> AsyncGenerator[CallbackReceiver]:
    """A receiver of the project's."""
    async with CallbackReceiver() as server:
        yield server


async def response(product: Product, agent_id: str = "", **options: Any) -> str:
    """A background response that a worker will finish; the id of its run."""
    agent_id = agent_id or (await product.agent()).id
    return await submit_run(product, agent_id, dialect=DIALECT, **options)


def unwrapped(openai: AsyncOpenAI, received: ReceivedCallback, secret: str) -> Any:
    """What the SDK makes of a request. Raises `InvalidWebhookSignatureError`."""
    return openai.webhooks.unwrap(received.content, received.headers, secret=secret)


async def test_the_sdk_believes_what_an_endpoint_hears_of_a_response(
    product: Product, openai: AsyncOpenAI, receiver: CallbackReceiver
) -> None:
    made = await openai.webhooks.create(name="mine", url=receiver.url, event_types=EVERY)
    product.models.say("Good morning.")
    run_id = await response(product)

    received = await receiver.called()

    event = unwrapped(openai, received, made.signing_secret)
    run = await product.ended(run_id)
    assert (event.type, event.object, event.data.id) == ("response.completed", "event", response_id(RunId(run_id)))
    assert event.id.startswith("evt_")
    assert abs(event.created_at - int(received.headers["webhook-timestamp"])) < 300
    assert received.headers["webhook-id"].startswith("wh_")
    assert run["callback_url"] is None
    assert set(received.body) == {"id", "object", "created_at", "type", "data"}
    with pytest.raises(InvalidWebhookSignatureError):
        unwrapped(openai, received, "whsec_AAAA")


async def test_two_endpoints_hear_of_one_event_each_with_its_own_secret(
    product: Product, openai: AsyncOpenAI, receiver: CallbackReceiver
) -> None:
    made = [await openai.webhooks.create(name=name, url=receiver.url, event_types=EVERY) for name in ("one", "two")]
    await response(product)
    await receiver.called(2)

    accepted = [
        [secret for secret in (one.signing_secret for one in made) if _is_accepted(openai, each, secret)]
        for each in receiver.received
    ]
    assert sorted(map(len, accepted)) == [1, 1]
    assert accepted[0] != accepted[1]
    assert len({each.headers["webhook-id"] for each in receiver.received}) == 2
    assert len({each.body["id"] for each in receiver.received}) == 1


def _is_accepted(openai: AsyncOpenAI, received: ReceivedCallback, secret: str) -> bool:
    try:
        unwrapped(openai, received, secret)
    except InvalidWebhookSignatureError:
        return False
    return True


@pytest.mark.parametrize(("keep", "count"), [(True, 2), (False, 1)])
async def test_the_former_secret_signs_during_a_rotation_that_keeps_it(
    product: Product, openai: AsyncOpenAI, receiver: CallbackReceiver, keep: bool, count: int
) -> None:
    made = await openai.webhooks.create(name="mine", url=receiver.url, event_types=EVERY)
    rotated = await openai.webhooks.rotate_secret(made.id, keep_old_secret_active_for_24_hours=keep)
    assert rotated.signing_secret != made.signing_secret
    assert rotated.signing_secret_hint == f"whsec_…{rotated.signing_secret[-4:]}"
    await response(product)

    received = await receiver.called()

    assert len(received.headers["webhook-signature"].split()) == count
    assert _is_accepted(openai, received, rotated.signing_secret)
    assert _is_accepted(openai, received, made.signing_secret) is keep


async def _failed(product: Product) -> None:
    product.models.fail("auth")
    await response(product)


async def _cut_off(product: Product) -> None:
    tool = await product.tool(ROLL_DICE)
    agent = await product.agent(tools=[tool])
    product.models.call("roll_dice", sides=6)
    await response(product, agent.id, max_steps=1)


async def _parked(product: Product) -> None:
    product.models.play(Turn(calls=[Call("sensor", {})]))
    await response(product, client_tools=[SENSOR])


async def _cancelled(product: Product) -> None:
    product.models.play(Turn(text="I begin.", silent_after=1))
    run_id = await response(product)
    await wait_until(lambda: product.models.requests, description="the model to be asked")
    assert (await product.http.post(f"/v1/runs/{run_id}/cancel")).status_code == 200


@pytest.mark.parametrize(
    ("submit", "said"),
    [(_failed, "failed"), (_cut_off, "incomplete"), (_parked, "completed"), (_cancelled, "cancelled")],
)
async def test_each_end_has_its_event(
    product: Product, openai: AsyncOpenAI, receiver: CallbackReceiver, submit: Any, said: str
) -> None:
    made = await openai.webhooks.create(name="mine", url=receiver.url, event_types=EVERY)
    await submit(product)

    event = unwrapped(openai, await receiver.called(), made.signing_secret)

    assert event.type == f"response.{said}"


async def test_other_runs_and_other_events_are_not_heard_of(
    product: Product, openai: AsyncOpenAI, receiver: CallbackReceiver
) -> None:
    await openai.webhooks.create(name="mine", url=receiver.url, event_types=["response.completed"])
    agent = await product.agent()
    await product.ended((await product.client.agents.messages.create_async(agent_id=agent.id, input="Hi")).id)
    product.models.fail("auth")
    await product.ended(await response(product))
    last = await response(product)

    received = await receiver.called()

    assert received.body["data"]["id"] == response_id(RunId(last))
    assert len(receiver.received) == 1


async def test_a_receiver_that_fails_is_told_the_same_again(
    database: Database, redis: ArqRedis, models: ModelServer, receiver: CallbackReceiver
) -> None:
    clock = SettableClock()
    receiver.answer(500)
    async with running_product(database, redis, models, clock=clock) as product:
        async with openai_client(f"{product.base_url}/openai") as openai:
            await openai.webhooks.create(name="mine", url=receiver.url, event_types=EVERY)
        await response(product)
        first = await receiver.called()

        async def is_recorded() -> bool:
            async with database.read() as connection:
                return (await connection.execute(sa.select(webhook_deliveries.c.last_status_code))).scalar_one() == 500

        await wait_until(is_recorded, description="the failure to be recorded")
        clock.advance(seconds=7)
        second = await receiver.called(2)
    assert second.content == first.content
    assert second.headers["webhook-id"] == first.headers["webhook-id"]
    assert second.headers["webhook-timestamp"] > first.headers["webhook-timestamp"]


async def test_endpoints_are_made_changed_listed_and_deleted(
    product: Product, openai: AsyncOpenAI, receiver: CallbackReceiver
) -> None:
    made = [await openai.webhooks.create(name=f"n{number}", url=receiver.url, event_types=EVERY) for number in range(3)]
    first = made[0]
    assert (first.object, first.name, first.url, first.event_types) == (
        "webhook_endpoint", "n0", receiver.url, EVERY,
    )  # fmt: skip
    assert [one.id async for one in openai.webhooks.list(limit=2)] == [one.id for one in reversed(made)]
    assert (await openai.webhooks.list(limit=2)).has_more

    changed = await openai.webhooks.update(first.id, name="new", event_types=["response.failed", "response.failed"])
    assert (changed.name, changed.event_types, changed.url) == ("new", ["response.failed"], receiver.url)
    assert await openai.webhooks.retrieve(first.id) == changed
    assert "signing_secret" not in changed.to_dict()

    deleted = await openai.webhooks.delete(first.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (first.id, "webhook_endpoint.deleted", True)
    with pytest.raises(NotFoundError) as refused:
        await openai.webhooks.retrieve(first.id)
    assert refused.value.code is None
    assert (await openai.webhooks.event_types.list()).data == EVERY


async def test_a_sample_is_sent_at_once(product: Product, openai: AsyncOpenAI, receiver: CallbackReceiver) -> None:
    made = await openai.webhooks.create(name="mine", url=receiver.url, event_types=["response.completed"])
    receiver.answer(418)

    tested = await openai.webhooks.test(made.id, event_type="response.failed")

    assert (tested.object, tested.webhook_endpoint_id, tested.event_type) == (
        "webhook_endpoint.test", made.id, "response.failed",
    )  # fmt: skip
    assert (tested.status_code, tested.success) == (418, True)
    event = unwrapped(openai, await receiver.called(), made.signing_secret)
    assert event.type == "response.failed"


async def test_a_sample_that_nobody_takes_says_so(product: Product, openai: AsyncOpenAI) -> None:
    async with CallbackReceiver() as gone:
        url = gone.url
    made = await openai.webhooks.create(name="mine", url=url, event_types=EVERY)
    with pytest.raises(BadRequestError, match="cannot be reached"):
        await openai.webhooks.test(made.id, event_type="response.failed")


WRONG_URLS = [
    "ftp://example.com/",
    "example.com",
    "http://",
    "http://[::1",
    "http://a b/",
    "http://a:6379/",
    "http://a:22/",
]


@pytest.mark.parametrize("url", WRONG_URLS)
async def test_what_is_no_url_of_a_web_server_is_refused_by_name(openai: AsyncOpenAI, url: str) -> None:
    made = await openai.webhooks.create(name="mine", url="https://example.com/", event_types=EVERY)
    for refused in (
        openai.webhooks.create(name="mine", url=url, event_types=EVERY),
        openai.webhooks.update(made.id, url=url),
    ):
        with pytest.raises(BadRequestError) as error:
            await refused
        assert (error.value.param, error.value.type) == ("url", "invalid_request_error")


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"event_types": []}, "event_types"),
        ({"event_types": ["batch.completed"]}, "event_types[0]"),
        ({"name": ""}, "name"),
        ({"name": "a\x00b"}, "name"),
        ({"url": "https://example.com/" + "a" * 2000}, "url"),
    ],
)
async def test_a_body_that_is_wrong_is_refused_by_name(product: Product, wrong: dict[str, Any], param: str) -> None:
    body = {"name": "mine", "url": "https://example.com/", "event_types": EVERY, **wrong}
    answer = await product.http.post("/openai/v1/webhook_endpoints", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "[::1]", "169.254.169.254", "[::ffff:10.0.0.1]"])
async def test_an_endpoint_cannot_make_the_server_ask_its_own_network(
    database: Database, redis: ArqRedis, models: ModelServer, receiver: CallbackReceiver, host: str
) -> None:
    async with (
        running_product(database, redis, models, settings={"callback_allow_private": False}) as product,
        openai_client(f"{product.base_url}/openai") as openai,
    ):
        url = f"http://{host}:{receiver.port}/"
        made = await openai.webhooks.create(name="mine", url=url, event_types=EVERY)
        with pytest.raises(BadRequestError, match="not at a public address"):
            await openai.webhooks.test(made.id, event_type="response.completed")
        await response(product)

        async def given_up() -> str | None:
            columns = webhook_deliveries.c
            query = sa.select(columns.last_error).where(columns.given_up_at.is_not(None))
            async with database.read() as connection:
                return (await connection.execute(query)).scalar_one_or_none()

        assert "is not at a public address" in await wait_until(given_up, description="the event to be given up")
    assert receiver.received == []


async def test_a_redirect_is_not_followed(product: Product, openai: AsyncOpenAI, receiver: CallbackReceiver) -> None:
    receiver.answer_headers["location"] = f"http://127.0.0.1:{receiver.port}/elsewhere"
    receiver.answer(307)
    made = await openai.webhooks.create(name="mine", url=receiver.url, event_types=EVERY)
    assert (await openai.webhooks.test(made.id, event_type="response.completed")).status_code == 307
    assert [one.path for one in receiver.received] == ["/called?by=holdfast"]


async def test_a_project_sees_and_hears_nothing_of_another(
    database: Database, redis: ArqRedis, models: ModelServer, receiver: CallbackReceiver
) -> None:
    async with (
        running_product(database, redis, models, settings={"api_keys": "default=one,other=two"}) as product,
        openai_client(f"{product.base_url}/openai", "one") as ours,
        openai_client(f"{product.base_url}/openai", "two") as theirs,
    ):
        product.http.headers["Authorization"] = "Bearer one"
        product.client.api_key = "one"
        mine = await ours.webhooks.create(name="mine", url=receiver.url, event_types=EVERY)
        made = await theirs.webhooks.create(name="theirs", url=f"{receiver.url}&theirs", event_types=EVERY)
        assert [one.id async for one in ours.webhooks.list()] == [mine.id]
        for request in (
            ours.webhooks.retrieve(made.id),
            ours.webhooks.update(made.id, name="ours"),
            ours.webhooks.rotate_secret(made.id),
            ours.webhooks.test(made.id, event_type="response.completed"),
            ours.webhooks.delete(made.id),
        ):
            with pytest.raises(NotFoundError):
                await request
        await response(product)
        await receiver.called()
        assert [one.path for one in receiver.received] == ["/called?by=holdfast"]


async def test_a_project_has_so_many_endpoints_and_no_more(openai: AsyncOpenAI) -> None:
    for _ in range(MOST_ENDPOINTS):
        await openai.webhooks.create(name="mine", url="https://example.com/", event_types=EVERY)
    with pytest.raises(BadRequestError, match=f"{MOST_ENDPOINTS} webhook endpoints"):
        await openai.webhooks.create(name="mine", url="https://example.com/", event_types=EVERY)


async def test_secrets_are_stored_encrypted(
    database: Database, redis: ArqRedis, models: ModelServer, receiver: CallbackReceiver
) -> None:
    async with (
        running_product(database, redis, models, settings={"encryption_key": KEY}) as product,
        openai_client(f"{product.base_url}/openai") as openai,
    ):
        made = await openai.webhooks.create(name="mine", url=receiver.url, event_types=EVERY)
        rotated = await openai.webhooks.rotate_secret(made.id, keep_old_secret_active_for_24_hours=True)
        async with database.read() as connection:
            [row] = await connection.execute(sa.select(webhook_endpoints))
        for secret in (made.signing_secret, rotated.signing_secret):
            assert secret not in repr(row)
            assert secret.removeprefix("whsec_") not in repr(row)
        await response(product)
        received = await receiver.called()
        assert _is_accepted(openai, received, made.signing_secret)
        assert _is_accepted(openai, received, rotated.signing_secret)


async def test_an_endpoint_whose_secret_cannot_be_read_gets_a_new_one(
    database: Database, product: Product, openai: AsyncOpenAI, receiver: CallbackReceiver
) -> None:
    made = await openai.webhooks.create(name="mine", url=receiver.url, event_types=EVERY)
    of_a_lost_key = SecretKeys.parse(KEY, "HERE").seal(made.id, SECRET, made.signing_secret)
    async with database.write() as connection:
        await connection.execute(sa.update(webhook_endpoints).values(secret=of_a_lost_key))
    with pytest.raises(BadRequestError, match="rotate the endpoint's secret"):
        await openai.webhooks.test(made.id, event_type="response.completed")

    rotated = await openai.webhooks.rotate_secret(made.id, keep_old_secret_active_for_24_hours=True)
    await openai.webhooks.test(made.id, event_type="response.completed")

    received = await receiver.called()
    assert _is_accepted(openai, received, rotated.signing_secret)
    assert len(received.headers["webhook-signature"].split()) == 1


async def test_a_deleted_endpoint_hears_nothing_more(
    product: Product, openai: AsyncOpenAI, receiver: CallbackReceiver
) -> None:
    gone = await openai.webhooks.create(name="gone", url=f"{receiver.url}&gone", event_types=EVERY)
    await openai.webhooks.create(name="mine", url=receiver.url, event_types=EVERY)
    await openai.webhooks.delete(gone.id)
    await response(product)
    assert (await receiver.called()).path == "/called?by=holdfast"
    assert len(receiver.received) == 1
