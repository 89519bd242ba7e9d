"""The Chromium of this machine, driven by Playwright. It is Debian's, or the one that HOLDFAST_TEST_CHROMIUM names."""

import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, async_playwright, expect

from tests.kit.services.missing_service import missing_service

CHROMIUM = "HOLDFAST_TEST_CHROMIUM"
PATIENCE_MS = 60_000
"""How long a test waits for a change of a page. A busy machine is slow; a test still sees each change at once."""


def need_chromium() -> str:
    """Its path. Skips the test if there is none; fails it in CI."""
    path = os.environ.get(CHROMIUM) or shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        missing_service("Chromium", CHROMIUM, "no program of that name on the PATH; Debian's package is `chromium`")
    return path


@asynccontextmanager
async def running_browser() -> AsyncGenerator[Browser]:
    """A browser for the block, without a window. As root it has no sandbox of its own: Chromium refuses that."""
    path = need_chromium()
    expect.set_options(timeout=PATIENCE_MS)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=[*arguments, "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            await browser.close()
