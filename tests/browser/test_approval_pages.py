"""An inbox of more calls than a page has, and what is said where nothing is left."""

from playwright.async_api import Page, expect

from tests.kit.browser.viewer import Viewer
from tests.kit.product import Product
from tests.kit.product.waiting_calls import waiting_calls


async def go_to_the_second_page(page: Page) -> None:
    await page.get_by_role("button", name="Next page").click()
    await expect(page.get_by_text("Page 2")).to_be_visible()
    await expect(page.get_by_role("article")).to_have_count(1)


async def test_a_page_that_was_decided_elsewhere_leads_back_to_what_waits(viewer: Viewer, product: Product) -> None:
    """It said that nothing waits for a person, with 50 calls on the page before, and had no way back."""
    asked = await waiting_calls(product, *(f"moon {number}" for number in range(51)))
    page = viewer.page
    await viewer.open(f"/approvals?agent={asked.agent_id}")
    await expect(page.get_by_role("article")).to_have_count(50)
    await go_to_the_second_page(page)
    await asked.decide(50, decision="deny")
    await expect(page.get_by_role("heading", name="Nothing is left on this page")).to_be_visible()
    await viewer.expect_accessible()
    await page.get_by_role("button", name="Go to the first page").click()
    await expect(page.get_by_role("article")).to_have_count(50)

    await product.http.post(f"/v1/runs/{asked.run_id}/cancel", json={"wait": 30})
    await expect(page.get_by_role("heading", name="Nothing of this agent waits for a person")).to_be_visible()
    await page.get_by_role("link", name="Show earlier answers").click()
    await expect(page.get_by_role("article")).to_have_count(25)


async def test_an_agent_without_decisions_leads_to_those_of_all(viewer: Viewer, product: Product) -> None:
    agent = await product.agent()
    await viewer.open(f"/approvals?agent={agent.id}&show=decided")
    empty = viewer.page.get_by_role("heading", name="Nothing of this agent has been decided yet")
    await expect(empty).to_be_visible()
    await viewer.expect_accessible()
    await expect(viewer.page.get_by_role("link", name="Show the calls to decide")).to_have_attribute(
        "href", f"#/approvals?agent={agent.id}"
    )
    await viewer.page.get_by_role("link", name="Show those of all agents").click()
    await expect(empty).to_have_count(0)


async def test_the_filter_of_approvals_took_ids_alone(viewer: Viewer, product: Product) -> None:
    asked, others = [await waiting_calls(product, target) for target in ("moon", "mars")]
    await product.http.patch(f"/v1/agents/{asked.agent_id}", json={"name": "rockets"})
    page = viewer.page
    await viewer.open("/approvals")
    await expect(page.get_by_role("article").filter(has_text="mars")).to_be_visible()
    field = page.get_by_label("Agent", exact=True)
    await field.fill("rockets")
    await field.press("Enter")
    await expect(page.get_by_role("article")).to_have_count(1)
    await expect(page.get_by_role("article")).to_contain_text("moon")
    await expect(page.get_by_role("article").get_by_role("link", name="rockets", exact=True)).to_be_visible()
    await expect(field).to_have_value("rockets")
    assert asked.agent_id in page.url
    await viewer.expect_accessible()
    for run in (asked, others):
        await product.http.post(f"/v1/runs/{run.run_id}/cancel", json={"wait": 30})


async def test_a_name_that_no_agent_or_several_have_is_said_and_can_be_corrected(
    viewer: Viewer, product: Product
) -> None:
    page = viewer.page
    for _ in range(2):
        await product.client.agents.create(name="twin", model="builtin/echo")
    single = await product.client.agents.create(name="single", model="builtin/echo")
    for place in ("/approvals", "/runs"):
        await viewer.open(place)
        field = page.get_by_label("Agent", exact=True)
        for typed, said in (("twin", "Several agents are named twin"), ("nobody", "No agent is named nobody")):
            await field.fill(typed)
            await field.press("Enter")
            await expect(page.get_by_role("alert")).to_contain_text(said)
            await expect(field).to_have_value(typed)
        await field.fill(f" {single.id} ")
        await field.press("Enter")
        await expect(page.get_by_role("alert")).to_have_count(0)
        await expect(field).to_have_value("single")
        await field.fill("")
        await field.press("Enter")
        await expect(field).to_have_value("")
        assert "agent=" not in page.url
