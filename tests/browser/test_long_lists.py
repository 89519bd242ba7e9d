"""A table of more runs than a page of the API: it asks for more when they are needed, and draws what is seen."""

import pytest
from playwright.async_api import Locator, expect

from tests.kit.browser.console_runs import say, start_run
from tests.kit.browser.viewer import Viewer
from tests.kit.product import Product


@pytest.fixture(scope="module")
def with_worker() -> bool:
    """Nobody executes these runs: there are many, and what they say is of no interest."""
    return False


def foot_of(viewer: Viewer) -> Locator:
    """What the table says of its length."""
    return viewer.page.locator(".table-foot span").first


async def test_pages_follow_each_other_and_the_table_draws_what_can_be_seen(viewer: Viewer, product: Product) -> None:
    first = await start_run(product.http, "The oldest")
    last = first
    for number in range(130):
        last = await say(product.http, first["agent_id"], f"{number}")
    await viewer.open(f"/runs?agent={first['agent_id']}")
    table = viewer.page.locator(".table-box")
    await expect(viewer.page.locator(f"tr[data-key='{last['id']}']")).to_be_visible()
    await table.focus()
    await expect(foot_of(viewer)).to_contain_text("100 runs, more")
    await viewer.page.keyboard.press("End")
    await expect(foot_of(viewer)).to_have_text("131 runs")
    await viewer.page.keyboard.press("End")
    await expect(viewer.page.locator(f"tr[data-key='{first['id']}']")).to_have_attribute("aria-current", "true")
    assert await viewer.page.locator("tbody tr").count() < 80
    await viewer.page.keyboard.press("Enter")
    await expect(viewer.page.get_by_role("heading", name=first["id"])).to_be_visible()
