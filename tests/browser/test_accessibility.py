"""Every page of the console for somebody who has no mouse, or hears the page instead of seeing it.

axe judges what stands on a page; the walk with the Tab key judges what happens when somebody goes through it.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from tests.kit.browser.console_runs import play
from tests.kit.browser.viewer import Viewer
from tests.kit.mcp.official import official_server
from tests.kit.model_server import Turn
from tests.kit.product import Product
from tests.kit.product.waiting_calls import waiting_calls

TAB_STOPS = """() => {
  const kinds = "a[href], button, input, select, textarea, summary, [tabindex]";
  const isStop = (one) => one.tabIndex >= 0 && !one.disabled && one.checkVisibility({ visibilityProperty: true });
  window.tabStops = [...document.querySelectorAll(kinds)].filter(isStop);
  document.activeElement?.blur();
  return window.tabStops.map((one) => one.outerHTML.slice(0, 120));
}"""
"""What the Tab key has to reach, in the order of the page."""

FOCUSED = """() => {
  const one = document.activeElement;
  const style = getComputedStyle(one);
  const box = one.getBoundingClientRect();
  const isSeen = box.width > 0 && box.height > 0 && box.bottom > 0 && box.top < innerHeight;
  const hasOwn = one.matches("[type=date], [type=datetime-local], [type=time]"); // the browser shows which part has it
  const hasOutline = hasOwn || (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0);
  return { stop: window.tabStops.indexOf(one), isSeen, hasOutline, html: one.outerHTML.slice(0, 120) };
}"""

UNNAMED = ("button", "checkbox", "combobox", "link", "listbox", "radio", "searchbox", "spinbutton", "switch", "textbox")
"""Roles of Chromium's accessibility tree that say nothing without a name."""


FETCHING = re.compile("being fetched|Asking for")


async def flaws_of(viewer: Viewer) -> list[str]:
    """What is wrong with a page, in both colours, in Chromium's accessibility tree, and on the way with the Tab key."""
    page = viewer.page
    found = list[str]()
    for colours in ("light", "dark"):
        await page.emulate_media(color_scheme=colours)
        found += [f"{colours}: {one}" for one in await viewer.violations()]
    return [*found, *await without_name(page), *await flaws_on_the_way(page)]


async def without_name(page: Page) -> list[str]:
    """The controls that have no name in Chromium's accessibility tree."""
    session: Any = await page.context.new_cdp_session(page)
    nodes: list[dict[str, Any]] = (await session.send("Accessibility.getFullAXTree"))["nodes"]
    await session.detach()
    shown = [one for one in nodes if not one["ignored"] and one["role"]["value"] in UNNAMED]
    return [f"without a name: {one['role']['value']}" for one in shown if not one["name"]["value"].strip()]


