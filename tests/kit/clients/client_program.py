"""A program written with a public client of the API, as a process that executes one story after the other.

It reads a line of JSON for each story, `[name, base URL, key, arguments]`, and writes a line for each thing that it
notes meanwhile, `{"note": …}`, and one at the end, `{"result": …}` or `{"error": …}`.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.kit.clients.installations import PROGRAMS, beside_node_modules, python_with
from tests.kit.node import need_node
from tests.kit.product import Product
from tests.kit.wait_until import HANGS_S

LINE = 64 << 20
"""The longest line, in bytes."""


class Nowhere(NamedTuple):
    """The address for stories that call no product."""

    base_url: str = "http://nowhere.invalid"
    key: str = ""


class ClientProgram:
    """A running program. `calls` sets the product that it calls."""

    def __init__(self, process: Process, path: str) -> None:
        self._process, self._path = process, path
        self._product: Product | Nowhere | None = None
        self.notes: list[Any] = []
        """The notes so far of the current story, or of the last one."""

    def calls(self, product: Product | Nowhere) -> None:
        """From now on, with the product's key."""
        self._product = product

    async def told(self, story: str, **arguments: Any) -> Any:
        """The result of a story. Raises `AssertionError` with the program's exception if it raised one."""
        assert self._process.stdin is not None and self._process.stdout is not None and self._product is not None
        self.notes = []
        line = json.dumps([story, f"{self._product.base_url}{self._path}", self._product.key, arguments])
        self._process.stdin.write(f"{line}\n".encode())
        async with asyncio.timeout(HANGS_S):
            while said := await self._process.stdout.readline():
                match json.loads(said):
                    case {"note": note}:
                        self.notes.append(note)
                    case {"result": result}:
                        return result
                    case other:
                        raise AssertionError(f"{story}: {other['error']}")
        raise AssertionError(f"{story}: the program has ended with {await self._process.wait()}")


def _node() -> list[str | Path]:
    return [need_node().executable, beside_node_modules("openai_sdk.mjs")]


def _ag_ui(package: str) -> Callable[[], list[str | Path]]:
    return lambda: [need_node().executable, beside_node_modules("ag_ui.mjs", "ag_ui"), package]


def _copilotkit() -> list[str | Path]:
    return [need_node().executable, beside_node_modules("copilotkit.mjs", "copilotkit")]


def _python(how: str, name: str | None = None) -> Callable[[], list[str | Path]]:
    return lambda: [python_with(name) if name else sys.executable, PROGRAMS / "openai_sdk.py", how]


def _page(version: str) -> Callable[[], list[str | Path]]:
    return lambda: [need_node().executable, beside_node_modules("ai_sdk.mjs", "ai_sdk"), version]


AI_SDKS: Mapping[str, Callable[[], list[str | Path]]] = {f"ai {major}": _page(major) for major in ("5", "6", "7")}
"""Pages with the AI SDK, which have stories of their own."""

CLIENTS: Mapping[str, Callable[[], list[str | Path]]] = {
    **AI_SDKS,
    "openai for Node.js": _node,
    "openai 3, sync": _python("sync"),
    "openai 3, async": _python("async"),
    "openai 2, sync": _python("sync", "openai-2"),
    "openai 2, async": _python("async", "openai-2"),
    "openai 1, sync": _python("sync", "openai-1"),
    "openai 1, async": _python("async", "openai-1"),
    "@ag-ui/client 1.0.0": _ag_ui("ag-ui-client-1"),
    "@ag-ui/client 0.0.59": _ag_ui("ag-ui-client-0"),
    "@ag-ui/client 0.0.47": _ag_ui("ag-ui-client-0-0-47"),
    "@copilotkit/core": _copilotkit,
    "openai-agents": lambda: [python_with("agents"), PROGRAMS / "agents_sdk.py"],
}
"""Each client, with the command that begins its program. `openai 3` is the one that Holdfast itself uses."""


@asynccontextmanager
async def client_program(client: str) -> AsyncGenerator[ClientProgram]:
    """The program of a client, for the block."""
    command = await asyncio.to_thread(CLIENTS[client])
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, limit=LINE, env={"PATH": os.environ["PATH"]}
    )
    try:
        yield ClientProgram(process, "" if client in AI_SDKS else "/openai/v1")
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(10):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
