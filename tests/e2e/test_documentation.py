"""Every example of the documentation, run as a newcomer would: `holdfast dev` on one side, the examples on the other.

The blocks of one language of one document are one program, from top to bottom; that is how they are meant to be copied.
They assert what they claim.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.kit.free_ports import free_port
from tests.kit.project.documents import ROOT, blocks
from tests.kit.services.missing_service import missing_service
from tests.kit.wait_until import wait_until

WRITTEN_FOR = "http://127.0.0.1:8283"
DOCUMENTS = [
    "docs/approvals.md",
    "docs/cancelling.md",
    "docs/chat-completions.md",
    "docs/coming-from-letta.md",
    "docs/openai.md",
    "docs/steering.md",
    "docs/streaming.md",
    "docs/tools.md",
]
HOLDFAST = Path(sys.executable).with_name("holdfast")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `holdfast dev` keeps its data, and what it says."""
    return tmp_path_factory.mktemp("dev")


@pytest.fixture(scope="module")
def base_url(directory: Path) -> Iterator[str]:
    """The address of `holdfast dev`, with a place for its data and what the page on callbacks asks for."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environment |= {"HOLDFAST_REACHABLE_NETWORKS": "127.0.0.0/8"}
    environment |= {"HOLDFAST_CALLBACK_ALLOW_PRIVATE": "true", "HOLDFAST_CALLBACK_SECRET": "a-secret-for-callbacks"}
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen(
            [HOLDFAST, "dev", "--port", str(port), "--data-dir", directory / "data"],
            cwd=directory,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        asyncio.run(wait_until(lambda: _answers(server, url), description="holdfast dev to answer", every=0.1))
        yield url
    finally:
        server.terminate()
        server.wait(timeout=60)


def _answers(server: subprocess.Popen[bytes], url: str) -> bool:
    assert server.poll() is None, "holdfast dev has ended"
    try:
        return httpx.get(f"{url}/v1/health/").status_code == 200
    except httpx.TransportError:
        return False


def _program(document: str, language: str, base_url: str) -> str:
    code = blocks(ROOT / document, language)
    assert code, f"{document} has no {language} example"
    return "\n".join(code).replace(WRITTEN_FOR, base_url)


def _expect_success(command: list[str | Path], program: str, directory: Path) -> None:
    done = subprocess.run([*command, program], cwd=directory, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{program}\n\nanswered:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def test_dev_says_what_to_try_next(base_url: str, directory: Path) -> None:
    """It said its address and nothing else; the address answered 404."""
    said = (directory / "log").read_text(encoding="utf-8")
    named = re.findall(r"[\w/]+\.md", said)
    assert f"{base_url}/docs" in said
    assert httpx.get(f"{base_url}/docs").status_code == 200
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.slow
def test_the_first_program_does_what_it_says(base_url: str, tmp_path: Path) -> None:
    """README's program reads a stream of twenty seconds to its end."""
    _expect_success([sys.executable, "-W", "error", "-c"], _program("README.md", "python", base_url), tmp_path)


@pytest.mark.parametrize(
    "document",
    [
        "docs/agents.md",
        "docs/browsers.md",
        "docs/callbacks.md",
        "docs/concepts.md",
        "docs/first-agent.md",
        "docs/mcp.md",
        "docs/memory.md",
        "docs/sleeptime.md",
        *DOCUMENTS,
    ],
)
def test_python_examples_do_what_they_say(document: str, base_url: str, tmp_path: Path) -> None:
    _expect_success([sys.executable, "-W", "error", "-c"], _program(document, "python", base_url), tmp_path)


@pytest.mark.parametrize("document", ["README.md", *DOCUMENTS])
def test_curl_examples_do_what_they_say(document: str, base_url: str, tmp_path: Path) -> None:
    for tool in ("bash", "curl"):
        if shutil.which(tool) is None:
            missing_service(tool, "PATH", FileNotFoundError(tool))
    _expect_success(["bash", "-eu", "-c"], _program(document, "bash", base_url), tmp_path)
