"""The page for operators: what lives, what waits, what took long, and callbacks that want another try."""

from playwright.async_api import expect

from tests.kit.browser.viewer import Viewer
from tests.kit.keys import KeyMaker
from tests.kit.product import Product
from tests.kit.product.callback_receiver import CallbackReceiver


async def test_workers_runs_and_times_are_shown(viewer: Viewer, product: Product) -> None:
    agent = await product.agent(model="builtin/echo")
    await product.client.agents.messages.create(agent_id=agent.id, input="Hello")
    page = viewer.page
    await viewer.open("/operations")
    workers = page.get_by_role("region", name="Workers")
    await expect(workers.locator("tbody tr")).to_have_count(1)
    await expect(workers).to_contain_text("0 of")
    await expect(page.get_by_role("region", name="API processes").locator("tbody tr")).to_have_count(1)
    completed = page.locator(".tiles div", has_text="Completed in the last hour")
    await expect(completed.locator("dd")).to_have_text("1")
    await expect(page.get_by_role("row", name="Wait in the queue")).to_contain_text("ms")
    database = page.locator(".services li", has=page.get_by_text("Database", exact=True))
    await expect(database).to_contain_text("works")


async def test_the_last_hour_is_there_as_lines_and_as_a_table(viewer: Viewer, product: Product) -> None:
    agent = await product.agent(model="builtin/echo")
    await product.client.agents.messages.create(agent_id=agent.id, input="Hello")
    page = viewer.page
    await viewer.open("/operations")
    await expect(page.locator(".chart canvas")).to_have_count(2)
    await page.get_by_text("Runs as a table").click()
    rows = page.get_by_role("group", name="Runs, table").locator("tbody tr")
    await expect(rows).to_have_count(60)
    await expect(rows.filter(has_text="1").first).to_be_visible()
    await viewer.expect_accessible()
    await viewer.picture("operations")


async def test_a_callback_that_failed_is_tried_again_at_a_press(viewer: Viewer, product: Product) -> None:
    agent = await product.agent(model="builtin/echo")
    page = viewer.page
    async with CallbackReceiver() as receiver:
        receiver.answer(503)
        run = await product.client.agents.messages.create_async(
            agent_id=agent.id, input="Hello", callback_url=receiver.url
        )
        await receiver.called()
        await viewer.open("/operations")
        row = page.locator("tr", has_text=run.id)
        await expect(row).to_contain_text("503")
        await row.get_by_role("button", name="Retry").press("Enter")
        await receiver.called(2)
        await expect(row).to_have_count(0)
    await expect(page.get_by_role("heading", name="No callback waits")).to_be_visible()


async def test_an_event_that_an_endpoint_did_not_take_is_sent_again_at_a_press(
    viewer: Viewer, product: Product
) -> None:
    agent = await product.agent(model="builtin/echo")
    page = viewer.page
    async with CallbackReceiver() as receiver:
        receiver.answer(503)
        hears = {"name": "mine", "url": receiver.url, "event_types": ["response.completed"]}
        webhook = (await product.http.post("/openai/v1/webhook_endpoints", json=hears)).json()["id"]
        asked = {"model": agent.id, "input": "Hello", "background": True}
        await product.http.post("/openai/v1/responses", json=asked)
        await receiver.called()
        await viewer.open("/operations")
        row = page.get_by_role("region", name="Events of webhooks").locator("tbody tr")
        await expect(row).to_contain_text("503")
        await expect(row).to_contain_text(receiver.url)
        await row.get_by_role("button", name="Retry").press("Enter")
        await receiver.called(2)
        await expect(page.get_by_role("heading", name="No webhook waits")).to_be_visible()
        await product.http.delete(f"/openai/v1/webhook_endpoints/{webhook}")


async def test_a_key_without_the_scope_is_told_which_one_is_needed(viewer: Viewer, product: Product) -> None:
    issued = await KeyMaker(product.context.database)("read")
    await viewer.page.add_init_script(f"sessionStorage.setItem('holdfast.key', {issued.secret!r})")
    await viewer.open("/operations")
    await expect(viewer.page.get_by_role("heading", name="This page needs a key")).to_contain_text("admin")
    await viewer.expect_accessible()
    viewer.forgive("403")
