"""The table of runs: live, filtered, found by id, long, without a mouse."""

from datetime import UTC, datetime, timedelta

from playwright.async_api import Locator, expect

from tests.kit.browser.console_runs import play, start_run
from tests.kit.browser.viewer import Viewer
from tests.kit.product import Product
from tests.kit.tools import LAUNCH


def row_of(viewer: Viewer, run_id: str) -> Locator:
    return viewer.page.locator(f"tr[data-key='{run_id}']")


async def test_a_new_project_says_what_to_do_first(viewer: Viewer) -> None:
    await viewer.open("/runs")
    await expect(viewer.page.get_by_role("heading", name="No runs yet")).to_be_visible()
    await expect(viewer.page.get_by_label("Commands", exact=True)).to_contain_text("curl")
    await viewer.expect_accessible()


async def test_a_run_appears_and_ends_without_a_reload(viewer: Viewer, product: Product) -> None:
    await viewer.open("/runs")
    run = await start_run(product.http, "Hello", model="builtin/slow")
    status = row_of(viewer, run["id"]).locator(".status")
    await expect(status).to_have_text("running")
    await product.http.post(f"/v1/runs/{run['id']}/cancel", json={"wait": 30})
    await expect(status).to_have_text("cancelled")


async def test_filters_are_kept_in_the_address(viewer: Viewer, product: Product) -> None:
    first = await start_run(product.http, "One")
    second = await start_run(product.http, "Two")
    for run in (first, second):
        await product.ended(run["id"])
    await viewer.open("/runs")
    await expect(row_of(viewer, second["id"])).to_be_visible()

    await viewer.page.get_by_label("Agent", exact=True).fill(first["agent_id"])
    await viewer.page.get_by_label("Agent", exact=True).press("Enter")
    await expect(row_of(viewer, second["id"])).to_have_count(0)
    await expect(row_of(viewer, first["id"])).to_be_visible()
    await viewer.page.reload()
    await expect(row_of(viewer, first["id"])).to_be_visible()
    await expect(row_of(viewer, second["id"])).to_have_count(0)

    await viewer.page.get_by_label("Status").select_option("failed")
    await expect(viewer.page.get_by_role("heading", name="No run fits these filters")).to_be_visible()
    await viewer.page.get_by_role("button", name="Clear").click()
    await expect(row_of(viewer, second["id"])).to_be_visible()


async def test_lists_showed_ids_where_people_know_names(viewer: Viewer, product: Product) -> None:
    """A run is listed with its agent's name, and the filter takes the name as well as the id."""
    first = await start_run(product.http, "One")
    second = await start_run(product.http, "Two")
    agents = {run["id"]: (await product.http.get(f"/v1/agents/{run['agent_id']}")).json() for run in (first, second)}
    await product.http.patch(f"/v1/agents/{first['agent_id']}", json={"name": "refunds"})
    await viewer.open("/runs")
    await expect(row_of(viewer, first["id"]).get_by_role("link", name="refunds")).to_be_visible()
    await expect(row_of(viewer, second["id"]).get_by_role("link", name=agents[second["id"]]["name"])).to_be_visible()

    await viewer.page.get_by_label("Agent", exact=True).fill("refunds")
    await viewer.page.get_by_label("Agent", exact=True).press("Enter")
    await expect(row_of(viewer, second["id"])).to_have_count(0)
    await expect(row_of(viewer, first["id"])).to_be_visible()
    await viewer.page.get_by_label("Agent", exact=True).fill("no such agent")
    await viewer.page.get_by_label("Agent", exact=True).press("Enter")
    await expect(viewer.page.get_by_role("alert")).to_contain_text("No agent is named no such agent")


async def test_the_list_did_not_say_by_which_api_a_run_came(viewer: Viewer, product: Product) -> None:
    letta = await start_run(product.http, "One")
    sent = {"model": letta["agent_id"], "input": "Two", "background": True}
    response = (await product.http.post("/openai/v1/responses", json=sent)).json()["id"]
    chat = {"model": letta["agent_id"], "messages": [{"role": "user", "content": "Three"}]}
    assert (await product.http.post("/v1/chat/completions", json=chat)).is_success
    digits = letta["agent_id"].removeprefix("agent-").replace("-", "")[:12]
    call = {"name": digits, "arguments": {"message": "Four"}}
    said = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    assert (await product.http.post("/mcp", json=said)).is_success
    runs = (await product.http.get("/v1/runs", params={"agent_id": letta["agent_id"]})).json()
    by_words = {run["metadata"]["first_words"]: run["id"] for run in runs}
    assert by_words["Two"].replace("-", "").endswith(response.removeprefix("resp_"))
    await viewer.open(f"/runs?agent={letta['agent_id']}")
    names = {
        "One": "Letta's API", "Two": "OpenAI's Responses", "Three": "OpenAI's Chat Completions", "Four": "MCP",
    }  # fmt: skip
    for words, name in names.items():
        row = row_of(viewer, by_words[words])
        await expect(row.locator("[data-column=came]")).to_have_text(name)
        await row.click()
        await expect(viewer.page.locator("main > .facts")).to_contain_text(f"Came by{name}")
        await viewer.page.go_back()


