"""The pages of runs and of approvals follow what happens, and ask nothing by the clock."""

import json
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Page, expect

from tests.kit.browser.run_streams import run_streams_of
from tests.kit.browser.viewer import Viewer, viewer_of
from tests.kit.free_ports import free_port
from tests.kit.product import Product
from tests.kit.product.processes import api_at, processes_in
from tests.kit.product.waiting_calls import waiting_calls
from tests.kit.tools import LAUNCH

APPROVE = "Approve launch"
CUT = "ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE"


async def expect_decided(page: Page, text: str, *, still_open: int) -> None:
    """The page shows a decision, and so many calls that can be decided."""
    await expect(page.get_by_text(text)).to_be_visible()
    await expect(page.get_by_role("button", name=APPROVE)).to_have_count(still_open)


async def test_one_of_two_calls_that_was_decided_elsewhere_is_shown_so_on_every_page(
    viewer: Viewer, product: Product, browser: Browser
) -> None:
    """No stream said so before the last of them was decided: the pages found it by asking every two seconds."""
    asked = await waiting_calls(product, "moon", "mars")
    product.models.say("One of them is on its way.")
    async with viewer_of(browser, product.base_url) as talk, viewer_of(browser, product.base_url) as inbox:
        await viewer.open(f"/runs/{asked.run_id}")
        await talk.open(f"/agents/{asked.agent_id}")
        await inbox.open(f"/approvals?agent={asked.agent_id}")
        for page in (viewer.page, talk.page, inbox.page):
            await expect(page.get_by_role("button", name=APPROVE)).to_have_count(2)
        await asked.decide(0, decided_by="ada")
        for page in (viewer.page, talk.page):
            await expect_decided(page, "Approved by ada", still_open=1)
        await expect(inbox.page.get_by_role("button", name=APPROVE)).to_have_count(1)

        await asked.decide(1, "deny", reason="Too far.", decided_by="bob")
        for page in (viewer.page, talk.page):
            await expect_decided(page, "Denied by bob: Too far.", still_open=0)
            await expect(page.get_by_text("Approved by ada")).to_be_visible()
            await expect(page.locator(".item-text .said")).to_have_text("One of them is on its way.")
        await expect(viewer.page.locator(".page-head .status")).to_have_text("completed")
        await expect(inbox.page.get_by_role("heading", name="Nothing of this agent waits")).to_be_visible()

    await viewer.page.reload()
    await expect_decided(viewer.page, "Approved by ada", still_open=0)
    await expect(viewer.page.get_by_text("Denied by bob: Too far.")).to_be_visible()


async def test_a_run_that_was_cancelled_while_it_waited_says_that_nobody_decided(
    viewer: Viewer, product: Product
) -> None:
    asked = await waiting_calls(product, "moon")
    await viewer.open(f"/runs/{asked.run_id}")
    await expect(viewer.page.get_by_role("button", name=APPROVE)).to_have_count(1)
    await product.http.post(f"/v1/runs/{asked.run_id}/cancel", json={"wait": 30})
    for _ in range(2):
        await expect_decided(viewer.page, "Not decided: the run was cancelled", still_open=0)
        await viewer.page.reload()


async def test_a_run_that_was_decided_is_listed_as_completed(viewer: Viewer, product: Product) -> None:
    """It was listed as one that needs approval, for ever."""
    asked = await waiting_calls(product, "moon")
    product.models.say("Done.")
    await viewer.open(f"/runs?agent={asked.agent_id}")
    await expect(viewer.page.locator("tbody .status")).to_have_text(["needs approval"])
    await asked.decide()
    await expect(viewer.page.locator("tbody .status")).to_have_text(["completed", "completed"])


