"""The page of a run that waits for a worker: what it was asked is there from the first moment."""

from typing import Any

import pytest
from playwright.async_api import Route, expect

from tests.kit.browser.console_runs import start_run
from tests.kit.browser.viewer import Viewer
from tests.kit.product import Product

ASKED = "[data-kind=asked]"


@pytest.fixture(scope="module")
def with_worker() -> bool:
    """Nobody executes these runs."""
    return False


async def submit(product: Product, *messages: tuple[str, str]) -> dict[str, Any]:
    """A run of a new agent with messages of these roles."""
    agent = await product.agent(model="builtin/echo")
    sent = {"messages": [{"role": role, "content": text} for role, text in messages]}
    return (await product.http.post(f"/v1/agents/{agent.id}/messages/async", json=sent)).json()


async def test_all_that_a_queued_run_was_asked_is_shown_before_it_begins(viewer: Viewer, product: Product) -> None:
    """Nothing was shown until a worker had begun, and then the first message alone."""
    run = await submit(product, ("system", "It is Monday."), ("user", "First <b>this</b>"), ("user", "then that"))
    await viewer.open(f"/runs/{run['id']}")
    await expect(viewer.page.locator(f"{ASKED} .said")).to_have_text(
        ["It is Monday.", "First <b>this</b>", "then that"]
    )
    await expect(viewer.page.locator(f"{ASKED} .speaker")).to_contain_text(["System", "User", "User"])
    await expect(viewer.page.locator(".page-head .status")).to_have_text("created")
    await viewer.expect_accessible()


async def test_an_input_that_cannot_be_fetched_is_said_and_asked_for_again(viewer: Viewer, product: Product) -> None:
    async def refuse(route: Route) -> None:
        await route.fulfill(status=503, json={"detail": "the database does not answer; try again"})

    run = await start_run(product.http, "Well?")
    await viewer.page.route("**/v1/runs/*/messages?**", refuse)
    await viewer.open(f"/runs/{run['id']}")
    alert = viewer.page.get_by_role("alert")
    await expect(alert).to_contain_text("the database does not answer")
    await expect(viewer.page.get_by_text("The run's input could not be fetched.")).to_be_visible()
    await viewer.page.unroute_all()
    await alert.get_by_role("button", name="Try again").click()
    await expect(viewer.page.locator(f"{ASKED} .said")).to_have_text("Well?")
    await expect(alert).to_have_count(0)
    viewer.forgive("503")
