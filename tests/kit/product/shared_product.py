"""One running product for many tests, each with a project of its own, which sees no data of another test.

Projects promise this separation, so each test also tests it. Tests could still share running runs and unused turns of
the model. These end with the test: the models forget their turns, and a product with work left is replaced by a new
one, on empty databases.
"""

import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

import sqlalchemy as sa
from arq.connections import ArqRedis

from shared.domain.ids import ProjectId
from shared.sql.engine import Database
from shared.sql.run_tables import runs
from tests.kit.keys import KeyMaker
from tests.kit.model_server import ModelServer
from tests.kit.product.in_process import Product, clients_of, running_product
from tests.kit.services.databases import patient_database
from tests.kit.services.redis_servers import RedisService

_NUMBERS = count(1)


class Backends(NamedTuple):
    """The stores of a product's data."""

    database_url: str
    redis: RedisService


@asynccontextmanager
async def embedded_backends(migrated: Path, directory: Path) -> AsyncGenerator[Backends]:
    """A Redis in this process, and a copy of the migrated SQLite file in the directory. Both are empty."""
    redis = RedisService(None, stores_first=True)
    yield Backends(f"sqlite:///{shutil.copy(migrated, directory)}", redis)
    await redis.close()


class SharedProduct:
    """The product, and what was made for it. `start` before anything else is asked of it."""

    backends: Backends
    database: Database
    redis: ArqRedis
    models: ModelServer
    _product: Product

    def __init__(self, empty_backends: Callable[[], AbstractAsyncContextManager[Backends]]) -> None:
        self._empty_backends = empty_backends
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Requests need a key from the first one on: without keys, all of them would belong to one project."""
        enter = self._stack.enter_async_context
        self.backends = await enter(self._empty_backends())
        self.database = patient_database(self.backends.database_url, connections=10)
        self._stack.push_async_callback(self.database.aclose)
        self.redis = self.backends.redis.client()
        self.models = await enter(ModelServer())
        settings = {"api_keys": f"nobody={token_hex(24)}"}
        self._product = await enter(running_product(self.database, self.redis, self.models, settings=settings))

    async def aclose(self) -> None:
        await self._stack.aclose()

    @asynccontextmanager
    async def project(self) -> AsyncGenerator[Product]:
        """The product as a new project sees it."""
        project_id = ProjectId(f"test-{next(_NUMBERS)}")
        key = await KeyMaker(self.database, project_id)("admin")
        async with clients_of(self._product.base_url, key.secret) as (client, http):
            yield replace(self._product, client=client, http=http, project_id=project_id, key=key.secret)

    async def end_test(self) -> None:
        """Removes everything that a test has left."""
        if await self._has_something_to_do():
            await self.aclose()
            await self.start()
        else:
            self.models.forget()

    async def _has_something_to_do(self) -> bool:
        unfinished = sa.select(sa.func.count()).where(runs.c.status.in_(("created", "running")))
        async with self.database.read() as connection:
            return (await connection.execute(unfinished)).scalar_one() > 0
