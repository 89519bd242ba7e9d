"""One browser per test process, and one product per module: both take longer to start than most tests take."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from shared.redis.embedded import connect_embedded
from shared.sql.engine import Database
from tests.kit.browser.chromium import running_browser
from tests.kit.browser.viewer import Viewer, viewer_of
from tests.kit.model_server import ModelServer
from tests.kit.product import Product, running_product

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The browser and the products live on one event loop for as long as the test process does."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """The browser; the test is skipped where there is none."""
    async with running_browser() as running:
        yield running


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    """Of the running product; a module of tests may have its own."""
    return {}


@pytest.fixture(scope="module")
def with_worker() -> bool:
    """Whether the product of the module executes runs."""
    return True


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def product(
    tmp_path_factory: pytest.TempPathFactory, settings: dict[str, Any], with_worker: bool
) -> AsyncIterator[Product]:
    """The running product, shared by the tests of a module: each makes its own agents."""
    file = tmp_path_factory.mktemp("console") / "holdfast.sqlite3"
    database, redis = Database(f"sqlite:///{file}", connections=10), connect_embedded()
    try:
        async with (
            ModelServer() as models,
            running_product(database, redis, models, settings=settings, with_worker=with_worker) as running,
        ):
            yield running
    finally:
        await redis.aclose(close_connection_pool=True)
        await database.aclose()


@pytest_asyncio.fixture(loop_scope="session")
async def viewer(browser: Browser, product: Product) -> AsyncIterator[Viewer]:
    """A new tab at the product's console. What a test before it left to be answered is not answered to this one."""
    product.models.forget()
    async with viewer_of(browser, product.base_url) as opened:
        yield opened
