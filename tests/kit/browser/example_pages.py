"""The pages of `examples`, built and served as their README describes, and a user of one of them."""

import asyncio
import json
import os
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from playwright.async_api import Locator, Page, expect

from tests.kit.browser.viewer import SCREENSHOTS
from tests.kit.clients.installations import built_example
from tests.kit.free_ports import free_port
from tests.kit.node import need_node
from tests.kit.wait_until import HANGS_S, wait_until


@asynccontextmanager
async def served_example(
    name: str, holdfast_url: str, key: str = "none", *, is_built: bool = True
) -> AsyncGenerator[str]:
    """The address of the page `examples/NAME` for the block, with its own proxy, and its own token endpoint, which has
    the key. A page that is not built is served as `npm run dev` does."""
    node = need_node().executable
    folder = await asyncio.to_thread(built_example, name)
    port = free_port()
    command = [*(["preview"] if is_built else []), "--host", "127.0.0.1", "--port", str(port), "--strictPort"]
    environment = {**os.environ, "HOLDFAST_URL": holdfast_url, "HOLDFAST_API_KEY": key}
    process = await asyncio.create_subprocess_exec(
        node, folder / "node_modules/vite/bin/vite.js", *command, cwd=folder, env=environment, stdout=DEVNULL
    )
    try:
        await _answers(f"http://127.0.0.1:{port}/")
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        await process.wait()


async def _answers(url: str) -> None:
    async with httpx.AsyncClient() as http:

        async def look() -> bool:
            try:
                return (await http.get(url)).is_success
            except httpx.TransportError:
                return False

        await wait_until(look, description=f"{url} to be served", timeout=HANGS_S)


def scripted(title: str, *turns: dict[str, Any]) -> str:
    """The message with which `builtin/scripted` plays these turns; the pages show only the title."""
    return f"{title}\n```script\n{json.dumps({'turns': turns})}\n```"


@dataclass(frozen=True)
class ChatTab:
    """A tab at one of the examples: both have the same parts."""

    page: Page

    @property
    def status(self) -> Locator:
        """`Connecting`, `Ready`, `Working` or `Waits for you`."""
        return self.page.get_by_role("status")

    @property
    def said(self) -> Locator:
        """Every text, of the user and of the agent, in order."""
        return self.page.locator("p.text")

    @property
    def calls(self) -> Locator:
        """Every tool call."""
        return self.page.locator(".tool")

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    async def say(self, text: str) -> None:
        """Sends a message by typing it."""
        await expect(self.status).to_have_text("Ready")
        await self.page.get_by_label("Message", exact=True).fill(text)
        await self.page.keyboard.press("Enter")

    async def shows(self, *texts: str) -> None:
        """Waits until the page shows exactly these texts, and no answer is in progress."""
        await expect(self.status).to_have_text("Ready")
        await expect(self.said).to_have_text(texts)

    async def counted_to(self, number: int) -> None:
        """Waits until an answer has reached this text."""
        await expect(self.said.last).to_contain_text(f" {number} ")

    async def beside(self) -> "ChatTab":
        """A second tab of the same browser at the same chat."""
        page = await self.page.context.new_page()
        await page.goto(self.page.url)
        return ChatTab(page)

    async def picture(self, name: str) -> None:
        """Stores a picture of the page if SCREENSHOTS names a folder."""
        folder = os.environ.get(SCREENSHOTS)
        if folder:
            await self.page.set_viewport_size({"width": 860, "height": 600})
            await self.page.screenshot(path=Path(folder, f"{name}.png"), animations="disabled")
