"""Agents of operators' own code in the console: their workers and versions, and the journal of a run."""

from typing import Any

import pytest
from playwright.async_api import expect

from tests.kit.browser.viewer import Viewer
from tests.kit.product import Product
from tests.kit.wait_until import wait_until


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("agents")
    environment = folder / "agents.env"
    environment.write_text(f"HOLDFAST_AGENTS_STAGE={folder}\n", encoding="utf-8")
    return {"agents": "tests.kit.code_agents.decided", "agents_env_file": str(environment)}


async def test_the_agents_stand_with_their_workers_on_the_page_of_agents(viewer: Viewer, product: Product) -> None:
    await viewer.open("/agents")
    table = viewer.page.get_by_role("group", name="Code agents")
    row = table.get_by_role("row").filter(has_text="code/desk")
    await expect(row).to_contain_text("function")
    await expect(row).to_contain_text("none declared")
    await expect(row.locator(".figure")).to_have_text("1")


async def test_a_run_shows_what_its_code_has_done_and_waits_for(viewer: Viewer, product: Product) -> None:
    await wait_until(lambda: product.services.dialects.code_agents.known, description="known agents", every=0.05)
    agent = await product.agent(model="code/desk")
    run = await product.client.agents.messages.create_async(agent.id, input="go")
    await viewer.open(f"/runs/{run.id}")
    journal = viewer.page.get_by_role("group", name="Journal")
    asked = journal.get_by_role("row").filter(has_text="approval")
    await expect(asked).to_contain_text("ask")
    await expect(asked).to_contain_text("in hand")
    await expect(viewer.page.locator("dl.facts").first).to_contain_text("desk")


async def test_a_run_of_another_agent_has_no_journal(viewer: Viewer, product: Product) -> None:
    agent = await product.agent(model="builtin/echo")
    run = await product.client.agents.messages.create_async(agent.id, input="Hello")
    await viewer.open(f"/runs/{run.id}")
    await expect(viewer.page.locator(".item-text .said")).to_contain_text("Hello")
    await expect(viewer.page.get_by_role("heading", name="Journal")).to_have_count(0)
