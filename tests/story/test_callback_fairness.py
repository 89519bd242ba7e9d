"""Receivers that never answer cost their own project time, and nobody else."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from arq.connections import ArqRedis

from api.callbacks.delivery import OF_A_PROJECT, PLACES, REST, DeliveryPlaces
from shared.domain.ids import ProjectId
from shared.sql.engine import Database
from tests.kit.clocks import SettableClock
from tests.kit.model_server import ModelServer
from tests.kit.product.callback_receiver import CallbackReceiver
from tests.kit.product.in_process import Product, running_product
from tests.kit.stream_server import stream_server
from tests.kit.wait_until import wait_until


@dataclass
class SilentReceiver:
    """Takes connections and says nothing on them."""

    url: str = ""
    open: list[asyncio.StreamWriter] = field(default_factory=list[asyncio.StreamWriter])

    @classmethod
    @asynccontextmanager
    async def serving(cls) -> AsyncGenerator["SilentReceiver"]:
        receiver = cls()

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            receiver.open.append(writer)

        async with stream_server(serve) as port:
            receiver.url = f"http://127.0.0.1:{port}/"
            yield receiver


async def submit(product: Product, key: str, url: str, times: int = 1) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    body = {"name": "called-back", "model": "builtin/echo", "include_base_tools": False}
    agent = (await product.http.post("/v1/agents", json=body, headers=headers)).json()["id"]
    for _ in range(times):
        sent = await product.http.post(
            f"/v1/agents/{agent}/messages/async", json={"input": "hi", "callback_url": url}, headers=headers
        )
        assert sent.status_code == 200


async def test_one_projects_silent_receiver_held_up_everybodys_callbacks(
    database: Database, redis: ArqRedis, models: ModelServer
) -> None:
    settings = {"api_keys": "acme=one,other=two"}
    async with (
        running_product(database, redis, models, settings=settings) as product,
        CallbackReceiver() as receiver,
        SilentReceiver.serving() as silent,
    ):
        await submit(product, "one", silent.url, times=2 * PLACES)
        await wait_until(lambda: len(silent.open) == OF_A_PROJECT, description="the project's places to be full")
        await submit(product, "two", receiver.url)
        await receiver.called()
        assert len(silent.open) == OF_A_PROJECT, "none of them had ended"


def test_a_receiver_that_was_silent_rests_as_a_whole() -> None:
    clock = SettableClock()
    places = DeliveryPlaces(clock)
    places.was_silent("https://user:word@Silent.example:444/one?x=1")
    until = clock.now() + REST
    assert abs((places.rests_until("https://silent.example:444/two") or clock.now()) - until).total_seconds() < 1
    assert places.rests_until("https://silent.example/") is None, "another port is another receiver"
    clock.advance(seconds=REST.total_seconds() + 1)
    assert places.rests_until("https://silent.example:444/two") is None


async def test_a_project_has_most_of_the_places_and_never_all() -> None:
    places, acme = DeliveryPlaces(SettableClock()), ProjectId("acme")
    for _ in range(OF_A_PROJECT):
        assert places.full() == []
        places.enter(acme)
    assert places.full() == [acme]
    assert not places.are_all_in_use
    places.leave(acme)
    assert places.full() == []
