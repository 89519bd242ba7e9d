"""A tool asks for a network, or for a folder of its run, and gets it where the operator allows it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.agent_files import as_upload
from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.sandboxes import walls
from tests.kit.stream_server import stream_server
from tests.kit.tools import PLAIN_TOOLS
from tests.kit.wait_until import wait_until

KEEPS = '''
def keeps(name: str) -> list:
    """
    Keeps a file, and lists what was kept.

    Args:
        name (str): The name.
    """
    import os
    folder = os.environ["HOLDFAST_RUN_FOLDER"]
    open(os.path.join(folder, name), "w").close()
    return [folder, *sorted(os.listdir(folder))]
'''
FETCHES = '''
def fetches(url: str) -> str:
    """
    Fetches a page.

    Args:
        url (str): Where.
    """
    import urllib.request
    return urllib.request.urlopen(url, timeout=120).read().decode()
'''


@pytest.fixture
async def page() -> AsyncIterator[int]:
    """The port of a server on loopback that says hello."""

    async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        writer.close()

    async with stream_server(hello) as port:
        yield port


async def returned(product: Product, agent_id: str, *calls: Call) -> list[str]:
    """What each call came to, in a run with a step for each."""
    product.models.play(*(Turn(calls=[call]) for call in calls), Turn(text="Done."))
    answer = await product.http.post(f"/v1/agents/{agent_id}/messages", json={"input": "Go."})
    return [one["tool_return"] for one in answer.json()["messages"] if one["message_type"] == "tool_return_message"]


class TestOff:
    """Where the operator allows no host."""

    async def test_a_tool_that_asks_for_a_network_is_refused_with_the_settings_name(self, product: Product) -> None:
        asks = {"source_code": FETCHES, "network": "host"}
        made = await product.http.post("/v1/tools", json={"source_code": FETCHES})
        assert (made.json()["network"], made.json()["scratch"]) == ("none", "call")
        for answer in (
            await product.http.post("/v1/tools", json=asks),
            await product.http.put("/v1/tools", json=asks),
            await product.http.patch(f"/v1/tools/{made.json()['id']}", json={"network": "host"}),
        ):
            assert answer.status_code == 400, answer.text
            assert "network: " in answer.json()["detail"] and "HOLDFAST_TOOL_NETWORK" in answer.json()["detail"]
        assert (await product.http.patch(f"/v1/tools/{made.json()['id']}", json={"network": "all"})).status_code == 422

    async def test_a_tool_of_an_agent_file_is_refused_alike(self, product: Product) -> None:
        agent = await product.agent(tools=[await product.tool(KEEPS, extra_body={"scratch": "run"})])
        file = (await product.http.get(f"/v1/agents/{agent.id}/export")).json()
        [tool] = file["tools"]
        assert tool["metadata_"]["holdfast"] == {"scratch": "run"}
        tool["metadata_"]["holdfast"]["network"] = "host"
        answer = await product.http.post("/v1/agents/import", files=as_upload(file))
        assert answer.status_code == 400
        assert "HOLDFAST_TOOL_NETWORK" in answer.text


class TestPlain:
    """The folder, where tests can see it."""

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return dict(PLAIN_TOOLS)

    async def test_the_calls_of_a_run_share_a_folder_and_the_next_run_has_an_empty_one(self, product: Product) -> None:
        tool_id = await product.tool(KEEPS, extra_body={"scratch": "run"})
        assert (await product.http.get(f"/v1/tools/{tool_id}")).json()["scratch"] == "run"
        agent = await product.agent(tools=[tool_id])
        calls = [Call("keeps", {"name": name}) for name in ("one", "two")]
        first, second = map(json.loads, await returned(product, agent.id, *calls))
        assert first[0] == second[0]
        assert (first[1:], second[1:]) == (["one"], ["one", "two"])
        await wait_until(lambda: not Path(first[0]).exists(), description="the run's folder to be removed")
        [later] = map(json.loads, await returned(product, agent.id, Call("keeps", {"name": "three"})))
        assert later[1:] == ["three"]


class TestOn:
    """Where the operator allows a host."""

    @pytest.fixture
    async def settings(self, page: int) -> dict[str, Any]:
        await walls("tier1")
        return {"sandbox": "tier1", "tool_network": f"localhost:{page}", "reachable_networks": "127.0.0.0/8"}

    async def test_a_tool_with_a_network_reaches_the_host_and_no_other(self, product: Product, page: int) -> None:
        tool_id = await product.tool(FETCHES, extra_body={"network": "host"})
        agent = await product.agent(tools=[tool_id])
        urls = (f"http://localhost:{page}/", "http://localhost:1/")
        found = await returned(product, agent.id, *(Call("fetches", {"url": url}) for url in urls))
        assert found[0] == "hello"
        assert "HTTP Error 403: localhost port 1 is not among the hosts" in found[1]
