"""The list of agents, and the page that shows what makes one of them what it is."""

from playwright.async_api import expect

from tests.kit.browser.viewer import Viewer
from tests.kit.product import Product

HOSTILE = '''def greet(name: str) -> str:
    """Greets. </script><script>window.wasRun = "description"</script>

    Args:
        name: who, <img src=x onerror="window.wasRun = 'schema'">
    """
    # </pre></script><script>window.wasRun = "source"</script>
    return f"Hello {name}"
'''


async def test_a_project_without_agents_says_how_to_make_one(viewer: Viewer) -> None:
    await viewer.open("/agents")
    await expect(viewer.page.get_by_role("heading", name="There are no agents yet")).to_be_visible()
    await expect(viewer.page.get_by_text("curl")).to_contain_text("/v1/agents")
    await viewer.expect_accessible()


async def test_agents_are_found_by_name_and_listed_page_by_page(viewer: Viewer, product: Product) -> None:
    for number in range(27):
        await product.client.agents.create(name=f"teller-{number:02}", model="builtin/echo")
    page = viewer.page
    await viewer.open("/agents")
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(25)
    await page.get_by_role("button", name="Next page").click()
    await expect(rows.locator("th")).to_have_text(["teller-01", "teller-00"])
    await page.get_by_role("button", name="Previous page").click()
    await expect(rows).to_have_count(25)
    await page.get_by_label("Name contains").fill("er-13")
    await expect(rows.locator("th")).to_have_text(["teller-13"])
    await viewer.expect_accessible()
    await page.get_by_label("Name contains").fill("nobody")
    await expect(page.get_by_role("heading", name="No agent has such a name")).to_be_visible()

    await page.get_by_label("Name contains").fill("er-13")
    await page.get_by_role("link", name="teller-13").press("Enter")
    await expect(page.get_by_role("heading", name="teller-13")).to_be_visible()


async def test_an_agent_that_does_not_exist_is_said(viewer: Viewer) -> None:
    await viewer.open("/agents/agent-123e4567-e89b-42d3-8456-426614174000")
    await expect(viewer.page.get_by_role("alert")).to_contain_text("not found")
    viewer.forgive("404")


async def test_an_agent_and_its_sleep_time_agent_lead_to_each_other(viewer: Viewer, product: Product) -> None:
    agent = await product.client.agents.create(name="butler", model="builtin/echo", enable_sleeptime=True)
    page = viewer.page
    await viewer.open(f"/agents/{agent.id}")
    sleep = page.get_by_label("Sleep time")
    await expect(sleep).to_contain_text("thinks after every 5 turns")
    await expect(sleep).to_contain_text("has not thought yet")
    answer = await product.client.agents.messages.create(agent_id=agent.id, input="Hello")
    [run_id] = answer.usage.run_ids or []
    await product.ended(run_id)
    await viewer.open("/agents")
    await viewer.open(f"/agents/{agent.id}")
    await expect(sleep).to_contain_text("last thought")
    await viewer.expect_accessible()
    await sleep.get_by_role("link", name="butler-sleeptime").click()
    await expect(page.get_by_role("heading", name="butler-sleeptime")).to_be_visible()
    await expect(sleep).to_contain_text("Works in the background for")
    await sleep.get_by_role("link", name="butler").click()
    await expect(page.get_by_role("heading", name="butler", exact=True)).to_be_visible()


async def test_the_prompt_is_shown_as_the_model_is_told_it(viewer: Viewer, product: Product) -> None:
    block = {"label": "human", "value": "Ada <img src=x onerror=\"window.wasRun = 'block'\">"}
    agent = await product.agent(model="builtin/echo", system="Be brief.", memory_blocks=[block])
    await viewer.open(f"/agents/{agent.id}?show=prompt")
    page = viewer.page
    prompt = page.get_by_label("System prompt, as the model gets it").last
    await expect(prompt).to_contain_text("Be brief.")
    await expect(prompt).to_contain_text(block["value"])
    assert (
        await prompt.text_content() == (await product.http.post(f"/v1/agents/{agent.id}/recompile?dry_run=true")).json()
    )
    await expect(page.get_by_role("article", name="human").locator("pre")).to_have_text(block["value"])
    assert await page.evaluate("window.wasRun") is None
    await viewer.expect_accessible()
    await viewer.picture("agent")


async def test_the_source_of_a_tool_is_text_whatever_it_says(viewer: Viewer, product: Product) -> None:
    tool = await product.tool(HOSTILE, default_requires_approval=True)
    agent = await product.agent(model="builtin/echo", tools=[tool])
    page = viewer.page
    await viewer.open(f"/agents/{agent.id}?show=tools")
    shown = page.get_by_role("article", name="greet")
    await expect(shown).to_contain_text("waits for a person")
    await shown.get_by_text("Source", exact=True).click()
    await expect(shown.get_by_label("Source of greet")).to_have_text(HOSTILE)
    await shown.get_by_text("Parameters", exact=False).first.click()
    await expect(shown.get_by_label("Parameters")).to_contain_text("onerror")
    assert await page.evaluate("window.wasRun") is None
    await viewer.expect_accessible()


async def test_the_settings_of_an_agent_are_shown(viewer: Viewer, product: Product) -> None:
    agent = await product.agent(model="builtin/echo", tags=["night"])
    policy = {"approval_expires_s": 60, "on_approval_expiry": "deny"}
    await product.http.patch(f"/v1/agents/{agent.id}", json=policy)
    await viewer.open(f"/agents/{agent.id}?show=settings")
    facts = viewer.page.locator("dl.facts")
    await expect(facts).to_contain_text("builtin/echo")
    await expect(facts).to_contain_text("night")
    await expect(facts).to_contain_text("after 60 s: deny")
    await viewer.expect_accessible()


async def test_the_list_of_agents_was_wider_than_a_narrow_screen(viewer: Viewer, product: Product) -> None:
    agent = await product.agent(model="builtin/echo")
    await viewer.page.set_viewport_size({"width": 360, "height": 700})
    for place in (f"/agents/{agent.id}", f"/agents/{agent.id}?show=settings", "/agents", "/approvals", "/operations"):
        await viewer.open(place)
        await viewer.page.get_by_role("heading", level=1).wait_for()
        # What is fetched is wider than what says that it is being fetched.
        await expect(viewer.page.get_by_text("being fetched")).to_have_count(0)
        await viewer.expect_no_sideways_scrolling()


async def test_short_documents_among_the_settings_had_no_name(viewer: Viewer, product: Product) -> None:
    agent = await product.agent(model="builtin/echo", metadata={"team": "blue"})
    await viewer.open(f"/agents/{agent.id}?show=settings")
    names = viewer.page.locator("section[aria-label=Settings] .part-name")
    await expect(names).to_have_text(["Model settings", "When the window is full", "Tool rules", "Metadata"])
    await expect(viewer.page.get_by_label("Metadata", exact=True)).to_contain_text("blue")
    await viewer.expect_accessible()
