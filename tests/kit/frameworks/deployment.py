"""A deployment with agents of frameworks: the API in the test's process, and workers in processes of their own."""

import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.sql.engine import Database
from tests.kit.code_agents.stage import FileStage
from tests.kit.model_server import ModelServer
from tests.kit.product import Product, running_product
from tests.kit.product.processes import HoldfastProcess, Processes, processes_in
from tests.kit.project.documents import ROOT
from tests.kit.services.redis_servers import PrivateRedis
from tests.kit.wait_until import LONG_LEASE_S, wait_until

KEY = "the-key-of-a-provider"


@dataclass(frozen=True)
class Deployment:
    """The API, which has no worker until a test starts one."""

    product: Product
    processes: Processes
    stage: FileStage

    @property
    def models(self) -> ModelServer:
        return self.product.models

    async def worker(self, module: str, python: Path, **settings: object) -> HoldfastProcess:
        """A worker that has the agents of a module."""
        file = self.stage.folder / "environment"
        file.write_text(f"HOLDFAST_AGENTS_STAGE={self.stage.folder}\nPYTHONPATH={ROOT}\n", encoding="utf-8")
        given = {"agents": module, "agents_python": python, "agents_env_file": file, **settings}
        return await self.processes.worker(**given)

    async def made(self, agent: str) -> str:
        """An agent whose model is this one, once the API knows it. Returns its id."""

        async def make() -> str | None:
            answer = await self.product.http.post("/v1/agents/", json={"model": f"code/{agent}", "name": agent})
            return answer.json()["id"] if answer.is_success else None

        return await wait_until(make, description=f"the API to know {agent}", every=0.05)

    async def submitted(self, agent_id: str, text: str = "go") -> str:
        """Sends a message. Returns the run's id."""
        answer = await self.product.http.post(f"/v1/agents/{agent_id}/messages/async", json={"input": text})
        assert answer.is_success, answer.text
        return answer.json()["id"]

    async def answer(self, agent_id: str, text: str = "go") -> str:
        """Sends a message. Returns the run's text, at its end."""
        run = await self.product.ended(await self.submitted(agent_id, text))
        assert run["status"] == "completed", run
        said = [one for one in await self.product.history(agent_id) if one["message_type"] == "assistant_message"]
        return said[-1]["content"]

    async def listed(self) -> dict[str, Any]:
        """The agents in code that have a live worker, by name."""
        answer = await self.product.http.get("/v1/code-agents")
        return {one["name"]: one for one in answer.json() if one["workers"]}


@asynccontextmanager
async def deployment_in(
    folder: Path, database: Database, database_url: str, redis: PrivateRedis
) -> AsyncGenerator[Deployment]:
    """The deployment for the block. The temporary files of its processes are in `temporary` of the folder."""
    stage, temporary = FileStage(folder / "stage"), folder / "temporary"
    for made in (stage.folder, temporary):
        made.mkdir()
    settings = {"lease_s": LONG_LEASE_S}
    async with (
        ModelServer() as models,
        running_product(database, redis.client(), models, settings=settings, with_worker=False) as product,
    ):
        environment = {
            **models.base_urls(),
            "OPENAI_API_KEY": KEY,
            "TMPDIR": str(temporary),
            "HOLDFAST_DATABASE_URL": database_url,
            "HOLDFAST_REDIS_URL": redis.url,
            "HOLDFAST_MODEL_RETRIES": "0",
            "HOLDFAST_DATABASE_CONNECTIONS": "8",
            "HOLDFAST_DRAIN_S": "0",
            "HOLDFAST_SWEEP_S": "1",
        }
        async with processes_in(folder, environment) as processes:
            yield Deployment(product, processes, stage)


def memory_has(pid: int, words: dict[str, bytes]) -> set[str]:
    """The names of the words that occur in the memory of a process, which should be idle."""
    return {name for part in _memory(pid) for name, word in words.items() if word in part}


def _memory(pid: int) -> Iterator[bytes]:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines():
            place, may, *_ = line.split()
            begin, end = (int(one, 16) for one in place.split("-"))
            if may[0] == "r" and not line.endswith(("[vvar]", "[vsyscall]")):
                memory.seek(begin)
                with suppress(OSError):  # pages behind the end of a mapped file
                    yield memory.read(end - begin)


def descriptors(pid: int) -> list[str]:
    """The open files of a process: `/dev/null`, `pipe:[4711]`, `socket:[4712]` and so on."""
    folder = f"/proc/{pid}/fd"
    return sorted(os.readlink(f"{folder}/{number}") for number in os.listdir(folder))  # noqa: PTH115, PTH208 - no files


def variables(pid: int) -> set[str]:
    """The names of the variables with which a process was started."""
    data = Path(f"/proc/{pid}/environ").read_bytes()
    return {one.partition(b"=")[0].decode() for one in data.split(b"\0") if one}


def children(pid: int) -> list[int]:
    """The child processes of a process that it has not reaped."""
    return [int(one) for file in Path(f"/proc/{pid}/task").glob("*/children") for one in file.read_text().split()]


def parent(pid: int) -> int:
    """The process that has started this one."""
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


def command_line(pid: int) -> str:
    """How a process was started."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def processes() -> set[int]:
    """All processes, including those that were not reaped."""
    return {int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()}
