"""A tool names the packages that it needs, and imports them: chosen when it is made, installed where it runs."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from letta_client import BadRequestError

from tests.kit.environments import built, lose, unfinished
from tests.kit.model_server import Call, Turn
from tests.kit.package_index import PackageIndex, source_archive, wheel
from tests.kit.product import Product
from tests.kit.tools import PLAIN_TOOLS
from tests.kit.wait_until import wait_until

GREETS = '''
def greet(name: str) -> str:
    """Greet.

    Args:
        name: whom
    """
    import greetings
    return greetings.hello(name) + f" ({greetings.VERSION})"
'''
GREETINGS = "VERSION = {version!r}\ndef hello(name):\n    return f'Hello, {{name}}'\n"


@pytest.fixture
async def index() -> AsyncIterator[PackageIndex]:
    made = PackageIndex()
    for version in ("1.0", "2.0"):
        made.put(wheel("greetings", version, {"greetings.py": GREETINGS.format(version=version)}))
    async with made.serving():
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "packages"


@pytest.fixture(params=[{}, PLAIN_TOOLS], ids=["walled", "process"])
def settings(request: pytest.FixtureRequest, index: PackageIndex, folder: Path) -> dict[str, Any]:
    """Behind the walls of this machine, and without."""
    return {"package_index": index.url, "package_dir": str(folder), **request.param}


async def called(product: Product, tool_id: str) -> dict[str, Any]:
    """What the tool's return message says when an agent's model calls it."""
    agent = await product.agent(tools=[tool_id])
    product.models.play(Turn(calls=[Call("greet", {"name": "Ada"})]), Turn(text="Done."))
    answer = await product.http.post(f"/v1/agents/{agent.id}/messages", json={"input": "Go."})
    [returned] = [one for one in answer.json()["messages"] if one["message_type"] == "tool_return_message"]
    return returned


async def test_a_tool_imports_the_package_that_it_asks_for(product: Product) -> None:
    tool = await product.client.tools.upsert(
        source_code=GREETS, pip_requirements=[{"name": "Greetings", "version": "1.0"}]
    )
    assert tool.model_dump()["packages"] == ["greetings==1.0"]
    assert (await called(product, tool.id))["tool_return"] == "Hello, Ada (1.0)"


async def test_versions_stay_until_something_else_is_asked_for(product: Product, index: PackageIndex) -> None:
    """A script that sends its tools at each start changes nothing by that, and waits for no index."""
    asked: list[Any] = [{"name": "greetings"}]
    tool = await product.client.tools.upsert(source_code=GREETS, pip_requirements=asked)
    index.put(wheel("greetings", "3.0", {"greetings.py": GREETINGS.format(version="3.0")}))
    requests = index.asked.total()
    again = await product.client.tools.upsert(source_code=GREETS, pip_requirements=asked)
    left_out = await product.client.tools.upsert(source_code=GREETS)
    changed = await product.client.tools.update(tool.id, pip_requirements=asked, description="Greets.")
    assert [one.model_dump()["packages"] for one in (again, left_out, changed)] == [["greetings==2.0"]] * 3
    assert index.asked.total() == requests

    newest = await product.client.tools.update(tool.id, pip_requirements=[{"name": "greetings", "version": ">=2"}])
    assert newest.model_dump()["packages"] == ["greetings==3.0"]
    assert (await called(product, tool.id))["tool_return"] == "Hello, Ada (3.0)"


async def test_a_worker_that_lacks_the_packages_installs_them(product: Product, folder: Path) -> None:
    """As another machine does, which was not asked when the tool was made."""
    tool_id = await product.tool(GREETS, pip_requirements=[{"name": "greetings"}])
    [name] = built(folder)
    lose(folder)
    assert (await called(product, tool_id))["tool_return"] == "Hello, Ada (2.0)"
    assert built(folder) == [name]


async def test_a_call_whose_packages_cannot_be_had_says_why(
    product: Product, folder: Path, index: PackageIndex
) -> None:
    tool_id = await product.tool(GREETS, pip_requirements=[{"name": "greetings", "version": "1.0"}])
    lose(folder)
    index.status = 404
    returned = await called(product, tool_id)
    assert returned["status"] == "error"
    assert "lacks its packages: pip_requirements: Because greetings was not found" in returned["tool_return"]


async def test_a_run_that_waits_for_packages_is_cancelled(product: Product, folder: Path, index: PackageIndex) -> None:
    tool_id = await product.tool(GREETS, pip_requirements=[{"name": "greetings"}])
    lose(folder)
    index.answers.clear()
    asked = index.asked.total()
    agent = await product.agent(tools=[tool_id])
    product.models.play(Turn(calls=[Call("greet", {"name": "Ada"})]))
    run = await product.client.agents.messages.create_async(agent.id, input="Go.")
    await wait_until(lambda: index.asked.total() > asked, description="the worker to install packages")
    assert await product.client.agents.messages.cancel(agent.id, run_ids=[run.id]) == {run.id: "cancelled"}
    assert unfinished(folder) == []


async def test_what_cannot_be_installed_makes_no_tool(product: Product, index: PackageIndex) -> None:
    index.put(source_archive("source", "1.0", "raise SystemExit(1)"))
    refused: list[str] = []
    wrong: list[Any] = [[{"name": "source"}], [{"name": "greetings", "version": "9"}], [{"name": "-r x"}]]
    for asked in wrong:
        with pytest.raises(BadRequestError) as error:
            await product.client.tools.upsert(source_code=GREETS, pip_requirements=asked)
        refused.append(str(error.value))
    assert "Wheels are required for `source`" in refused[0]
    assert "there is no version of greetings==9" in refused[1]
    assert "pip_requirements[0].name" in refused[2]
    assert (await product.http.get("/v1/tools/", params={"name": "greet"})).json() == []


async def test_a_source_may_import_what_its_packages_have_and_no_more(product: Product) -> None:
    with pytest.raises(BadRequestError, match="imports numpy, and tools have"):
        await product.client.tools.upsert(
            source_code=GREETS.replace("import greetings", "import greetings, numpy"),
            pip_requirements=[{"name": "greetings"}],
        )
    with pytest.raises(BadRequestError, match="imports greetings, and tools have"):
        await product.client.tools.upsert(source_code="import greetings\n" + GREETS)


async def test_two_tools_with_the_same_packages_at_once_are_installed_once(
    product: Product, index: PackageIndex, folder: Path
) -> None:
    asked: list[Any] = [{"name": "greetings"}]
    sources = [GREETS.replace("greet(", f"{name}(") for name in ("first", "second")]
    made = await asyncio.gather(
        *(product.client.tools.upsert(source_code=source, pip_requirements=asked) for source in sources)
    )
    assert [tool.model_dump()["packages"] for tool in made] == [["greetings==2.0"]] * 2
    assert len(built(folder)) == 1


async def test_what_is_acted_on_is_not_warned_of(product: Product) -> None:
    body = {"source_code": GREETS, "pip_requirements": [{"name": "greetings"}], "npm_requirements": [{"name": "x"}]}
    answer = await product.http.put("/v1/tools/", json=body)
    assert answer.headers["warning"] == '299 holdfast "not acted on: npm_requirements"'


async def test_an_agent_file_brings_its_tools_with_their_packages(product: Product, index: PackageIndex) -> None:
    tool_id = await product.tool(GREETS, pip_requirements=[{"name": "greetings", "version": "1.0"}])
    agent = await product.agent(tools=[tool_id])
    exported = await product.http.get(f"/v1/agents/{agent.id}/export")
    assert "packages" not in exported.json()["tools"][0]  # another server chooses versions for itself
    file = exported.content
    await product.http.delete(f"/v1/tools/{tool_id}")

    await imported(product.http, file)
    [brought] = (await product.http.get("/v1/tools/", params={"name": "greet"})).json()
    assert brought["packages"] == ["greetings==1.0"]
    assert (await called(product, brought["id"]))["tool_return"] == "Hello, Ada (1.0)"

    await product.http.delete(f"/v1/tools/{brought['id']}")
    index.status = 404
    warning = (await imported(product.http, file)).headers["warning"]
    assert "the packages of the tool 'greet' are left out: pip_requirements: Because greetings was not" in warning
    assert "the tool 'greet' cannot run on this server, only at a client" in warning


async def imported(http: httpx.AsyncClient, file: bytes) -> httpx.Response:
    answer = await http.post("/v1/agents/import", files={"file": ("agent.af", file)})
    assert answer.status_code == 200, answer.text
    return answer
