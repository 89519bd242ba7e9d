"""docs/bring-your-agent.md, run as a newcomer would: its agent in `holdfast dev --agents`, and its client beside it."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.kit.free_ports import free_port
from tests.kit.project.documents import ROOT, blocks
from tests.kit.wait_until import wait_until

PRICE_OF = '''
def price_of(item: str) -> dict:
    """
    Says what an item costs.

    Args:
        item (str): The item.
    """
    return {"amount": len(item), "currency": "EUR"}
'''

HOLDFAST = Path(sys.executable).with_name("holdfast")


def test_the_program_does_what_it_says(tmp_path: Path) -> None:
    agent, client, _, _ = blocks(ROOT / "docs/bring-your-agent.md", "python")
    with _served(agent, "research", tmp_path) as url:
        program = client.replace("http://127.0.0.1:8283", url)
        command = [sys.executable, "-W", "error", "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[-3000:]


def test_an_agent_was_refused_when_its_server_had_just_started(tmp_path: Path) -> None:
    agent, _, _, _ = blocks(ROOT / "docs/bring-your-agent.md", "python")
    with _served(agent, "research", tmp_path) as url:
        made = httpx.post(f"{url}/v1/agents/", json={"model": "code/research"}, timeout=60)
        assert made.status_code == 200, made.text


def test_the_program_has_the_memory_and_the_tools_of_its_agent(tmp_path: Path) -> None:
    _, _, program, _ = blocks(ROOT / "docs/bring-your-agent.md", "python")
    with _served(program, "desk", tmp_path) as url:
        tool = httpx.post(f"{url}/v1/tools/", json={"source_code": PRICE_OF}, timeout=60).json()
        made = {
            "model": "code/desk",
            "memory_blocks": [{"label": "human", "value": "Ada"}],
            "tool_ids": [tool["id"]],
            "tools": ["core_memory_append"],
        }
        agent_id = httpx.post(f"{url}/v1/agents/", json=made, timeout=60).json()["id"]
        said = httpx.post(f"{url}/v1/agents/{agent_id}/messages", json={"input": "tea"}, timeout=120).json()
        memory = httpx.get(f"{url}/v1/agents/{agent_id}/core-memory/blocks/human", timeout=60).json()
    assert said["messages"][-1]["content"] == "3 EUR, Ada.", said
    assert memory["value"] == "Ada\nAsked for tea."


def test_the_program_asks_the_models_of_the_worker(tmp_path: Path) -> None:
    _, _, _, agent = blocks(ROOT / "docs/bring-your-agent.md", "python")
    with _served(agent.replace("openai/gpt-6-luna", "builtin/echo"), "rhymes", tmp_path) as url:
        asked = {"model": "code/rhymes", "input": "otters"}
        said = httpx.post(f"{url}/openai/v1/responses", json=asked, timeout=60).json()
    assert said["status"] == "completed", said
    assert "otters" in said["output"][-1]["content"][0]["text"]
    assert said["usage"]["total_tokens"] > 0


@contextmanager
def _served(program: str, name: str, folder: Path) -> Generator[str]:
    """`holdfast dev` with the agent of this program, and its address."""
    (folder / f"{name}.py").write_text(program, encoding="utf-8")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environment |= {"HOLDFAST_AGENTS_PYTHON": sys.executable, "HOLDFAST_AGENTS_GRACE_S": "0.5"}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [HOLDFAST, "dev", "--agents", name, "--port", str(port), "--data-dir", folder / "data"],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        asyncio.run(wait_until(lambda: _is_ready(server, url), description="the server to be ready", every=0.1))
        yield url
    finally:
        server.terminate()
        server.wait(timeout=60)


def _is_ready(server: subprocess.Popen[bytes], url: str) -> bool:
    assert server.poll() is None, "holdfast dev has ended"
    try:
        return httpx.get(f"{url}/readyz").is_success
    except httpx.TransportError:
        return False
