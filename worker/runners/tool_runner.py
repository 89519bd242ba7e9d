"""The port of tools: what makes the calls of one kind of tool, and the table that says which.

What holds for every call stays outside, once: the rules and gates that allow it, its intent, the check of its
arguments, the secrets that are left out of what it says, its time, the room that results have, and how it is shown and
stored. Whether a call may be started twice is a property of the tool's row (`Tool.idempotent`).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from shared.domain.agents import Agent, Block
from shared.domain.ids import BlockId
from shared.domain.messages import ToolCall, ToolReturn
from shared.domain.runs import Run
from shared.domain.tool_catalog import JsonObject
from shared.domain.tools import Tool
from worker.tools.outcomes import ToolOutcome

Result = TypeVar("Result")


class CallingRun(Protocol):
    """What a runner may know of the run whose call it makes."""

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
        """The agent's tools, by their names."""
        ...

    @property
    def secrets(self) -> Mapping[str, str]:
        """The agent's secrets, readable; nothing, unless one of its tools has a runner that sees them."""
        ...

    @property
    def seen_memory(self) -> dict[BlockId, int]:
        """The version of each block that the model has seen. An edit of the model's own takes it on."""
        ...

    def writing(self) -> AbstractAsyncContextManager[Run]:
        """Holds the run's writes in their order. Gives the run with the fence that its owner has now."""
        ...

    async def whole(self, action: Callable[[], Awaitable[Result]], /) -> Result:
        """Does a write that must be whole: nothing interrupts it, and it is repeated while the database is away."""
        ...


@dataclass(frozen=True, kw_only=True)
class RunnerTraits:
    """What is done around the calls of a runner. By itself as for a server of somebody else's."""

    sees_secrets: bool = True
    """A call may see the agent's secrets, because it runs code, or asks a server, that is not the product's. They are
    opened for it, and left out of whatever it returns."""
    finds_its_result: bool = False
    """A call that is made once more, after its worker was lost, finds what it has done: it was stored with its result.
    Of any other runner's call, the result that was stored counts."""
    limits_results: bool = False
    """The runner keeps to `Tool.return_char_limit` by itself. If not, its results are cut."""
    timeout_s: float | None = 60.0
    """Seconds after which a call is cancelled, and its result says so. None: the runner ends its calls by itself."""


class ToolRunner(Protocol):
    """Makes the calls of one kind of tool."""

    @property
    def traits(self) -> RunnerTraits: ...

    def arguments(self, tool: Tool) -> JsonObject:
        """The JSON Schema that the arguments must fit before `call`."""
        ...

    async def call(
        self, run: CallingRun, call: ToolCall, tool: Tool, arguments: dict[str, Any]
    ) -> "ToolReturn | ForeignOutcome":
        """Makes a call whose intent is stored. A cancel of the run cancels it: it ends what it has started, and lets
        the cancellation go on."""
        ...


class ForeignOutcome(NamedTuple):
    """What somebody else's code, or server, has come to, where the result is made of it: in JSON, for example, a secret
    would be spelled in another way."""

    outcome: ToolOutcome
    returned: Callable[[ToolOutcome], ToolReturn]
    """Makes the result of it, once the secrets are out."""


@dataclass(frozen=True)
class RunnerRow:
    """Which tools a runner is for."""

    runner: ToolRunner
    types: str = ""
    """The beginning of the tool types. The empty one stands for all."""
    names: frozenset[str] | None = None
    """The tools of these types that are meant. None: all of them."""

    def fits(self, tool: Tool) -> bool:
        """Whether the tool is one of them."""
        return tool.tool_type.startswith(self.types) and (self.names is None or tool.name in self.names)


class ToolRunners:
    """The runners of a worker: the first row that fits a tool has its runner."""

    def __init__(self, *rows: RunnerRow) -> None:
        self._rows = rows

    def of(self, tool: Tool) -> ToolRunner:
        """The tool's runner. The last row is to fit every tool: a newer release may have stored types of its own."""
        return next(row.runner for row in self._rows if row.fits(tool))


def error_return(call: ToolCall, text: str) -> ToolReturn:
    """The result of a call that was not made, or of which nothing is known."""
    return ToolReturn(tool_call_id=call.id, tool_name=call.name, status="error", text=text)
