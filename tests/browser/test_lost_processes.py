"""A page that follows a run while what it follows is killed: it says so, goes on where it was, and misses nothing."""

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, expect

from tests.kit.browser.console_runs import start_run
from tests.kit.browser.viewer import Viewer, viewer_of
from tests.kit.free_ports import free_port
from tests.kit.product.processes import api_at, processes_in
from tests.kit.services.redis_losses import end_leases
from tests.kit.services.redis_servers import PrivateRedis, RedisService

pytestmark = [pytest.mark.slow]


def said(viewer: Viewer) -> Locator:
    """What the agent said and what is not void."""
    return viewer.page.locator(".item-text:not(.void) .said")


def connection(viewer: Viewer) -> Locator:
    return viewer.page.locator(".connection [data-state]")


async def expect_every_number_once(viewer: Viewer) -> None:
    """The model counts to 200; a step that came again, or an answer that was continued, says no number twice."""
    await expect(connection(viewer)).to_have_text("The stream is over")
    numbers = [int(word) for text in await said(viewer).all_inner_texts() for word in text.split() if word.isdigit()]
    assert numbers == list(range(1, numbers[-1] + 1))


async def cancelled(port: int, run_id: str) -> None:
    async with api_at(port) as http:
        await http.post(f"/v1/runs/{run_id}/cancel", json={"wait": 30})


async def test_the_server_is_killed_and_comes_back(tmp_path: Path, browser: Browser) -> None:
    port = free_port()
    async with processes_in(tmp_path, {}) as processes:
        server = await processes.dev(port)
        async with api_at(port) as http:
            run = await start_run(http, "count", model="builtin/slow")
        async with viewer_of(browser, f"http://127.0.0.1:{port}") as viewer:
            await viewer.open(f"/runs/{run['id']}")
            await expect(said(viewer)).to_contain_text(" 3 ")
            await server.kill()
            await expect(connection(viewer)).to_have_text("Connection lost, trying again")
            await processes.dev(port)
            await expect(connection(viewer)).to_have_text("Live")
            await expect(said(viewer)).to_contain_text(" 30 ")
            await cancelled(port, run["id"])
            await expect_every_number_once(viewer)
            await expect(viewer.page.locator(".connection")).to_contain_text("taken up again after 1 lost connection")
            viewer.forgive(
                "ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE"
            )


async def test_the_worker_is_killed_and_another_one_goes_on(
    tmp_path: Path, postgres_url: str, private_redis: PrivateRedis, browser: Browser
) -> None:
    port = free_port()
    environment = {
        "HOLDFAST_DATABASE_URL": postgres_url,
        "HOLDFAST_REDIS_URL": private_redis.url,
        "HOLDFAST_BUILTIN_MODELS": "true",
    }
    async with processes_in(tmp_path, environment) as processes:
        worker, _ = await asyncio.gather(processes.worker(), processes.api(port))
        async with api_at(port) as http:
            run = await start_run(http, "count", model="builtin/slow")
        async with viewer_of(browser, f"http://127.0.0.1:{port}") as viewer:
            await viewer.open(f"/runs/{run['id']}")
            await expect(said(viewer)).to_contain_text(" 3 ")
            await worker.kill()
            here = RedisService(private_redis.url)  # the fixture's clients belong to another event loop
            await end_leases(here.client())
            await here.close()
            await processes.worker()
            await expect(viewer.page.locator(".item-restarted, .item-continued").first).to_be_visible()
            await viewer.page.reload()
            await expect(viewer.page.locator(".item-restarted, .item-continued").first).to_be_visible()
            await expect(viewer.page.locator(".waterfall [data-span=lost]").first).to_be_visible()
            await expect(said(viewer).last).to_contain_text(" 30 ")
            await cancelled(port, run["id"])
            await expect_every_number_once(viewer)
