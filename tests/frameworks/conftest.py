"""One host for the tests of a module on each version of a framework: importing a framework takes seconds."""

import asyncio
import shutil
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from tests.kit.clients.installations import python_of
from tests.kit.code_agents.stage import FileStage
from tests.kit.frameworks.deployment import Deployment, deployment_in
from tests.kit.frameworks.table import FRAMEWORKS, FUNCTION
from tests.kit.frameworks.world import FrameworkWorld, Hosted, Installed
from tests.kit.model_server import ModelServer
from tests.kit.runs.stored_runs import stored_runs
from tests.kit.services.databases import patient_database
from tests.kit.services.missing_service import missing_service
from tests.kit.services.redis_servers import PrivateRedis, RedisService

HERE = Path(__file__).parent
IN_CI = ("pydantic_ai-newest", FUNCTION.name)
"""CI installs one framework alone: `make test-all` runs the others too."""


VERSIONS = ("newest", "oldest")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What lives as long as a module needs one event loop."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            item.add_marker(pytest.mark.framework)
            item.add_marker(pytest.mark.slow)
            if any(one in item.name.partition("[")[2] for one in IN_CI):
                item.add_marker(pytest.mark.framework_ci)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A module with a `FRAMEWORK` is about this one, any other about each, and about the plain function."""
    if "installed" in metafunc.fixturenames:
        named: str | None = getattr(cast("Any", metafunc).module, "FRAMEWORK", None)
        names = [f"{name}-{version}" for name in ([named] if named else FRAMEWORKS) for version in VERSIONS]
        every = names if named else [*names, FUNCTION.name]
        metafunc.parametrize("installed", every, indirect=True, scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def installed(request: pytest.FixtureRequest) -> Installed:
    """A version of a framework. The test is skipped where it cannot be installed."""
    name, _, version = request.param.partition("-")
    if name == FUNCTION.name:
        return Installed(FUNCTION, Path(sys.executable))
    framework = FRAMEWORKS[name]
    return Installed(framework, await asyncio.to_thread(python_of, framework.requirements(version)))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hosted(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Hosted]:
    """Its agents, in a host."""
    framework, python = installed
    stage = FileStage(tmp_path_factory.mktemp("stage"))
    async with (
        ModelServer() as models,
        stage.agents(framework.program, str(python), environment=models.base_urls()) as agents,
    ):
        yield Hosted(framework, python, stage, models, agents)


@pytest_asyncio.fixture(loop_scope="session")
async def deployment(postgres_url: str, tmp_path: Path) -> AsyncGenerator[Deployment]:
    """The API on services of the test's own. It has no worker yet."""
    if shutil.which("redis-server") is None:
        missing_service("The program redis-server", "PATH", "not found")
    database, redis = patient_database(postgres_url, connections=8), PrivateRedis(tmp_path)
    await redis.start()
    try:
        async with deployment_in(tmp_path, database, postgres_url, redis) as deployed:
            yield deployed
    finally:
        await redis.close()
        await redis.kill()
        await database.aclose()


@pytest_asyncio.fixture(loop_scope="session")
async def world(request: pytest.FixtureRequest, hosted: Hosted, sqlite_url: str) -> AsyncGenerator[FrameworkWorld]:
    """The agents with an empty database. Nothing of an earlier test is known to them."""
    scenario = request.node.originalname.removeprefix("test_")
    if scenario in hosted.framework.lacks:
        pytest.skip(f"{hosted.framework.name} has no {scenario}")
    hosted.stage.clear()
    hosted.models.forget()
    redis = RedisService(None, stores_first=True)
    try:
        async with stored_runs(sqlite_url) as stores:
            yield FrameworkWorld(stores, hosted.stage, redis.client(), hosted.agents, hosted=hosted)
    finally:
        hosted.stage.go_on()
        await redis.close()
