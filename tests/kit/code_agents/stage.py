"""Places that agents in processes of their own reach, and where they wait for a test."""

import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.kit.project.documents import ROOT
from tests.kit.wait_until import wait_until
from worker.agents.hosts import CodeAgents, plans

PROGRAM = "tests.kit.code_agents.program"


@dataclass(frozen=True)
class FileStage:
    """A folder that a test shares with its agents."""

    folder: Path

    @property
    def reached(self) -> list[str]:
        """The places that the agents have reached, in all of their processes."""
        file = self.folder / "reached"
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def stop_at(self, moment: str) -> None:
        """An agent that reaches this place waits there."""
        (self.folder / f"stop {moment}").touch()

    def go_on(self) -> None:
        """Releases all agents, and lets none wait any more."""
        for stop in self.folder.glob("stop *"):
            stop.unlink()

    def clear(self) -> None:
        """Forgets everything before another test."""
        for file in self.folder.iterdir():
            file.unlink()

    async def is_reached(self, moment: str) -> None:
        """Returns when an agent has been here."""
        await wait_until(lambda: moment in self.reached, description=moment)

    async def begins(self, beginning: str) -> str:
        """The first place with this prefix, once an agent has reached it."""
        return await wait_until(
            lambda: next((one for one in self.reached if one.startswith(beginning)), None), description=beginning
        )

    @asynccontextmanager
    async def agents(
        self,
        module: str = PROGRAM,
        python: str = sys.executable,
        models: str = "own",
        *,
        environment: Mapping[str, str] | None = None,
        max_mb: int = 0,
        per_process: int = 1,
    ) -> AsyncGenerator[CodeAgents]:
        """The agents of the program, in processes of their own."""
        own: Mapping[str, str] = {
            **os.environ, "HOLDFAST_AGENTS_STAGE": str(self.folder), "PYTHONPATH": str(ROOT), **(environment or {})
        }  # fmt: skip
        async with CodeAgents.running(plans([module], python, "", own, models, max_mb), per_process) as agents:
            yield agents
