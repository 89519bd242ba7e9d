"""The pages of MCP servers: where each is, what it brought, and all that is done with it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Route, expect

from tests.kit.browser.viewer import Viewer
from tests.kit.mcp.hostile import HostileServer, answer, hostile_server, listed, tool
from tests.kit.mcp.official import OfficialServer, official_server
from tests.kit.product import Product


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    return {"reachable_networks": "127.0.0.0/8"}


@pytest_asyncio.fixture(loop_scope="session")
async def server() -> AsyncIterator[OfficialServer]:
    async with official_server("json") as running:
        yield running


@pytest_asyncio.fixture(autouse=True, loop_scope="session")
async def no_servers(product: Product) -> AsyncIterator[None]:
    """Each test begins with none."""
    yield
    for one in (await product.http.get("/v1/mcp-servers")).json():
        await product.http.delete(f"/v1/mcp-servers/{one['id']}")


async def registered(product: Product, url: str, name: str = "tools") -> str:
    """A server of the project; its id."""
    config = {"mcp_server_type": "streamable_http", "server_url": url}
    made = await product.http.post("/v1/mcp-servers", json={"server_name": name, "config": config})
    return made.json()["id"]


def card(viewer: Viewer, name: str) -> Locator:
    return viewer.page.get_by_role("article", name=name, exact=True)


async def test_a_project_without_servers_says_what_one_is(viewer: Viewer) -> None:
    await viewer.open("/mcp-servers")
    await expect(viewer.page.get_by_role("heading", name="There are no MCP servers yet")).to_be_visible()
    await viewer.expect_accessible()


async def test_a_server_is_added_with_the_keyboard_and_shows_its_tools(
    viewer: Viewer, product: Product, server: OfficialServer
) -> None:
    page = viewer.page
    await viewer.open("/mcp-servers")
    await page.get_by_role("button", name="Add a server…").press("Enter")
    dialog = page.get_by_role("dialog", name="Add an MCP server")
    await viewer.expect_accessible()
    await dialog.get_by_label("Name", exact=True).fill("tools")
    await dialog.get_by_label("URL").fill(server.target.url)
    await dialog.get_by_label("Token, if it needs one").fill("a-token-of-the-page")
    await dialog.get_by_label("Further headers").fill("X-Team: blue\n\n")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")

    await expect(page.get_by_role("heading", name="tools", level=1)).to_be_visible()
    await expect(page.locator("dl.facts")).to_contain_text(server.target.url)
    await expect(page.get_by_role("article")).to_have_count(6)
    await expect(card(viewer, "add")).to_contain_text("Adds two numbers.")
    await expect(card(viewer, "add")).to_contain_text("may be started again")
    await viewer.expect_accessible()
    await viewer.picture("mcp-server")
    assert server.authorizations == {"Bearer a-token-of-the-page"}
    [stored] = (await product.http.get("/v1/mcp-servers")).json()
    assert stored["custom_headers"] == {"X-Team": "********"}
    await expect(page.get_by_text("a-token-of-the-page")).to_have_count(0)

    await page.get_by_role("link", name="All servers").click()
    row = page.locator("tbody tr")
    await expect(row).to_have_count(1)
    await expect(row).to_contain_text("streamable_http")
    await expect(row.locator("td.figure")).to_have_text("6")
    await expect(row.locator(".status")).to_have_text("read")
    await viewer.expect_accessible()
    await viewer.picture("mcp-servers")


async def test_a_line_that_is_no_header_is_named_and_nothing_is_sent(viewer: Viewer, product: Product) -> None:
    page = viewer.page
    await viewer.open("/mcp-servers")
    await page.get_by_role("button", name="Add a server…").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name", exact=True).fill("tools")
    await dialog.get_by_label("URL").fill("http://127.0.0.1:9/mcp")
    await dialog.get_by_label("Further headers").fill("X-Team blue")
    await dialog.get_by_role("button", name="Add the server").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("“X-Team blue”")
    assert (await product.http.get("/v1/mcp-servers")).json() == []


async def test_a_command_that_the_operator_does_not_list_is_refused_in_the_form(viewer: Viewer) -> None:
    page = viewer.page
    await viewer.open("/mcp-servers")
    await page.get_by_role("button", name="Add a server…").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name", exact=True).fill("files")
    await dialog.get_by_label("Type").select_option("stdio")
    await dialog.get_by_role("textbox", name="Command").fill("/usr/bin/files")
    await dialog.get_by_label("Arguments, one a line").fill("--all\n/tmp")
    await dialog.get_by_label("Variables").fill("MODE=fast")
    await viewer.expect_accessible()
    await dialog.get_by_role("button", name="Add the server").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("HOLDFAST_MCP_COMMANDS")
    viewer.forgive("400|422")


async def test_a_server_that_is_away_is_kept_with_the_reason_and_read_when_it_is_back(
    viewer: Viewer, product: Product
) -> None:
    page = viewer.page
    async with official_server("json") as first:
        pass
    server_id = await registered(product, first.target.url)
    await viewer.open("/mcp-servers")
    row = page.locator("tbody tr")
    await expect(row.locator(".status")).to_have_text("not read")
    await expect(row).to_contain_text("it cannot be reached")
    await expect(row).to_contain_text("never")
    await viewer.open(f"/mcp-servers/{server_id}")
    await expect(page.get_by_text("Its list could not be read the last time")).to_be_visible()
    refresh = page.get_by_role("button", name="Refresh its tools")
    await refresh.click()
    await expect(page.get_by_role("alert")).to_contain_text("it cannot be reached")
    viewer.forgive("502")
    async with official_server("json", port=first.port):
        await refresh.click()
        await expect(page.get_by_role("status").filter(has_text="added: add")).to_be_visible()
        await expect(page.get_by_role("article")).to_have_count(6)
        await expect(page.get_by_role("alert")).to_have_count(0)
        await expect(page.get_by_text("Its list could not be read")).to_have_count(0)
    await viewer.expect_accessible()


async def test_a_tool_is_tried_with_arguments_that_fit_it(
    viewer: Viewer, product: Product, server: OfficialServer
) -> None:
    page = viewer.page
    await viewer.open(f"/mcp-servers/{await registered(product, server.target.url)}")
    shown = card(viewer, "add")
    await shown.get_by_text("Try it").press("Enter")
    arguments = shown.get_by_label("Arguments of add (JSON)")
    await expect(arguments).to_have_value('{\n  "a": 0,\n  "b": 0\n}')
    run = shown.get_by_role("button", name="Run it")
    await arguments.fill('{"a": "one", "b": 2}')
    await expect(shown.locator(".flaws")).to_contain_text("a: must be")
    await expect(run).to_be_disabled()
    await viewer.expect_accessible()
    await arguments.fill('{"a": 1, "b": 2}')
    await run.press("Enter")
    await expect(shown.get_by_label("Result of add")).to_have_text("3")
    assert server.calls == ["add"]
    await viewer.expect_accessible()

    failing = card(viewer, "fail")
    await failing.get_by_text("Try it").click()
    await failing.get_by_role("button", name="Run it").click()
    await expect(failing.get_by_text("It answered with an error:")).to_be_visible()
    await expect(failing.get_by_label("Result of fail")).to_contain_text("it cannot be done")
    assert await page.evaluate("window.wasRun") is None


async def test_a_tool_is_given_to_an_agent_by_its_name(
    viewer: Viewer, product: Product, server: OfficialServer
) -> None:
    agent = await product.agent(model="builtin/echo")
    await viewer.open(f"/mcp-servers/{await registered(product, server.target.url)}")
    shown = card(viewer, "add")
    field = shown.get_by_label("Agent that gets add")
    await field.fill("nobody")
    await field.press("Enter")
    await expect(shown.get_by_role("alert")).to_contain_text("No agent is named nobody")
    await field.fill(agent.name)
    await field.press("Enter")
    await expect(shown.get_by_role("link", name=agent.name)).to_be_visible()
    await expect(shown.get_by_text("has it now.")).to_be_visible()
    assert [one["name"] for one in (await product.http.get(f"/v1/agents/{agent.id}/tools")).json()] == ["add"]
    await viewer.expect_accessible()


async def test_a_person_is_asked_from_now_on_by_one_box(
    viewer: Viewer, product: Product, server: OfficialServer
) -> None:
    server_id = await registered(product, server.target.url)
    await viewer.open(f"/mcp-servers/{server_id}")
    shown = card(viewer, "add")
    box = shown.get_by_label("A person decides on each call")
    await expect(box).not_to_be_checked()
    await box.press("Space")
    await expect(shown).to_contain_text("waits for a person")
    await expect(box).to_be_checked()
    tools = {one["name"]: one for one in (await product.http.get(f"/v1/mcp-servers/{server_id}/tools")).json()}
    assert [name for name, one in tools.items() if one["default_requires_approval"]] == ["add"]


async def test_a_server_is_deleted_with_its_tools_once_that_is_confirmed(
    viewer: Viewer, product: Product, server: OfficialServer
) -> None:
    page = viewer.page
    server_id = await registered(product, server.target.url)
    await viewer.open(f"/mcp-servers/{server_id}")
    delete = page.get_by_role("button", name="Delete the server…")
    await delete.press("Enter")
    dialog = page.get_by_role("dialog", name="Delete tools")
    await expect(dialog).to_contain_text("Its 6 tools are deleted as well")
    await viewer.expect_accessible()
    await dialog.get_by_role("button", name="Keep").press("Enter")
    await expect(dialog).to_have_count(0)
    assert len((await product.http.get("/v1/mcp-servers")).json()) == 1
    await delete.click()
    await dialog.get_by_role("button", name="Delete it and its tools").press("Enter")
    await expect(page.get_by_role("heading", name="There are no MCP servers yet")).to_be_visible()
    assert (await product.http.get("/v1/mcp-servers")).json() == []
    viewer.forgive("404")


async def test_what_a_server_says_of_its_tools_is_text(viewer: Viewer, product: Product) -> None:
    hostile = tool("act", title="<img src=x onerror=\"window.wasRun = 'schema'\">")
    hostile["description"] = "</p><script>window.wasRun = 'description'</script>"

    async def lists(asked: Any, writer: Any) -> None:
        await answer(asked, writer, listed([hostile]))

    async with hostile_server(tools_list=lists) as running:
        await viewer.open(f"/mcp-servers/{await registered(product, _url(running))}")
        await expect(card(viewer, "act")).to_contain_text(hostile["description"])
    assert await viewer.page.evaluate("window.wasRun") is None


def _url(running: HostileServer) -> str:
    return running.target.url


async def test_what_a_key_may_not_is_said_where_it_was_asked_for(
    viewer: Viewer, product: Product, server: OfficialServer
) -> None:
    async def refuse(route: Route) -> None:
        await route.fulfill(status=403, json={"detail": "this needs the scope manage"})

    page = viewer.page
    server_id = await registered(product, server.target.url)
    await page.route("**/v1/**", lambda route: route.continue_() if route.request.method == "GET" else refuse(route))
    await viewer.open(f"/mcp-servers/{server_id}")
    await page.get_by_role("button", name="Refresh its tools").click()
    await expect(page.get_by_role("alert")).to_contain_text("needs the scope manage")
    box = card(viewer, "add").get_by_label("A person decides on each call")
    await box.press("Space")
    await expect(card(viewer, "add").get_by_role("alert")).to_contain_text("needs the scope manage")
    await expect(box).not_to_be_checked()
    await viewer.expect_accessible()
    viewer.forgive("403")


async def test_a_server_that_does_not_exist_is_said(viewer: Viewer) -> None:
    await viewer.open("/mcp-servers/mcp_server-123e4567-e89b-42d3-8456-426614174000")
    await expect(viewer.page.get_by_role("alert")).to_contain_text("not found")
    await expect(viewer.page.get_by_role("link", name="Show all servers")).to_be_visible()
    viewer.forgive("404")


async def test_the_pages_of_servers_fit_a_narrow_screen(
    viewer: Viewer, product: Product, server: OfficialServer
) -> None:
    server_id = await registered(product, server.target.url)
    await viewer.page.set_viewport_size({"width": 360, "height": 700})
    for place in ("/mcp-servers", f"/mcp-servers/{server_id}"):
        await viewer.open(place)
        await viewer.page.get_by_role("heading", level=1).wait_for()
        await expect(viewer.page.get_by_text("being fetched")).to_have_count(0)
        await viewer.expect_no_sideways_scrolling()
