"""Counts the product files that one plain run and one cancel pass through: `python -m bench.files_per_run`.

A file counts when one of its functions is called between the request and the end of its answer, in the API, the worker
or what they share, which run in this process on embedded parts. The pollers are told to look once an hour, so that
what they happen to do beside the run is not counted. The figure says how many rooms somebody who follows a run through
the code has to walk through.
"""

import argparse
import asyncio
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from shared.redis.embedded import connect_embedded
from shared.sql.engine import Database
from tests.kit.model_server import ModelServer
from tests.kit.product import Product, running_product

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = tuple(str(ROOT / package) for package in ("api", "worker", "shared"))
HOURLY = {"sweep_s": 3600.0, "lease_s": 3600.0}
SCRIPT = '{"turns": [{"text": "one ", "repeat": 100000, "delay_ms": 20}]}'


class Entered:
    """The functions of the product that were called, by file."""

    def __init__(self) -> None:
        self.functions: defaultdict[str, set[CodeType]] = defaultdict(set)

    def note(self, frame: FrameType, event: str, _argument: Any) -> None:
        """For `sys.setprofile`."""
        code = frame.f_code
        # A module's own code, and that of classes, runs when it is imported, not when somebody passes through.
        if event == "call" and code.co_filename.startswith(PRODUCT) and code.co_flags & 0x2:
            self.functions[code.co_filename].add(code)

    @contextmanager
    def noting(self) -> Generator[None]:
        """Notes calls for the block, on this thread: the event loop's."""
        sys.setprofile(self.note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def lines(self, *, with_names: bool) -> list[str]:
        """What was entered, as text."""
        files = sorted(self.functions)
        size = sum(len(Path(file).read_text(encoding="utf-8").splitlines()) for file in files)
        functions = sum(map(len, self.functions.values()))
        found = [f"{len(files)} files, {functions} functions, {size} lines in those files"]
        if with_names:
            found += [f"  {Path(file).relative_to(ROOT)}  {len(self.functions[file])}" for file in files]
        return found


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.files_per_run", description=__doc__)
    parser.add_argument("--names", action="store_true", help="list the files, with how many of their functions")
    options = parser.parse_args()
    async with _product() as product:
        for title, scenario in (("plain streamed run", _plain_run), ("cancel of a running run", _cancel)):
            await scenario(product, Entered())  # what is made at the first use is made
            entered = Entered()
            await scenario(product, entered)
            print(f"{title}: " + "\n".join(entered.lines(with_names=options.names)))


@asynccontextmanager
async def _product() -> AsyncGenerator[Product]:
    with tempfile.TemporaryDirectory(prefix="holdfast-files-") as directory:
        async with ModelServer() as models:
            database = Database(f"sqlite:///{directory}/holdfast.db")
            redis = connect_embedded()
            async with running_product(database, redis, models, settings=HOURLY) as product:
                yield product
            await redis.aclose(close_connection_pool=True)
            await database.aclose()


async def _plain_run(product: Product, entered: Entered) -> None:
    """Submit, stream to the end: one step, no tool."""
    agent = await product.agent(model="builtin/echo")
    body = {"input": "Hello", "streaming": True, "background": True, "stream_tokens": True}
    with entered.noting():
        async with product.http.stream("POST", f"/v1/agents/{agent.id}/messages", json=body) as response:
            async for _ in response.aiter_raw():
                pass
        await asyncio.sleep(0.2)  # the worker still tidies up behind the end of the stream


async def _cancel(product: Product, entered: Entered) -> None:
    """Cancel a run that streams."""
    agent = await product.agent(model="builtin/scripted")
    body = {"input": SCRIPT, "streaming": True, "background": True, "stream_tokens": True}
    async with product.http.stream("POST", f"/v1/agents/{agent.id}/messages", json=body) as response:
        seen = 0
        async for chunk in response.aiter_raw():
            seen += chunk.count(b"assistant_message")
            if seen >= 3:
                break
        run_id = (await product.http.get("/v1/runs", params={"agent_id": agent.id})).json()[0]["id"]
        with entered.noting():
            await product.http.post(f"/v1/runs/{run_id}/cancel")
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main())
