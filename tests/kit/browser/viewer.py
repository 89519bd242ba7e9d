"""A viewer of the console: a tab, and every error in it."""

import os
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from playwright.async_api import Browser, ConsoleMessage, Error, Page

from tests.kit.browser.chromium import PATIENCE_MS

AXE = Path(__file__).parent / "axe" / "axe.min.js"
SCREENSHOTS = "HOLDFAST_TEST_SCREENSHOTS"
"""The variable with the folder for pictures of the tested pages. Without it no pictures are taken."""

Colours = Literal["light", "dark"]

_FIND_VIOLATIONS = """async () => {
  const found = await axe.run(document, { resultTypes: ["violations"] });
  return found.violations.flatMap((one) =>
    one.nodes.map((node) => `${one.id}: ${node.target.join(" ")} ${node.failureSummary}`));
}"""

_TELL_WHETHER_SEEN = """(isSeen) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => !isSeen });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
"""A browser without a window treats every tab as visible."""


@dataclass
class Viewer:
    """A tab at a server's console."""

    page: Page
    base_url: str
    errors: list[str] = field(default_factory=list[str])
    """The errors that the page has logged, including violations of its policy, and its exceptions."""
    forgiven: list[str] = field(default_factory=list[str])
    """Patterns of errors that the test has caused itself."""

    async def open(self, place: str = "/runs") -> None:
        """Shows a page of the console, such as `/runs/<id>`."""
        await self.page.goto(f"{self.base_url}/console#{place}")

    async def hide(self) -> None:
        """Tells the page that another tab is in front of it."""
        await self.page.evaluate(_TELL_WHETHER_SEEN, False)

    async def show(self) -> None:
        """Tells the page that it is visible again."""
        await self.page.evaluate(_TELL_WHETHER_SEEN, True)

    def forgive(self, pattern: str) -> None:
        """Forgives errors that the test has caused itself, as by a server that it killed: including those that the
        browser reports only later."""
        self.forgiven.append(pattern)

    def unforgiven(self) -> list[str]:
        """The errors that match no such pattern."""
        return [error for error in self.errors if not any(re.search(pattern, error) for pattern in self.forgiven)]

    async def violations(self) -> list[str]:
        """The problems that axe finds for users who cannot see the page or have no mouse."""
        # A page's policy forbids additional scripts. It does not apply to an evaluated expression.
        await self.page.evaluate(AXE.read_text())
        return await self.page.evaluate(_FIND_VIOLATIONS)

    async def expect_accessible(self) -> None:
        """Fails the test if axe finds a problem in the light or the dark colours."""
        found: dict[str, list[str]] = {}
        schemes: tuple[Colours, Colours] = ("light", "dark")
        for colours in schemes:
            await self.page.emulate_media(color_scheme=colours)
            found[colours] = await self.violations()
        await self.page.emulate_media(color_scheme="light")
        assert found == {"light": [], "dark": []}

    async def expect_no_sideways_scrolling(self) -> None:
        """Fails the test when the page is wider than the screen."""
        wide = await self.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1]

    async def picture(self, name: str) -> None:
        """Stores a picture of the page if SCREENSHOTS names a folder."""
        folder = os.environ.get(SCREENSHOTS)
        if folder:
            await self.page.screenshot(path=Path(folder, f"console-{name}.png"), animations="disabled")


@asynccontextmanager
async def viewer_of(browser: Browser, base_url: str, **context: Any) -> AsyncGenerator[Viewer]:
    """A tab of a browser without any stored data. The test fails for errors that the page has shown in it."""
    given: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}, "locale": "en-GB", **context}
    opened = await browser.new_context(**given)
    opened.set_default_timeout(PATIENCE_MS)
    viewer = Viewer(await opened.new_page(), base_url)
    viewer.page.on("console", lambda message: _note(viewer, message))
    viewer.page.on("pageerror", lambda error: _note_thrown(viewer, error))
    try:
        yield viewer
    finally:
        await opened.close()
    unforgiven = viewer.unforgiven()
    assert not unforgiven, "\n".join(unforgiven)


def _note(viewer: Viewer, message: ConsoleMessage) -> None:
    if message.type == "error":
        viewer.errors.append(f"{message.text} {message.location.get('url', '')}")


def _note_thrown(viewer: Viewer, error: Error) -> None:
    viewer.errors.append(f"thrown: {error}")
