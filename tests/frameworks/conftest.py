"""One host for the tests of a module on each version of a framework: importing a framework takes seconds."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from tests.kit.clients.installations import python_of
from tests.kit.code_agents.stage import FileStage
from tests.kit.frameworks.table import FRAMEWORKS
from tests.kit.frameworks.world import FrameworkWorld, Hosted
from tests.kit.model_server import ModelServer
from tests.kit.runs.stored_runs import stored_runs
from tests.kit.services.redis_servers import RedisService

HERE = Path(__file__).parent
IN_CI = "pydantic_ai-newest"
"""CI installs this one alone: `make test-all` runs the others too."""


VERSIONS = ("newest", "oldest")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What lives as long as a module needs one event loop."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            item.add_marker(pytest.mark.framework)
            item.add_marker(pytest.mark.slow)
            if IN_CI in item.name:
                item.add_marker(pytest.mark.framework_ci)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A module with a `FRAMEWORK` is about this one, any other about each."""
    if "hosted" in metafunc.fixturenames:
        named: str | None = getattr(cast("Any", metafunc).module, "FRAMEWORK", None)
        names = [f"{name}-{version}" for name in ([named] if named else FRAMEWORKS) for version in VERSIONS]
        metafunc.parametrize("hosted", names, indirect=True, scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hosted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Hosted]:
    """The agents. The test is skipped where the framework cannot be installed."""
    name, version = request.param.rsplit("-", 1)
    framework, stage = FRAMEWORKS[name], FileStage(tmp_path_factory.mktemp("stage"))
    python = await asyncio.to_thread(python_of, framework.requirements(version))
    async with (
        ModelServer() as models,
        stage.agents(framework.program, str(python), environment=models.base_urls()) as agents,
    ):
        yield Hosted(framework, python, stage, models, agents)


@pytest_asyncio.fixture(loop_scope="session")
async def world(request: pytest.FixtureRequest, hosted: Hosted, sqlite_url: str) -> AsyncGenerator[FrameworkWorld]:
    """The agents with an empty database. Nothing of an earlier test is known to them."""
    scenario = request.node.originalname.removeprefix("test_")
    if scenario in hosted.framework.lacks:
        pytest.skip(f"{hosted.framework.name} has no {scenario}")
    hosted.stage.clear()
    hosted.models.forget()
    redis = RedisService(None)
    try:
        async with stored_runs(sqlite_url) as stores:
            yield FrameworkWorld(stores, hosted.stage, redis.client(), hosted.agents, hosted=hosted)
    finally:
        hosted.stage.go_on()
        await redis.close()
