"""The program of a framework's page, run as a reader would run it."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.kit.free_ports import free_port
from tests.kit.model_server import ModelServer
from tests.kit.product.terminal import clean_environment
from tests.kit.wait_until import wait_until

HOLDFAST = Path(sys.executable).with_name("holdfast")


class PageServer:
    """`holdfast dev` with the agent of a page, and programs beside it."""

    def __init__(self, url: str, log: Path, folder: Path) -> None:
        self.url = url
        self._log = log
        self._folder = folder

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    async def client(self, program: str) -> None:
        """Runs a program of the page, in its folder and with its server. Raises `AssertionError` with its output if it
        fails."""
        file = self._folder / "client.py"
        file.write_text(program.replace("http://127.0.0.1:8283", self.url), encoding="utf-8")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", file, cwd=self._folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            _, error = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, error.decode()[-3000:]


async def checked(program: str, python: Path, folder: Path) -> dict[str, Any]:
    """The output of `holdfast agents check --json` for a program."""
    return json.loads(await said_by_check(program, python, folder, "--json"))


async def said_by_check(program: str, python: Path, folder: Path, *options: str) -> str:
    """The same as a person sees it."""
    (folder / "checked.py").write_text(program, encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        *(HOLDFAST, "agents", "check", "checked", "--agents-python", python, *options),
        cwd=folder,
        env=clean_environment(OPENAI_API_KEY="none"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    output, error = await process.communicate()
    assert process.returncode == 0, (output + error).decode()
    return output.decode()


@asynccontextmanager
async def serving_page(
    module: str, agent: str, python: Path, models: ModelServer, folder: Path
) -> AsyncGenerator[PageServer]:
    """Serves a page's agent, once the API knows it. `module` is the name of its file, and of the agent."""
    (folder / f"{module}.py").write_text(agent, encoding="utf-8")
    port, log = free_port(), folder / "log"
    url = f"http://127.0.0.1:{port}"
    command = [HOLDFAST, "dev", "--agents", module, "--agents-python", python, "--port", str(port)]
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *command,
            "--data-dir",
            folder / "data",
            cwd=folder,
            env=clean_environment(**models.base_urls()),
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        async with httpx.AsyncClient(base_url=url) as http:

            async def has_agent() -> bool:
                assert process.returncode is None, f"holdfast dev has ended: {log.read_text()[-2000:]}"
                try:
                    return f"code/{module}" in (await http.get("/v1/models/")).text
                except httpx.TransportError:
                    return False

            await wait_until(has_agent, description="the agent to be known", every=0.1)
        yield PageServer(url, log, folder)
    finally:
        process.terminate()
        await process.wait()