async def flaws_on_the_way(page: Page) -> list[str]:
    """What somebody meets who presses Tab until the page is over."""
    stops: list[str] = await page.evaluate(TAB_STOPS)
    found, reached = list[str](), list[int]()
    for _ in range(len(stops) + 30):  # a field for a time has a stop for each of its parts
        await page.keyboard.press("Tab")
        at = await page.evaluate(FOCUSED)
        if reached and at["stop"] in (-1, reached[0]):
            break
        reached.append(at["stop"])
        found += [] if at["isSeen"] else [f"has the focus and is not seen: {at['html']}"]
        found += [] if at["hasOutline"] else [f"has the focus and does not show it: {at['html']}"]
    found += [f"is not reached: {stops[number]}" for number in range(len(stops)) if number not in reached]
    return [*found, *(["the order is not the page's"] if reached != sorted(reached) else [])]


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    return {"reachable_networks": "127.0.0.0/8"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def places(product: Product) -> AsyncIterator[dict[str, str]]:
    """The pages of the console, with something on each."""
    done = await play(product, {"text": "Good morning.", "reasoning": "A greeting."})
    asked = await waiting_calls(product, "moon", "mars")
    decided = await waiting_calls(product, "venus")
    product.models.say("As you like.")
    await decided.decide(decision="deny", reason="Too hot.")
    async with official_server("json") as server:
        config = {"mcp_server_type": "streamable_http", "server_url": server.target.url}
        made = await product.http.post("/v1/mcp-servers", json={"server_name": "tools", "config": config})
        yield {
            "runs": "/runs",
            "an ended run": f"/runs/{done['id']}",
            "a waiting run": f"/runs/{asked.run_id}",
            "approvals": "/approvals",
            "decided approvals": "/approvals?show=decided",
            "agents": "/agents",
            "talk": f"/agents/{done['agent_id']}",
            "conversations": f"/agents/{done['agent_id']}?show=conversations",
            "settings of an agent": f"/agents/{done['agent_id']}?show=settings",
            "tools of an agent": f"/agents/{done['agent_id']}?show=tools",
            "prompt of an agent": f"/agents/{done['agent_id']}?show=prompt",
            "MCP servers": "/mcp-servers",
            "an MCP server": f"/mcp-servers/{made.json()['id']}",
            "operations": "/operations",
            "no page": "/nowhere",
        }


async def test_every_page_works_without_a_mouse_and_without_seeing_it(viewer: Viewer, places: dict[str, str]) -> None:
    found: dict[str, list[str]] = {}
    for name, place in places.items():
        await viewer.open(place)
        await viewer.page.reload()  # another place after the # does not load the page again
        await expect(viewer.page.get_by_role("heading", level=1)).to_be_visible()
        await expect(viewer.page.get_by_text(FETCHING)).to_have_count(0)
        if flaws := await flaws_of(viewer):
            found[name] = flaws
    assert found == {}


FLAWS = {
    "button-name": ("<button></button>", "width: 9px; height: 9px"),
    "without a name: button": ("<button></button>", "width: 9px; height: 9px"),
    "label": ("<input>", ""),
    "image-alt": ("<img src='/console/icon.svg'>", ""),
    "tabindex": ("<button tabindex='3'>Third</button>", ""),
    "the order is not the page's": ("<button tabindex='3'>Third</button>", ""),
    "aria-hidden-focus": ("<div aria-hidden='true'><button>Hidden</button></div>", ""),
    "color-contrast": ("<p>Pale</p>", "color: #999; background: #fff"),
    "has the focus and is not seen": ("<button>Above</button>", "position: fixed; left: 9px; top: -99px"),
    "has the focus and does not show it": ("<button>Plain</button>", "outline: none"),
}
"""What a page must not have: its HTML, and its style, which the console's policy forbids inside of HTML."""

PLANT = """(main, [html, style]) => {
  main.insertAdjacentHTML("beforeend", html);
  main.lastElementChild.style.cssText = style;
}"""


@pytest.mark.parametrize("flaw", FLAWS)
async def test_a_page_with_a_flaw_is_not_taken_for_a_good_one(viewer: Viewer, flaw: str) -> None:
    await viewer.open("/nowhere")
    page = viewer.page
    await expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert await flaws_of(viewer) == []
    await page.locator("main").evaluate(PLANT, list(FLAWS[flaw]))
    assert [one for one in await flaws_of(viewer) if flaw in one]


async def opened_with_the_keyboard(page: Page, button: Locator) -> Locator:
    await button.focus()
    await page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_be_visible()
    return dialog


@pytest.mark.parametrize(
    ("place", "button"),
    [("a waiting run", "Cancel this run…"), ("MCP servers", "Add a server…"), ("an MCP server", "Delete the server…")],
)
async def test_a_dialog_keeps_the_focus_and_gives_it_back(
    viewer: Viewer, places: dict[str, str], place: str, button: str
) -> None:
    page = viewer.page
    await viewer.open(places[place])
    opener = page.get_by_role("button", name=button)
    dialog = await opened_with_the_keyboard(page, opener)
    await viewer.expect_accessible()
    controls = await dialog.locator("a[href], button, input, select, textarea").count()
    for _ in range(controls + 3):
        await page.keyboard.press("Tab")
        # Between the last control and the first one the focus is with the browser's own.
        assert await page.evaluate("document.activeElement.matches('dialog, dialog *, body')")
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await expect(opener).to_be_focused()


async def test_an_answer_is_announced_when_it_is_whole_and_not_word_by_word(viewer: Viewer, product: Product) -> None:
    """Readers of screens heard that the agent works, and never that it had answered."""
    resume = asyncio.Event()
    product.models.play(Turn(text="One two three.", silent_after=2, resume=resume))
    agent = await product.agent()
    page = viewer.page
    await viewer.open(f"/agents/{agent.id}")
    await page.get_by_label("Message").fill("Count.")
    await page.keyboard.press("Enter")
    await expect(page.locator(".answer .said")).to_contain_text("One two")
    announced = page.locator(".talk > .for-readers[role=status]")
    await expect(announced).to_have_text("The agent answers.")
    assert await page.locator(".answer [role=status], .answer[aria-live]").count() == 0
    resume.set()
    await expect(announced).to_have_text("The agent has answered: One two three.")
    await page.reload()
    await expect(page.locator(".answer .said")).to_contain_text("One two three.")
    await expect(announced).to_have_text("")


async def test_a_row_that_the_arrows_choose_is_announced(viewer: Viewer, places: dict[str, str]) -> None:
    page = viewer.page
    await viewer.open(places["runs"])
    table = page.locator(".table-box")
    await table.focus()
    await page.keyboard.press("ArrowDown")
    first = await table.locator("tr[aria-current] td").first.inner_text()
    await expect(page.locator(".table-box + [role=status]")).to_contain_text(first.strip())


async def test_nothing_moves_for_those_who_asked_for_rest(viewer: Viewer, places: dict[str, str]) -> None:
    page = viewer.page
    await page.emulate_media(reduced_motion="reduce")
    for place in places.values():
        await viewer.open(place)
        await expect(page.get_by_role("heading", level=1)).to_be_visible()
        moving = "document.getAnimations().filter((one) => one.playState === 'running').length"
        assert await page.evaluate(moving) == 0, place
