"""What a tool may have beyond its walls: a network by way of a proxy, and a folder that it shares with its run."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shared.domain.ids import ProjectId, RunId
from shared.network.addresses import AllowedHosts
from shared.network.checked_http import NetworkRules
from tests.kit.certificates import SelfSigned
from tests.kit.sandboxes import EVERY_SANDBOX, LIMITS, SCRATCH_MB, WALLED, sandbox_of, walls
from tests.kit.stream_server import stream_server
from tests.kit.tools import tool_call
from worker.main import with_certificates
from worker.proxy.exchange import EgressDialer
from worker.tools.isolated_sandbox import IsolatedSandbox
from worker.tools.outcomes import ToolInvocation, ToolSandbox

RUN, OTHER = RunId("run-1"), RunId("run-2")
FETCH = """
    import asyncio, urllib.request

    def fetch(url):
        try:
            return urllib.request.urlopen(url, timeout=120).read().decode()
        except OSError as error:
            return f"{error}"

    def tool(urls):
        return [fetch(url) for url in urls]
"""
UPLOAD = """
    import asyncio, os

    async def tool(host, port, size):
        proxy = int(os.environ["HTTP_PROXY"].rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy)
        writer.write(f"CONNECT {host}:{port} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode())
        await reader.readuntil(b"\\r\\n\\r\\n")
        writer.writelines([b"x" * size, b"\\r\\n\\r\\n"])
        await writer.drain()
        return (await reader.readuntil(b"\\r\\n\\r\\n")).decode()
"""
KEEPS = """
    import os

    def tool(name):
        folder = os.environ["HOLDFAST_RUN_FOLDER"]
        found = sorted(os.listdir(folder))
        open(os.path.join(folder, name), "w").write(name)
        return found
"""


async def value_of(sandbox: ToolSandbox, call: ToolInvocation) -> Any:
    outcome = await sandbox.call(call)
    assert outcome.status == "success", (outcome.text, outcome.stderr)
    return json.loads(outcome.text)


async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    heard = 0
    while (data := await reader.read(1 << 16)) and not data.endswith(b"\r\n\r\n"):
        heard += len(data)
    text = f"heard {heard + len(data)}" if heard else "hello"
    writer.write(f"HTTP/1.1 200 OK\r\nX-Heard: {text}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
    writer.close()


@pytest.fixture
async def server() -> AsyncIterator[int]:
    async with stream_server(hello) as port:
        yield port


async def with_network(stack: AsyncExitStack, hosts: str, folder: Path, ca_file: str = "") -> ToolSandbox:
    network = NetworkRules.of("127.0.0.0/8", ca_file)
    reach = EgressDialer(AllowedHosts.parse(hosts), network.policy)
    plan = with_certificates(await walls("tier1"), folder, network)
    made = IsolatedSandbox(plan, LIMITS, grace_s=2.0, reach=reach)
    stack.push_async_callback(made.aclose)
    return made


async def test_a_tool_with_a_network_reaches_the_allowed_host_and_is_told_of_the_others(
    server: int, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        sandbox = await with_network(stack, f"localhost:{server}", tmp_path)
        urls = [f"http://localhost:{server}/", f"http://127.0.0.1:{server}/", "https://api.example.com/"]
        call = msgspec.structs.replace(tool_call(FETCH, urls=urls), has_network=True)
        found = await value_of(sandbox, call)
        assert found[0] == "hello"
        assert all("not among the hosts that the operator allows (HOLDFAST_TOOL_NETWORK)" in said for said in found[1:])
        without = await value_of(sandbox, tool_call(FETCH, urls=urls[:1]))
        assert without[0].startswith("<urlopen error")


async def test_asyncio_sends_more_than_a_socket_takes_at_once(server: int, tmp_path: Path) -> None:
    """It does so by a system call that could carry descriptors, and so is refused."""
    async with AsyncExitStack() as stack:
        sandbox = await with_network(stack, f"localhost:{server}", tmp_path)
        call = tool_call(UPLOAD, host="localhost", port=server, size=8 << 20)
        outcome = await sandbox.call(msgspec.structs.replace(call, has_network=True))
    assert f"X-Heard: heard {(8 << 20) + 4}" in outcome.text, outcome


async def test_a_tool_speaks_tls_itself_and_trusts_the_operators_authority(tmp_path: Path) -> None:
    own = SelfSigned.of(tmp_path, "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.certificate, own.key)
    async with stream_server(hello, tls=context) as port, AsyncExitStack() as stack:
        call = msgspec.structs.replace(tool_call(FETCH, urls=[f"https://127.0.0.1:{port}/"]), has_network=True)
        trusting = await with_network(stack, f"127.0.0.1:{port}", tmp_path, own.certificate)
        assert await value_of(trusting, call) == ["hello"]
        (tmp_path / "other").mkdir()
        doubting = await with_network(stack, f"127.0.0.1:{port}", tmp_path / "other")
        assert "CERTIFICATE_VERIFY_FAILED" in (await value_of(doubting, call))[0]


@pytest.mark.parametrize(
    ("tier", "hosts", "said"),
    [("tier1", "", "this worker gives none (HOLDFAST_TOOL_NETWORK)"), ("tier2", "localhost", "needs tier 1")],
)
async def test_a_call_that_asks_for_a_network_is_refused_where_there_is_none(tier: str, hosts: str, said: str) -> None:
    reach = EgressDialer(AllowedHosts.parse(hosts), NetworkRules().policy) if hosts else None
    sandbox = IsolatedSandbox(await walls(tier), LIMITS, grace_s=2.0, reach=reach)
    outcome = await sandbox.call(msgspec.structs.replace(tool_call("def tool(): ..."), has_network=True))
    await sandbox.aclose()
    assert outcome.status == "error"
    assert said in outcome.text


@pytest.fixture(params=EVERY_SANDBOX)
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[ToolSandbox]:
    async with sandbox_of(request.param) as made:
        yield made


def keeping(name: str, run_id: RunId, project: str = "default") -> ToolInvocation:
    return msgspec.structs.replace(tool_call(KEEPS, name=name), run_id=run_id, project_id=ProjectId(project))


async def test_calls_of_a_run_share_a_folder_and_no_other_run_has_it(sandbox: ToolSandbox) -> None:
    async with sandbox.of_run(RUN), sandbox.of_run(OTHER):
        assert await value_of(sandbox, keeping("one", RUN)) == []
        assert await value_of(sandbox, keeping("two", RUN)) == ["one"]
        assert await value_of(sandbox, keeping("three", OTHER)) == []
        assert await value_of(sandbox, keeping("four", OTHER)) == ["three"]
    async with sandbox.of_run(RUN):
        assert await value_of(sandbox, keeping("five", RUN)) == []


async def test_a_run_that_is_here_twice_keeps_its_folder_until_the_second_has_left(sandbox: ToolSandbox) -> None:
    """A run that was lost and claimed again by the same worker had its folder removed under it."""
    async with sandbox.of_run(RUN):
        async with sandbox.of_run(RUN):
            await value_of(sandbox, keeping("one", RUN))
        assert await value_of(sandbox, keeping("two", RUN)) == ["one"]


async def test_a_call_without_such_a_folder_is_told_of_none(sandbox: ToolSandbox) -> None:
    async with sandbox.of_run(RUN):
        await value_of(sandbox, keeping("one", RUN))
        look = """
            import os

            def tool():
                return [os.environ.get("HOLDFAST_RUN_FOLDER"), os.path.exists("/run-folders")]
        """
        assert await value_of(sandbox, tool_call(look)) == [None, False]


@pytest.mark.parametrize("tier", WALLED)
async def test_a_call_that_overfills_its_runs_folder_is_killed_and_the_next_one_is_told(tier: str) -> None:
    source = """
        import os, time

        def tool():
            for number in range(3):
                with open(f"{os.environ['HOLDFAST_RUN_FOLDER']}/{number}", "wb") as file:
                    file.write(b"x" * (5 << 20))
            time.sleep(600)
    """
    async with sandbox_of(tier) as sandbox, sandbox.of_run(RUN):
        fills = await sandbox.call(msgspec.structs.replace(tool_call(source), run_id=RUN))
        assert fills.status == "error"
        assert f"wrote more than the run's folder may hold ({SCRATCH_MB} MB" in fills.text
        told = await sandbox.call(keeping("one", RUN))
        assert told.status == "error"
        assert "the run's folder is full" in told.text