@pytest.mark.parametrize("place", ["/runs/{run}", "/approvals?agent={agent}", "/agents/{agent}", "/runs?agent={agent}"])
async def test_pages_asked_every_two_seconds_while_a_run_waited(viewer: Viewer, product: Product, place: str) -> None:
    asked, page = await waiting_calls(product, "moon"), viewer.page
    await page.clock.install()
    await viewer.open(place.format(run=asked.run_id, agent=asked.agent_id))
    shown = page.locator("tbody .status") if place.startswith("/runs?") else page.get_by_role("button", name=APPROVE)
    await expect(shown).to_have_count(1)
    # The definition of the agent is asked for every ten seconds: no stream tells of that.
    defined = {f"/v1/agents/{asked.agent_id}", f"/v1/agents/{asked.agent_id}/groups"}
    await page.clock.run_for(1_000)
    requested: list[str] = []
    page.on("request", lambda request: requested.append(urlsplit(request.url).path))
    await page.clock.run_for(30_000)
    await page.evaluate("fetch('/v1/health/')")
    # Changes from before that the page learns of late are one more request each: the call that waits, and the run.
    found = Counter(path for path in requested if path not in defined)
    assert found.pop("/v1/health/") == 1
    assert max(found.values(), default=0) <= 2


async def test_a_page_with_children_has_one_stream_of_changes(viewer: Viewer, product: Product) -> None:
    """A browser opens six connections to a server for all its tabs."""
    ids = list[str]()
    for name, model, tools in (("caller", "builtin/scripted", ["run_agent"]), ("counter", "builtin/slow", [])):
        body = {"name": name, "model": model, "include_base_tools": False, "tools": tools}
        ids.append((await product.http.post("/v1/agents", json=body)).json()["id"])
    call = {"name": "run_agent", "arguments": {"agent": "counter", "task": "count"}}
    script = json.dumps({"turns": [{"calls": [call]}, {"text": "It has counted."}]})
    sent = {"messages": [{"role": "user", "content": script}]}
    run = (await product.http.post(f"/v1/agents/{ids[0]}/messages/async", json=sent)).json()
    changes = run_streams_of(viewer.page, "/events")
    await viewer.open(f"/runs/{run['id']}")
    children = viewer.page.get_by_role("region", name="Runs of other agents")
    await expect(children).to_contain_text("running")
    assert [urlsplit(request.url).path for request in changes.open] == ["/v1/events"]

    child = (await product.http.get("/v1/runs", params={"parent_run_id": run["id"]})).json()[0]
    await product.http.post(f"/v1/runs/{child['id']}/cancel", json={"wait": 30})
    await expect(children).to_contain_text("cancelled")
    await expect(viewer.page.locator(".page-head .status")).to_have_text("completed")


@pytest.mark.slow
async def test_a_decision_that_was_made_while_the_page_had_no_connection_is_shown(
    tmp_path: Path, browser: Browser
) -> None:
    port = free_port()
    async with processes_in(tmp_path, {}) as processes:
        server = await processes.dev(port)
        async with api_at(port) as http:
            wanted = {"source_code": LAUNCH, "default_requires_approval": True}
            tool = (await http.post("/v1/tools/", json=wanted)).json()["id"]
            wanted = {"model": "builtin/scripted", "name": "pilot", "tool_ids": [tool]}
            agent = (await http.post("/v1/agents/", json=wanted)).json()["id"]
            call = {"name": "launch", "arguments": {"target": "moon"}}
            script = json.dumps({"turns": [{"calls": [call]}, {"text": "Up."}]})
            run = (await http.post(f"/v1/agents/{agent}/messages/async", json={"input": script})).json()
            async with viewer_of(browser, f"http://127.0.0.1:{port}") as viewer:
                await viewer.open(f"/runs/{run['id']}")
                await expect(viewer.page.get_by_role("button", name=APPROVE)).to_have_count(1)
                await server.kill()
                await viewer.hide()
                await processes.dev(port)
                [asked] = (await http.get("/v1/approvals")).json()
                await http.post(f"/v1/approvals/{asked['id']}", json={"decision": "approve", "decided_by": "ada"})
                await viewer.show()
                await expect_decided(viewer.page, "Approved by ada", still_open=0)
                await expect(viewer.page.locator(".item-text .said")).to_have_text("Up.")
                viewer.forgive(CUT)