async def test_the_documentation_of_paths_shows_without_the_internet(viewer: Viewer) -> None:
    await viewer.page.goto(f"{viewer.base_url}/docs")
    await expect(viewer.page.get_by_role("heading", name="Holdfast")).to_be_visible()
    await expect(viewer.page.get_by_text("/v1/agents", exact=True).first).to_be_visible()


async def test_any_id_leads_to_what_it_names(viewer: Viewer, product: Product) -> None:
    run = await start_run(product.http, "Find me")
    await product.ended(run["id"])
    messages = (await product.http.get(f"/v1/runs/{run['id']}/messages")).json()
    steps = (await product.http.get(f"/v1/runs/{run['id']}/steps")).json()
    for wanted in (run["id"], steps[0]["id"], messages[0]["id"]):
        await viewer.open("/runs")
        await viewer.page.get_by_role("searchbox").fill(wanted)
        await viewer.page.get_by_role("button", name="Find").click()
        await expect(viewer.page.get_by_role("heading", name=run["id"])).to_be_visible()

    await viewer.open("/runs")
    await viewer.page.get_by_role("searchbox").fill("Find me")
    await viewer.page.get_by_role("button", name="Find").click()
    await expect(viewer.page.get_by_role("alert")).to_contain_text("is no id")


async def test_the_page_is_for_everybody(viewer: Viewer, product: Product) -> None:
    tool = await product.tool(LAUNCH, default_requires_approval=True)
    runs = [
        await start_run(product.http, "Look"),
        await play(product, {"text": "No", "error": "server"}),
        await play(product, {"calls": [{"name": "launch", "arguments": {"target": "the moon"}}]}, tool_ids=[tool]),
    ]
    for run in runs:
        await product.ended(run["id"])
    working = await start_run(product.http, "Count", model="builtin/slow")
    await viewer.open("/runs")
    for run, word in zip([*runs, working], ("completed", "failed", "needs approval", "running"), strict=True):
        await expect(row_of(viewer, run["id"]).locator(".status")).to_have_text(word)
    await viewer.expect_accessible()
    await viewer.picture("runs")
    await viewer.page.set_viewport_size({"width": 380, "height": 700})
    await viewer.expect_no_sideways_scrolling()
    await product.http.post(f"/v1/runs/{working['id']}/cancel", json={"wait": 30})


async def test_the_keyboard_alone_leads_from_the_top_into_a_run(viewer: Viewer, product: Product) -> None:
    run = await start_run(product.http, "Keys only")
    await product.ended(run["id"])
    await viewer.open("/runs")
    await expect(row_of(viewer, run["id"])).to_be_visible()
    await viewer.page.keyboard.press("Tab")
    await expect(viewer.page.get_by_role("link", name="Skip to content")).to_be_focused()
    await viewer.page.keyboard.press("Enter")
    await expect(viewer.page.locator("main")).to_be_focused()
    for _ in range(40):  # a field for a date has a stop for each of its parts
        await viewer.page.keyboard.press("Tab")
        if await viewer.page.locator(".table-box").evaluate("box => box === document.activeElement"):
            break
    await viewer.page.keyboard.press("ArrowDown")
    await viewer.page.keyboard.press("Enter")
    await expect(viewer.page.get_by_role("heading", name=run["id"])).to_be_visible()
    await expect(viewer.page.locator("main")).to_be_focused()


async def test_times_of_creation_are_asked_for(viewer: Viewer, product: Product) -> None:
    """The server's part of this filter decides what is shown; the page asks with the reader's zone turned into UTC."""
    await start_run(product.http, "Now")
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M")
    async with viewer.page.expect_request(lambda request: "created_after=" in request.url):
        await viewer.open(f"/runs?after={tomorrow}")
