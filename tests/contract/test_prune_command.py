"""`holdfast prune` says what it deletes, and with `--dry-run` what it would delete."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import pytest

from shared.domain.ids import RunId
from tests.kit.commands import Command, CommandProcess, fork
from tests.kit.runs.ended_runs import fill_with_ended_runs
from tests.kit.runs.stored_runs import Stores, stored_runs
from tests.kit.wait_until import wait_until


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


@dataclass(frozen=True)
class Said:
    """What a command printed, and how it ended."""

    status: int
    output: str
    errors: str


@dataclass(frozen=True)
class Pruning:
    """The command while it runs."""

    process: CommandProcess
    files: tuple[Path, Path]

    async def ended(self) -> Said:
        await wait_until(lambda: self.process.exit_status() is not None, description="the command to end")
        status = self.process.exit_status()
        assert status is not None
        return Said(status, *(file.read_text() for file in self.files))


async def started(url: str, directory: Path, *arguments: str, **settings: str) -> Pruning:
    files = directory / "output", directory / "errors"
    for file in files:
        file.write_text("")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environment = clean | {"HOLDFAST_DATABASE_URL": url} | settings
    return Pruning(await asyncio.to_thread(fork, Command(["prune", *arguments], environment, *files)), files)


async def prune(url: str, directory: Path, *arguments: str, **settings: str) -> Said:
    return await (await started(url, directory, *arguments, **settings)).ended()


def counted(said: Said) -> dict[str, int]:
    """The table that the command printed: how many rows, by what they are."""
    rows = [line.split() for line in said.output.splitlines()[1:]]
    return {row[1]: int(row[0].replace(",", "")) for row in rows}


async def test_a_dry_run_says_what_would_be_deleted_and_deletes_nothing(
    stores: Stores, database_url: str, tmp_path: Path
) -> None:
    await fill_with_ended_runs(stores, 210)
    running = await stores.claimed()

    dry = await prune(database_url, tmp_path, "--older-than-days", "1", "--dry-run")
    assert (dry.status, dry.errors) == (0, "")
    assert "would be deleted" in dry.output
    again = await prune(database_url, tmp_path, "--older-than-days", "1", "--dry-run")
    assert counted(again) == counted(dry)  # its first line has the minute

    told = json.loads((await prune(database_url, tmp_path, "--older-than-days", "1", "--dry-run", "--json")).output)
    assert (told["dry_run"], told["counted"]) == (True, counted(dry))

    done = await prune(database_url, tmp_path, HOLDFAST_RETAIN_DAYS="1")
    assert done.status == 0
    assert counted(done) == counted(dry)
    told = json.loads((await prune(database_url, tmp_path, "--older-than-days", "1", "--json")).output)
    assert (told["dry_run"], told["counted"]["runs"]) == (False, 0)
    assert counted(done)["runs"] == counted(done)["event_blocks"] == 210
    assert await stores.runs.input_of(running) != []

    nothing = await prune(database_url, tmp_path, "--older-than-days", "1")
    assert (nothing.status, counted(nothing)) == (0, {"runs": 0})


async def test_it_may_be_told_to_end_and_started_again(stores: Stores, database_url: str, tmp_path: Path) -> None:
    await fill_with_ended_runs(stores, 1500)
    pruning = await started(database_url, tmp_path, "--older-than-days", "1")

    async def has_begun() -> bool:
        return (await stores.runs.look_up(RunId("run-0"))).pruned_at is not None

    await wait_until(has_begun, description="the first runs to be pruned")
    os.kill(pruning.process.pid, signal.SIGTERM)
    first = await pruning.ended()
    assert first.status == 0

    second = await prune(database_url, tmp_path, "--older-than-days", "1")
    assert counted(first)["runs"] + counted(second)["runs"] == 1500


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "HOLDFAST_RETAIN_DAYS"),
        (["--dry-run"], "--older-than-days"),
        (["--older-than-days", "0"], "greater than or equal to 1"),
        (["--older-than-days", "some"], "--older-than-days"),
        (["--older-than-days", "1000000"], "less than or equal to 36500"),
    ],
)
async def test_a_number_of_days_that_makes_no_sense_is_refused(
    sqlite_url: str, tmp_path: Path, arguments: list[str], named: str
) -> None:
    refused = await prune(sqlite_url, tmp_path, *arguments)
    assert refused.status != 0
    assert named in refused.errors
    assert "Traceback" not in refused.errors


async def test_a_database_of_another_shape_is_refused(tmp_path: Path) -> None:
    refused = await prune(f"sqlite:///{tmp_path / 'new.db'}", tmp_path, "--older-than-days", "1")
    assert (refused.status, refused.output) == (2, "")
    assert "holdfast migrate" in refused.errors
