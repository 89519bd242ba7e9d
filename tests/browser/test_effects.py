"""A run's effects on its page: what was started, and a person's word about a call whose result is lost."""

from playwright.async_api import expect

from tests.kit.browser.console_runs import say
from tests.kit.browser.viewer import Viewer
from tests.kit.model_server import Call, Turn
from tests.kit.product import Product

SLEEP = 'def nap() -> str:\n    """Sleep."""\n    import time\n    time.sleep(600)\n    return "awake"\n'


async def test_a_person_settles_a_lost_call(viewer: Viewer, product: Product) -> None:
    product.models.play(Turn(calls=[Call("nap", {})]))
    agent = await product.agent(tools=[await product.tool(SLEEP)])
    run = await say(product.http, agent.id, "Sleep.")
    await viewer.open(f"/runs/{run['id']}")
    effects = viewer.page.get_by_role("region", name="Effects")
    await expect(effects).to_contain_text("started")
    await expect(effects.get_by_role("button", name="Settle…")).to_have_count(0)
    await product.http.post(f"/v1/runs/{run['id']}/cancel", json={"wait": 30})
    await expect(effects).to_contain_text("unknown")
    await effects.get_by_role("button", name="Settle…").click()
    dialog = viewer.page.get_by_role("dialog")
    await dialog.get_by_label("Outcome").select_option("It did not happen")
    await expect(dialog.get_by_label("Result, for the record")).to_have_count(0)
    await dialog.get_by_label("Outcome").select_option("It happened")
    await dialog.get_by_label("Result, for the record").fill("slept well")
    await viewer.expect_accessible()
    await dialog.get_by_role("button", name="Settle it").click()
    await expect(effects).to_contain_text("It happened, says console: slept well")
    await expect(effects.get_by_role("button", name="Settle…")).to_have_count(0)
    [effect] = (await product.http.get(f"/v1/runs/{run['id']}/effects")).json()
    assert (effect["settled_by"], effect["settled_by_name"], effect["result"]) == ("person", "console", "slept well")
