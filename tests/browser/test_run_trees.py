"""The page of a run that has started runs of other agents, and theirs."""

import json

from playwright.async_api import expect

from tests.kit.browser.viewer import Viewer
from tests.kit.product import Product


async def test_a_run_and_the_run_that_it_has_started_lead_to_each_other(viewer: Viewer, product: Product) -> None:
    ids = list[str]()
    for name, tools in (("editor", ["run_agent"]), ("writer", [])):
        body = {"name": name, "model": "builtin/scripted", "include_base_tools": False, "tools": tools}
        ids.append((await product.http.post("/v1/agents", json=body)).json()["id"])
    task = json.dumps({"turns": [{"text": "Chapter one."}]})
    call = {"name": "run_agent", "arguments": {"agent": "writer", "task": task}}
    script = json.dumps({"turns": [{"calls": [call]}, {"text": "It is written."}]})
    sent = {"messages": [{"role": "user", "content": script}]}
    run = (await product.http.post(f"/v1/agents/{ids[0]}/messages/async", json=sent)).json()
    await product.ended(run["id"])
    await viewer.open(f"/runs/{run['id']}")
    children = viewer.page.get_by_role("region", name="Runs of other agents")
    await expect(children).to_contain_text("writer")
    await expect(children).to_contain_text("completed")
    await children.get_by_role("link").last.click()
    await expect(viewer.page.locator("main > .facts")).to_contain_text("Started by")
    await viewer.page.locator(f"main > .facts a[href='#/runs/{run['id']}']").click()
    await expect(children).to_contain_text("writer")
