"""The interface of a tool runner, which makes the calls of one kind of tool, and the table of runners.

A runner's caller does the work that is the same for all calls: it checks rules, gates and arguments, stores the intent,
removes secrets, limits time and the length of results, and shows and stores the call. The tool's row says whether a
call may be started twice (`Tool.idempotent`).
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from shared.domain.agents import Agent, Block
from shared.domain.events import ChildStarted, ChildWaits
from shared.domain.ids import AgentId, BlockId
from shared.domain.messages import ToolCall, ToolReturn
from shared.domain.runs import Run
from shared.domain.tool_catalog import JsonObject
from shared.domain.tools import Tool
from worker.tools.outcomes import ToolOutcome

Result = TypeVar("Result")


class CallingRun(Protocol):
    """The part of a run that a runner may use."""

    @property
    def run(self) -> Run: ...

    @property
    def agent(self) -> Agent: ...

    @property
    def blocks(self) -> Sequence[Block]:
        """The agent's memory as the model has seen it."""
        ...

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The agent's tools, by name."""
        ...

    @property
    def secrets(self) -> Mapping[str, str]:
        """The agent's decrypted secrets; empty unless one of its tools has a runner that sees them."""
        ...

    @property
    def seen_memory(self) -> dict[BlockId, int]:
        """The version of each block that the model has seen. The model's own edit increments it."""
        ...

    @property
    def at(self) -> int:
        """The current time for an event, in Unix milliseconds."""
        ...

    def idempotency_key(self, call: ToolCall, /) -> str:
        """Returns the key of a call. It is the same in every attempt, and unique to this call."""
        ...

    def started_agents(self, call: ToolCall, /) -> Collection[AgentId]:
        """Returns the agents for which this call has started a run, as far as `emit_once` has shown it."""
        ...

    def emit_once(self, event: ChildStarted | ChildWaits, /) -> None:
        """Shows an event about a run that the call has started. A repetition in a later claim shows nothing."""
        ...

    def writing(self) -> AbstractAsyncContextManager[Run]:
        """Keeps the run's writes in order. Yields the run with its owner's current fence."""
        ...

    async def whole(self, action: Callable[[], Awaitable[Result]], /) -> Result:
        """Performs a write without interruption, and repeats it while the database is unavailable."""
        ...


@dataclass(frozen=True, kw_only=True)
class RunnerTraits:
    """Properties of a runner's calls, for the caller. The defaults suit a third party's server."""

    sees_secrets: bool = True
    """A call may see the agent's secrets, because it runs foreign code or asks a foreign server. The worker decrypts
    them for the call, and removes them from the result."""
    finds_its_result: bool = False
    """If a call is repeated after its worker was lost, the runner finds the effect, which was stored with the result.
    For any other runner, the stored result counts."""
    limits_results: bool = False
    """The runner enforces `Tool.return_char_limit` itself. If not, the caller cuts its results."""
    asks_always: bool = False
    """A person decides on each call, whatever the settings of agent and tool, because the operator demands it."""
    timeout_s: float | None = 60.0
    """Seconds after which the caller cancels a call and returns an error result. None if the runner ends its calls
    itself."""


class ToolRunner(Protocol):
    """Makes the calls of one kind of tool."""

    @property
    def traits(self) -> RunnerTraits: ...

    def arguments(self, tool: Tool) -> JsonObject:
        """Returns the JSON Schema that the arguments must fit before `call`."""
        ...

    async def call(
        self, run: CallingRun, call: ToolCall, tool: Tool, arguments: dict[str, Any]
    ) -> "ToolReturn | ForeignOutcome":
        """Makes a call whose intent is stored. A cancel of the run cancels the call, which then ends the work it has
        started and re-raises the cancellation. Raises `CallWaits` if the result depends on other runs. The worker then
        makes the call again later, so its tool must be `idempotent`."""
        ...


class ForeignOutcome(NamedTuple):
    """The outcome of foreign code or a foreign server, before it becomes a result. The caller removes secrets at this
    stage, because JSON, for example, would escape them so that they are not found."""

    outcome: ToolOutcome
    returned: Callable[[ToolOutcome], ToolReturn]
    """Makes the result from the outcome without secrets."""


@dataclass(frozen=True)
class RunnerRow:
    """A runner, and the tools that it serves."""

    runner: ToolRunner
    types: str = ""
    """The prefix of the tool types. Empty means all types."""
    names: frozenset[str] | None = None
    """The names of the tools of these types. None means all names."""

    def fits(self, tool: Tool) -> bool:
        """Returns whether the runner is for this tool."""
        return tool.tool_type.startswith(self.types) and (self.names is None or tool.name in self.names)


class ToolRunners:
    """The runners of a worker. A tool gets the runner of the first row that fits."""

    def __init__(self, *rows: RunnerRow) -> None:
        self._rows = rows

    def of(self, tool: Tool) -> ToolRunner:
        """Returns the tool's runner. The last row must fit every tool, because a newer release may have stored new
        types."""
        return next(row.runner for row in self._rows if row.fits(tool))


def error_return(call: ToolCall, text: str) -> ToolReturn:
    """Returns the result of a call that was not made, or whose outcome is unknown."""
    return ToolReturn(tool_call_id=call.id, tool_name=call.name, status="error", text=text)
