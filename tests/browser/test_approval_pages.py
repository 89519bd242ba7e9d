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
