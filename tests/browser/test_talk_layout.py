"""The place to talk to an agent fits its window, and shows the end of what is said unless its reader looks away."""

import asyncio
from collections.abc import Sequence

import pytest
from playwright.async_api import Page, expect

from tests.kit.browser.console_runs import say
from tests.kit.browser.viewer import Viewer
from tests.kit.model_server import Turn
from tests.kit.product import Product
from tests.kit.wait_until import wait_until

SIZES = [(1280, 800), (900, 600), (390, 760)]
LONG = " ".join(f"word-{number}" for number in range(1200))

_WHAT_IS_SEEN = """() => {
  const box = document.querySelector(".talk-box").getBoundingClientRect();
  const form = document.querySelector(".say").getBoundingClientRect();
  const words = document.createRange();
  words.selectNodeContents([...document.querySelectorAll(".talk-entries li .item")].at(-1));
  const last = words.getBoundingClientRect();
  return { line: last.bottom <= box.bottom && last.bottom > box.top, box: box.bottom <= form.top,
    form: form.bottom <= innerHeight, page: document.documentElement.scrollHeight <= innerHeight };
}"""


async def expect_the_end_to_be_seen(page: Page) -> None:
    """The last line stands in the box, the box above the field, and the field in the window."""

    async def is_seen() -> bool:
        seen: dict[str, bool] = await page.evaluate(_WHAT_IS_SEEN)
        return all(seen.values())

    await wait_until(is_seen, description="the end to be seen")


async def place(page: Page) -> Sequence[int]:
    """How far the box is scrolled, and how much is in it."""
    return await page.locator(".talk-box").evaluate("box => [Math.round(box.scrollTop), box.scrollHeight]")


@pytest.mark.parametrize("size", SIZES)
async def test_the_last_line_of_a_talk_was_cut_off(viewer: Viewer, product: Product, size: tuple[int, int]) -> None:
    name, about = "a name that needs more than a line of the window " * 3, "what it is good for " * 40
    agent, page = await product.agent(model="builtin/echo", description=about), viewer.page
    await product.http.patch(f"/v1/agents/{agent.id}", json={"name": name if size[0] > 500 else "short"})
    await page.set_viewport_size({"width": size[0], "height": size[1]})
    for text in ("x" * 3000, "line\n" * 60, "The last one."):
        await product.ended((await say(product.http, agent.id, text))["id"])
    await viewer.open(f"/agents/{agent.id}")
    await expect(page.locator(".answer .said").last).to_have_text("You said: The last one.")
    await expect_the_end_to_be_seen(page)
    await viewer.expect_no_sideways_scrolling()
    # Whoever turns the window finds the end again.
    for width, height in SIZES:
        await page.set_viewport_size({"width": width, "height": max(height, size[1])})
        await expect(page.locator(".talk-box")).to_be_visible()
    await page.set_viewport_size({"width": size[0], "height": size[1]})
    await expect_the_end_to_be_seen(page)


@pytest.mark.parametrize("size", SIZES)
async def test_an_answer_that_grows_is_followed(viewer: Viewer, product: Product, size: tuple[int, int]) -> None:
    go_on, agent, page = asyncio.Event(), await product.agent(), viewer.page
    product.models.play(Turn(text=LONG, silent_after=900, resume=go_on))
    await page.set_viewport_size({"width": size[0], "height": size[1]})
    await say(product.http, agent.id, "Go on.")
    await viewer.open(f"/agents/{agent.id}")
    await expect(page.locator(".answer .said")).to_contain_text("word-899")
    await expect_the_end_to_be_seen(page)
    go_on.set()
    await expect(page.locator(".answer .said")).to_contain_text("word-1199")
    await expect_the_end_to_be_seen(page)


async def test_a_reader_who_had_scrolled_up_a_little_was_taken_to_the_end(viewer: Viewer, product: Product) -> None:
    go_on, ends, agent, page = asyncio.Event(), asyncio.Event(), await product.agent(), viewer.page
    product.models.play(Turn(text=LONG, silent_after=900, resume=go_on), Turn(text="Well.", resume=ends))
    await say(product.http, agent.id, "Go on.")
    await viewer.open(f"/agents/{agent.id}")
    await expect(page.locator(".answer .said")).to_contain_text("word-899")
    await expect_the_end_to_be_seen(page)
    at_end, _ = await place(page)
    await page.locator(".talk-box").hover()
    await page.mouse.wheel(0, -60)

    async def has_moved() -> bool:
        return (await place(page))[0] == at_end - 60

    await wait_until(has_moved, description="the box to be scrolled")
    go_on.set()
    await expect(page.locator(".answer .said")).to_contain_text("word-1199")
    await expect(page.get_by_text("The agent is at work.")).to_have_count(0)
    assert await has_moved()
    # Who says something wants to see it.
    await page.get_by_label("Message").fill("Again.")
    await page.keyboard.press("Enter")
    await expect(page.locator(".talk-entries .said").last).to_have_text("Well.")
    await expect_the_end_to_be_seen(page)


_SCROLLED_AND_GROWN_IN_A_FRAME = """async () => {
  const drawn = () => new Promise(requestAnimationFrame);
  const box = document.querySelector(".talk-box");
  await drawn();
  box.scrollTop = 0;
  box.querySelector("ol").style.paddingBottom = "50px";
  await drawn();
  await drawn();
  return box.scrollTop;
}"""


async def test_a_box_that_grew_in_the_frame_in_which_it_was_scrolled_jumped_to_its_end(
    viewer: Viewer, product: Product
) -> None:
    """So a click on a button at its top, to which the browser had scrolled, hit something else."""
    agent, page = await product.agent(model="builtin/echo"), viewer.page
    await product.ended((await say(product.http, agent.id, "line\n" * 200))["id"])
    await viewer.open(f"/agents/{agent.id}")
    await expect(page.locator(".answer .said")).to_contain_text("You said: line")
    await expect_the_end_to_be_seen(page)
    assert await page.evaluate(_SCROLLED_AND_GROWN_IN_A_FRAME) == 0


async def test_a_window_too_low_for_a_talk_is_scrolled(viewer: Viewer, product: Product) -> None:
    agent, page = await product.agent(model="builtin/echo"), viewer.page
    await page.set_viewport_size({"width": 380, "height": 420})
    await product.ended((await say(product.http, agent.id, "Hello"))["id"])
    await viewer.open(f"/agents/{agent.id}")
    await expect(page.locator(".answer .said")).to_have_text("You said: Hello")
    await page.get_by_role("button", name="Send").scroll_into_view_if_needed()
    await expect(page.get_by_role("button", name="Send")).to_be_in_viewport(ratio=1)
    await expect(page.locator(".answer .said")).to_have_count(1)
    await viewer.expect_no_sideways_scrolling()
    await viewer.expect_accessible()
