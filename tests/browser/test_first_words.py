"""The list of runs says what each was asked, whatever that is."""

from playwright.async_api import Locator, expect

from tests.kit.browser.console_runs import say, start_run
from tests.kit.browser.viewer import Viewer
from tests.kit.product import Product
from tests.kit.product.waiting_calls import waiting_calls
from tests.kit.tools import LAUNCH

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script> \u202egnp.exe'


def words_of(viewer: Viewer, run_id: str) -> Locator:
    return viewer.page.locator(f"tr[data-key='{run_id}'] [data-column=words]")


async def test_runs_could_be_told_apart_by_their_ids_alone(viewer: Viewer, product: Product) -> None:
    run = await start_run(product.http, "What is the weather\nin Rome tomorrow?")
    other = await say(product.http, run["agent_id"], "And in Oslo?")
    await viewer.open("/runs")
    await expect(words_of(viewer, run["id"])).to_have_text("What is the weather in Rome tomorrow?")
    await expect(words_of(viewer, other["id"])).to_have_text("And in Oslo?")
    await viewer.open(f"/runs?agent={run['agent_id']}")
    await expect(words_of(viewer, other["id"])).to_have_text("And in Oslo?")


async def test_first_words_are_text_and_a_long_name_hides_no_column(viewer: Viewer, product: Product) -> None:
    """A name of 160 characters pushed every column behind it out of the window."""
    run = await start_run(product.http, f"{HOSTILE} " + "word " * 1000)
    await product.http.patch(f"/v1/agents/{run['agent_id']}", json={"name": f"{HOSTILE} " + "name " * 30})
    await product.ended(run["id"])
    await viewer.open("/runs")
    await expect(words_of(viewer, run["id"])).to_contain_text(HOSTILE.partition(" \u202e")[0])
    for name in ("status", "agent", "created", "duration"):
        await expect(viewer.page.locator(f"tr[data-key='{run['id']}'] [data-column={name}]")).to_be_in_viewport(ratio=1)
    assert await viewer.page.evaluate("window.hacked") is None
    assert await viewer.page.locator("main img, main script").count() == 0
    await viewer.expect_accessible()
    await viewer.open("/agents")
    await expect(viewer.page.locator("tbody tr", has_text=run["agent_id"][:14]).locator("td").last).to_be_in_viewport()
    for width in (1280, 700, 380):
        await viewer.page.set_viewport_size({"width": width, "height": 700})
        for place in ("/runs", "/agents", f"/runs/{run['id']}", f"/agents/{run['agent_id']}"):
            await viewer.open(place)
            await expect(viewer.page.locator("main a").first).to_be_visible()
            await viewer.expect_no_sideways_scrolling()


async def test_runs_that_no_words_began_say_what_they_do(viewer: Viewer, product: Product) -> None:
    tool = await product.tool(LAUNCH)
    run = await start_run(product.http, "Hello", tool_ids=[tool])
    await product.ended(run["id"])
    called = await product.http.post(f"/v1/agents/{run['agent_id']}/tools/launch/run", json={"args": {"target": "x"}})
    assert called.is_success, called.text
    await viewer.open(f"/runs?agent={run['agent_id']}")
    await expect(words_of(viewer, run["id"])).to_have_text("Hello")
    others = viewer.page.locator(f"tbody tr[data-key]:not([data-key='{run['id']}']) [data-column=words]")
    await expect(others).to_have_text("a call of launch")


async def test_a_run_that_goes_on_after_a_decision_says_what_was_asked(viewer: Viewer, product: Product) -> None:
    asked = await waiting_calls(product, "moon")
    product.models.say("It is on its way.")
    await asked.decide()
    await viewer.open(f"/runs?agent={asked.agent_id}")
    await expect(viewer.page.locator("[data-column=words]")).to_have_text(["Launch what is ready."] * 2)


async def test_what_a_failed_run_was_asked_was_nowhere_on_its_page(viewer: Viewer, product: Product) -> None:
    """A turn that failed without any output leaves no message in the history."""
    run = await start_run(product.http, '{"turns": [{"text": "Well", "error": "auth"}]}', model="builtin/scripted")
    await product.ended(run["id"])
    await viewer.open(f"/runs/{run['id']}")
    await expect(viewer.page.locator("[data-kind=asked] .said")).to_contain_text('"error": "auth"')
    await expect(viewer.page.get_by_role("alert").first).to_contain_text("Correct the provider's key")
    await viewer.expect_accessible()
