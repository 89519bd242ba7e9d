"""A version of a framework with its agents, and a test's view of their runs."""

import os
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from shared.domain.events import TextChunk, decode
from shared.domain.ids import Seq
from shared.domain.messages import Decision
from shared.domain.runs import CancelRequest, Run, RunOptions
from shared.domain.tools import ClientTool
from shared.redis.event_log import EventLog
from tests.kit.code_agents.stage import FileStage
from tests.kit.code_agents.world import World
from tests.kit.frameworks.table import Framework
from tests.kit.model_server import ModelServer
from tests.kit.runs.definitions import NOW
from tests.kit.runs.executing import OneWorker
from tests.kit.runs.stored_runs import said
from tests.kit.wait_until import wait_until
from worker.agents.hosts import CodeAgents

CANCEL = CancelRequest(requested_at=NOW, actor="ada", reason="enough")


class Installed(NamedTuple):
    """One version of a framework, and the Python that has it."""

    framework: Framework
    python: Path


@dataclass(frozen=True)
class Hosted:
    """The agents of one version of a framework, and the model that they ask."""

    framework: Framework
    python: Path
    stage: FileStage
    models: ModelServer
    agents: CodeAgents

    @asynccontextmanager
    async def changed(self, **environment: str) -> AsyncGenerator[CodeAgents]:
        """The agents of another deploy."""
        own = {**self.models.base_urls(), **environment}
        async with self.stage.agents(self.framework.program, str(self.python), environment=own) as agents:
            yield agents


@dataclass(frozen=True, kw_only=True)
class FrameworkWorld(World):
    """A world whose agents are those of a framework."""

    hosted: Hosted

    @property
    def models(self) -> ModelServer:
        return self.hosted.models

    def sent_to_model(self, number: int) -> list[dict[str, Any]]:
        """The messages of a request to the model, the first with the number 0; without those of the system. Contents
        of several parts are one text."""
        messages = self.models.requests[number].body["messages"]
        return [_with_text(one) for one in messages if one["role"] not in ("system", "developer")]

    async def offered(self, agent: str, *client_tools: ClientTool) -> Run:
        """Submits a message with tools of the client."""
        options = RunOptions(code_agent=agent, stream_tokens=True, client_tools=list(client_tools))
        return await self.stores.submitted(said("go"), options=options)

    async def answered(self, run: Run, result: str, client_tools: Sequence[ClientTool]) -> Run:
        """Returns the run that continues one that waits for its client, whose result this is. A client sends its tools
        with each request."""
        [asked] = await self.stores.asked(run)
        made = Decision(tool_call_id=asked.tool_call_id, kind="tool", tool_return=result)
        options = RunOptions(stream_tokens=True, client_tools=list(client_tools))
        return await self.stores.decide(made, options=options)

    async def cancelled(self, run: Run, worker: OneWorker) -> Run:
        """Cancels the run. Returns it when the worker is done with it."""
        await self.stores.runs.request_cancel(await self.stores.runs.look_up(run.id), CANCEL)
        assert await worker.ended() is None
        return await self.stores.runs.look_up(run.id)

    def kill(self) -> None:
        """Kills the newest process of an agent, as the kernel does when memory runs out."""
        os.kill(self.pids[-1], signal.SIGKILL)

    @property
    def pids(self) -> list[int]:
        """The processes of agents, the oldest first."""
        return [int(one.split()[1]) for one in self.stage.reached if one.startswith("pid ")]

    @property
    def did(self) -> list[str]:
        """The effects of the tools, in all processes."""
        return [one for one in self.stage.reached if not one.startswith("pid ")]

    @property
    def is_alive(self) -> bool:
        """Whether any process of an agent lives."""
        return any(map(_lives, self.pids))

    async def shows(self, run: Run, text: str) -> None:
        """Returns when readers of the running run have this text."""

        async def is_shown() -> bool:
            entries = await EventLog(self.redis, ttl_s=3600).read(run.id, Seq(0))
            events = [decode(entry) for _, entry in entries]
            return "".join(one.text for one in events if isinstance(one, TextChunk)) == text

        await wait_until(is_shown, description=f"{text!r} to be shown")


def _with_text(message: dict[str, Any]) -> dict[str, Any]:
    parts: list[dict[str, str]] | str | None = message.get("content")
    if not isinstance(parts, list) or any("text" not in one for one in parts):
        return message
    return {**message, "content": "\n".join(one["text"] for one in parts)}


def _lives(pid: int) -> bool:
    """Whether a process lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
