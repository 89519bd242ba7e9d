"""A server that asks for keys: the page asks for one, keeps it in the tab, and sends it in a header alone."""

from typing import Any

import pytest
from playwright.async_api import Browser, expect

from tests.kit.browser.viewer import Viewer, viewer_of
from tests.kit.product import Product

KEY = "a-key-of-the-console-tests"


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    return {"api_keys": f"default={KEY}"}


async def sign_in(viewer: Viewer, key: str) -> None:
    await viewer.page.get_by_label("API key").fill(key)
    await viewer.page.get_by_role("button", name="Open").click()


async def test_the_key_is_asked_for_checked_kept_and_forgotten(viewer: Viewer) -> None:
    page = viewer.page
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    await viewer.open("/runs")
    await expect(page.get_by_label("API key")).to_be_focused()
    await viewer.expect_accessible()

    await sign_in(viewer, "wrong")
    await expect(page.get_by_role("alert")).to_contain_text("The API key is not valid")
    await sign_in(viewer, KEY)
    await expect(page.get_by_role("heading", name="No runs yet")).to_be_visible()
    await page.reload()
    await expect(page.get_by_role("heading", name="No runs yet")).to_be_visible()

    assert await page.evaluate("JSON.stringify(localStorage) + document.cookie") == '{"holdfast.theme":"system"}'
    assert not [url for url in requests if KEY in url]
    await page.get_by_role("button", name="Forget key").click()
    await expect(page.get_by_label("API key")).to_be_visible()
    assert KEY not in await page.evaluate("JSON.stringify(sessionStorage)")
    viewer.forgive("401")


async def test_another_tab_does_not_have_the_key(browser: Browser, product: Product) -> None:
    async with viewer_of(browser, product.base_url) as first:
        await first.open("/runs")
        await sign_in(first, KEY)
        await expect(first.page.get_by_role("heading", name="No runs yet")).to_be_visible()
        other = Viewer(await first.page.context.new_page(), product.base_url)
        await other.open("/runs")
        await expect(other.page.get_by_label("API key")).to_be_visible()
        first.forgive("401")


async def test_a_key_of_a_single_agent_talks_with_it_and_follows_its_runs(viewer: Viewer, product: Product) -> None:
    """It may not follow the runs of the project."""
    http, operator, page = product.http, {"Authorization": f"Bearer {KEY}"}, viewer.page
    agent = (await http.post("/v1/agents", json={"name": "one", "model": "builtin/echo"}, headers=operator)).json()[
        "id"
    ]
    wanted = {"name": "a page", "scopes": ["write", f"agent:{agent}"]}
    key = (await http.post("/v1/admin/keys", json=wanted, headers=operator)).json()["key"]
    await viewer.open(f"/agents/{agent}")
    await sign_in(viewer, key)
    await page.get_by_label("Message").fill("Hello")
    await page.keyboard.press("Enter")
    await expect(page.locator(".talk-entries .said")).to_have_text(["Hello", "You said: Hello"])
    await page.get_by_role("link", name="Its runs").click()
    await expect(page.locator("tbody .status")).to_have_text(["completed"])
    await http.post(f"/v1/agents/{agent}/messages/async", json={"input": "Again"}, headers=operator)
    await expect(page.locator("tbody .status")).to_have_text(["completed", "completed"])
    await expect(page.get_by_role("alert")).to_have_count(0)
    viewer.forgive("401|403|404")
