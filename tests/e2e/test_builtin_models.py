"""`holdfast dev` has the built-in models; `holdfast api` and `holdfast worker` have them when they are told to."""

import asyncio
from pathlib import Path

from shared.sql.migrate import migrate
from tests.kit.free_ports import free_port
from tests.kit.product.processes import api_at, processes_in
from tests.kit.services.databases import patient_database
from tests.kit.services.redis_servers import PrivateRedis


async def _builtin(port: int) -> int:
    """How many built-in models the API lists."""
    async with api_at(port) as http:
        return sum(model["handle"].startswith("builtin/") for model in (await http.get("/v1/models")).json())


async def test_dev_has_them_unless_told_otherwise(tmp_path: Path) -> None:
    first, second = free_port(), free_port()
    async with processes_in(tmp_path, {}) as processes:
        dev = await processes.dev(first)
        assert await _builtin(first) == 3
        await dev.terminate()
        await processes.dev(second, builtin_models=False)
        assert await _builtin(second) == 0


async def test_production_has_them_when_told_to(tmp_path: Path, postgres_url: str, private_redis: PrivateRedis) -> None:
    database = patient_database(postgres_url)
    await migrate(database)
    await database.aclose()
    without, with_them = free_port(), free_port()
    environment = {"HOLDFAST_DATABASE_URL": postgres_url, "HOLDFAST_REDIS_URL": private_redis.url}
    async with processes_in(tmp_path, environment) as processes, api_at(with_them) as http:
        worker, *_ = await asyncio.gather(
            processes.worker(), processes.api(without), processes.api(with_them, builtin_models=True)
        )
        assert (await _builtin(without), await _builtin(with_them)) == (0, 3)
        agent = (await http.post("/v1/agents", json={"model": "builtin/echo"})).json()

        async def answer() -> str:
            return (await http.post(f"/v1/agents/{agent['id']}/messages", json={"input": "Hello"})).text

        assert "HOLDFAST_BUILTIN_MODELS" in await answer()
        await worker.terminate()
        await processes.worker(builtin_models=True)
        assert "You said: Hello" in await answer()
