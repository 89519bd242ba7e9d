"""What a person does to a run from its page while answers come late, or not at all."""

import asyncio
import json
import re
from collections import Counter
from typing import Any

from playwright.async_api import Request, Route, expect

from tests.kit.browser.console_runs import start_run
from tests.kit.browser.viewer import Viewer
from tests.kit.product import Product
from tests.kit.product.waiting_calls import waiting_calls

INJECTS = "**/v1/runs/*/inject"


async def count_slowly(viewer: Viewer, product: Product) -> dict[str, Any]:
    """A run that takes long, and its page."""
    run = await start_run(product.http, "count", model="builtin/slow")
    await viewer.open(f"/runs/{run['id']}")
    await expect(viewer.page.locator(".page-head .status")).to_have_text("running")
    return run


async def stop(product: Product, run: dict[str, Any]) -> None:
    await product.http.post(f"/v1/runs/{run['id']}/cancel", json={"wait": 30})


async def test_a_message_whose_answer_was_lost_is_not_injected_twice(viewer: Viewer, product: Product) -> None:
    answers: list[dict[str, Any]] = []

    async def lose_the_first_answer(route: Route) -> None:
        answer = await route.fetch()
        answers.append(await answer.json())
        if len(answers) == 1:
            await route.abort()
        else:
            await route.fulfill(response=answer)

    # Plain http under another name than localhost has no such function.
    await viewer.page.add_init_script("delete Crypto.prototype.randomUUID")
    run = await count_slowly(viewer, product)
    await viewer.page.route(INJECTS, lose_the_first_answer)
    text = viewer.page.get_by_label("Tell the run something")
    await text.fill("And one more thing")
    await viewer.page.get_by_role("button", name="Inject").click()
    await expect(viewer.page.get_by_role("alert")).to_contain_text("The server does not answer")
    await expect(text).to_have_value("And one more thing")
    await viewer.page.get_by_role("button", name="Inject").click()
    await expect(viewer.page.get_by_text("Injected: the run's next step reads it.")).to_be_visible()

    # The same words once more are another message.
    await text.fill("And one more thing")
    await viewer.page.get_by_role("button", name="Inject").click()
    await expect(text).to_have_value("")
    assert [answer["is_new"] for answer in answers] == [True, False, True]
    await stop(product, run)
    viewer.forgive("ERR_FAILED")


async def test_a_message_that_is_on_its_way_cannot_be_injected_again(viewer: Viewer, product: Product) -> None:
    is_on_its_way, may_go_on = asyncio.Event(), asyncio.Event()
    sent: list[Request] = []

    async def hold(route: Route, request: Request) -> None:
        sent.append(request)
        is_on_its_way.set()
        await may_go_on.wait()
        await route.continue_()

    run = await count_slowly(viewer, product)
    await viewer.page.route(INJECTS, hold)
    text = viewer.page.get_by_label("Tell the run something")
    await text.fill("Once")
    await viewer.page.get_by_role("button", name="Inject").click()
    await is_on_its_way.wait()
    button = viewer.page.get_by_role("button", name="Injecting…")
    await expect(button).to_be_disabled()
    await button.dispatch_event("click")
    await text.fill("The next one")
    may_go_on.set()
    await expect(viewer.page.get_by_text("Injected: the run's next step reads it.")).to_be_visible()
    await expect(text).to_have_value("The next one")
    assert len(sent) == 1
    await stop(product, run)


async def test_the_receipt_of_a_cancel_says_when_the_run_has_stopped(viewer: Viewer, product: Product) -> None:
    """It said `cancelling` for as long as the page was open when the run had not stopped before the answer."""

    async def do_not_wait(route: Route, request: Request) -> None:
        body: dict[str, Any] = json.loads(request.post_data or "{}")
        await route.continue_(post_data={**body, "wait": 0})

    run = await count_slowly(viewer, product)
    await viewer.page.route("**/v1/runs/*/cancel", do_not_wait)
    await viewer.page.get_by_role("button", name="Cancel this run").click()
    dialog = viewer.page.get_by_role("dialog")
    await dialog.get_by_label("How").select_option("after_step")
    await dialog.get_by_role("button", name="Cancel the run").click()
    receipt = viewer.page.locator(".receipt")
    now = receipt.locator("dd").first
    await expect(now).to_have_text("cancelling")
    await viewer.page.reload()
    await expect(now).to_have_text("cancelling")
    await viewer.page.get_by_role("button", name="Cancel this run").click()
    await dialog.get_by_role("button", name="Cancel the run").click()
    await expect(now).to_have_text("cancelled")
    await expect(viewer.page.locator(".page-head .status")).to_have_text("cancelled")
    ended = await product.run(run["id"])
    await expect(receipt.locator("dt", has_text="Stopped").locator("+ dd time")).to_have_attribute(
        "datetime", f"{ended['completed_at'][:23]}Z"
    )
    await expect(receipt.locator("dt", has_text="Took").locator("+ dd")).to_have_text(re.compile(r"^\d[\d.]* m?s$"))


async def test_a_run_that_is_cancelled_while_it_waits_for_a_person_comes_to_rest(
    viewer: Viewer, product: Product
) -> None:
    """The page went on asking for the approval, and the time that the person took went on growing."""
    page = viewer.page
    await page.clock.install()
    asked = await waiting_calls(product, "moon")
    await viewer.open(f"/runs/{asked.run_id}")
    await expect(page.get_by_role("button", name="Approve")).to_be_visible()
    await product.http.post(f"/v1/runs/{asked.run_id}/cancel", json={"wait": 30})
    await expect(page.locator(".page-head .status")).to_have_text("cancelled")
    await expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    await expect(page.locator(".item-call summary .status")).to_have_text("no result")
    await expect(page.locator(".receipt dd").first).to_have_text("cancelled")

    waited = page.locator(".waterfall [data-span=person] .figure")
    before = await waited.inner_text()
    asks: list[str] = []
    page.on("request", lambda request: asks.append(request.url))
    await page.clock.run_for(60_000)
    assert await waited.inner_text() == before
    # A change from before that the page learns of late is one more request of each kind.
    assert max(Counter(asks).values(), default=0) <= 1
