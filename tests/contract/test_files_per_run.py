"""Runs pass through no more files than `tests/architecture/shape.toml` says, on both set-ups."""

import pytest
from arq.connections import ArqRedis

from bench.files_per_run import files_per_run
from shared.redis.embedded import connect_embedded
from shared.sql.engine import Database
from tests.kit.project.shape import beyond, shape
from tests.kit.project.source_tree import expect_none
from tests.kit.services.databases import open_database
from tests.kit.services.redis_servers import PrivateRedis


async def expect_figures(database: Database, redis: ArqRedis, setup: str) -> None:
    passed = await files_per_run(database, redis, on_scenario=print)
    figures = {figure: len(files) for figure, files in passed.items()}
    # A busy machine may still tidy up when the count ends, and one without these walls has fewer files before a tool.
    expect_none(beyond(figures, shape()["files"][setup], f"files.{setup}", may_fall=True))


async def test_runs_on_embedded_parts_pass_through_no_more_files_than_their_limits(sqlite_url: str) -> None:
    redis = connect_embedded()
    async with open_database(sqlite_url) as database:
        await expect_figures(database, redis, "embedded")
    await redis.aclose(close_connection_pool=True)


@pytest.mark.services
async def test_runs_on_the_services_pass_through_no_more_files_than_their_limits(
    postgres_url: str, private_redis: PrivateRedis
) -> None:
    async with open_database(postgres_url) as database:
        await expect_figures(database, private_redis.client(), "services")
