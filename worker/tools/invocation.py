"""A tool call as the sandbox gets it, and what comes back. The seam behind which isolation can be strengthened."""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

import msgspec
from msgspec.structs import replace

from shared.domain.ids import ProjectId, RunId
from shared.domain.tools import DEFAULT_RETURN_CHAR_LIMIT, ToolLimits


class ToolInvocation(msgspec.Struct, frozen=True):
    """One call: source and arguments travel over a pipe, never pasted into code."""

    project_id: ProjectId
    """Whose call it is: calls of two projects share no process."""
    source_code: str
    function: str
    arguments: dict[str, Any]
    argument_schema: dict[str, Any] | None = None
    """JSON Schema of the arguments, if the client has sent one. What it defines in `$defs` comes as objects."""
    environment: dict[str, str] = {}
    """Variables that this tool may see; it sees no others."""
    agent: dict[str, Any] | None = None
    """The agent and its memory as JSON, for a function that has a parameter `agent_state`. None: it gets None."""
    folders: tuple[str, ...] = ()
    """Folders of packages that this tool may import from. It can only read them."""
    language: Literal["python", "javascript"] = "python"
    """A source in JavaScript is a module that exports the function. Where `function` is empty it is a program, whose
    value is what it exports as default."""
    parameters: tuple[str, ...] = ()
    """The order of the arguments, for a language that knows no others."""
    has_network: bool = False
    """It may connect to the hosts that the operator allows."""
    run_id: RunId | None = None
    """The run whose folder it shares with other calls, within `ToolSandbox.of_run`; None: it has no such folder."""
    timeout_s: float = 180.0
    limits: ToolLimits = ToolLimits()
    """What the tool itself says, where that is less."""
    return_char_limit: int = DEFAULT_RETURN_CHAR_LIMIT

    @property
    def longest_s(self) -> float:
        """Seconds after which the call is stopped."""
        return self.timeout_s if self.limits.timeout_s is None else min(self.timeout_s, self.limits.timeout_s)

    @property
    def limited_by(self) -> str:
        """What says `longest_s`: the tool, or the server's setting where the tool may take longer or says nothing."""
        own = self.limits.timeout_s
        return "limits.timeout_s of the tool" if own is not None and own <= self.timeout_s else "HOLDFAST_TOOL_TIMEOUT"


class CallLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one call may use. The kernel holds it to them."""

    memory_bytes: int
    """Address space."""
    processor_s: int
    file_bytes: int
    """The longest file that it writes."""
    threads: int = 1024
    """Where a call has no user of its own, all threads of its user count, so this can only stop a runaway."""

    def narrowed(self, wanted: ToolLimits) -> "CallLimits":
        """These, or what the tool says where that is less."""
        memory_bytes = self.memory_bytes if wanted.memory_mb is None else min(self.memory_bytes, wanted.memory_mb << 20)
        processor_s = self.processor_s if wanted.cpu_s is None else min(self.processor_s, wanted.cpu_s)
        return msgspec.structs.replace(self, memory_bytes=memory_bytes, processor_s=processor_s)


class ToolOutcome(msgspec.Struct, frozen=True):
    """What the call came to. Tenant data: nothing in it is trusted."""

    status: Literal["success", "error"]
    text: str
    stdout: list[str] = []
    stderr: list[str] = []
    is_text: bool = True
    """As in `ToolReturn`."""


class ToolSandbox(Protocol):
    """Runs tool calls."""

    async def call(self, invocation: ToolInvocation) -> ToolOutcome:
        """Runs one call. A tool's own failure is an outcome, never an exception.

        When the awaiting task is cancelled, the tool gets its chance to clean up and is dead, with every process that
        it started, before the cancellation goes on.
        """
        ...

    def of_run(self, run_id: RunId) -> AbstractAsyncContextManager[None]:
        """Calls of the run may share a folder during the block. Behind it the folder is gone."""
        ...

    async def aclose(self) -> None:
        """Ends every call that still runs and frees what the sandbox holds."""
        ...


# Takes an agent's secrets out of what its tools return and print, before anybody sees it: the model, the people who
# read the conversation, streams.
#
# It is for accidents: a program that prints its settings, an error that quotes a request with its key. It stops no tool
# that means to give a secret away: one that is spelled backwards, in pieces or encoded is not recognized.
#
# A tenant chooses how many secrets there are, what they are and what a tool says. So what one result may cost is
# bounded: each spelling is looked for by itself, in a time that grows with the text alone, and of a text that is too
# long for so many spellings the end is left out.


SHORTEST = 8
"""Characters of the shortest value that is looked for. Shorter ones are words, which stand in any text."""

AT_ONCE = 500_000
"""Characters times spellings that are looked through on the event loop: a millisecond; 30 for the worst of texts."""

MOST = 100_000_000
"""Characters times spellings that are looked through at all: 0.2 s on a thread; some seconds for the worst of texts."""

CUT = "... [left out: too long to be looked through for the agent's secrets]"

_NOT_IN_A_NAME = re.compile(r"[^\w.-]")


async def without_secrets(outcome: ToolOutcome, secrets: Mapping[str, str]) -> ToolOutcome:
    """The outcome with `[secret NAME]` in the place of each value."""
    shown_as = dict(_spellings(secrets))
    if not shown_as:
        return outcome
    said = sum(map(len, (outcome.text, *outcome.stdout, *outcome.stderr)))
    if said * len(shown_as) <= AT_ONCE:
        return _redacted(outcome, shown_as)
    return await asyncio.to_thread(_redacted, outcome, shown_as)


def _redacted(outcome: ToolOutcome, shown_as: Mapping[str, str]) -> ToolOutcome:
    # The longest first: a secret may be the beginning of another one.
    spellings = sorted(shown_as, key=len, reverse=True)
    longest = MOST // len(spellings)

    def redacted(text: str) -> str:
        text = text if len(text) <= longest else text[:longest] + CUT
        for spelling in spellings:
            text = text.replace(spelling, shown_as[spelling])
        return text

    return replace(
        outcome,
        text=redacted(outcome.text),
        stdout=redacted("\n".join(outcome.stdout)).split("\n") if outcome.stdout else [],
        stderr=[redacted(text) for text in outcome.stderr],
    )


def _spellings(secrets: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each way in which a value is usually written, with what stands in its place: as it is, as JSON and as Python
    write it, and each of its lines, because output is looked through line by line."""
    for name, value in secrets.items():
        shown = f"[secret {_NOT_IN_A_NAME.sub('_', name)}]"
        for text in (value, *value.splitlines()):
            as_json = json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]
            ways = {text, text.strip(), *as_json, repr(text)[1:-1]}
            yield from ((way, shown) for way in ways if len(way) >= SHORTEST)
