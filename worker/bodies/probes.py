"""Asks the probe of a tool for the outcome of a call that a lost worker had started.

A probe (`probe_of`) is a function of the tool's source, or another tool of its MCP server. It runs as the tool does: in
the sandbox, with the same variables, packages and network, or at the server. The worker calls it before the run goes
on, and never for a call whose result is known.
"""

import asyncio
import re
import textwrap
from typing import Any, NamedTuple

from msgspec.structs import replace

from shared.domain.effects import KEY_PARAMETER, PROBE, SettledEffect, Verdict, verdict_of
from shared.domain.errors import ShutdownRequested
from shared.domain.mcp_servers import source_metadata, tool_source
from shared.domain.messages import ToolCall, ToolReturn
from shared.domain.settling import unknown_return
from shared.domain.tool_catalog import is_base_tool
from shared.domain.tools import CUSTOM, PYTHON, TYPESCRIPT, Tool
from shared.tool_arguments import RefusedArguments, check_arguments
from worker.bodies.agent_context import AgentContext
from worker.runners.tool_runner import ForeignOutcome
from worker.tools.outcomes import without_secrets

TRIES_AFTER_S = (0.0, 0.5, 2.0)
"""Seconds before each try. A probe that raises is tried again: the service that it asks may be unavailable for a
moment, and a call whose outcome is unknown once stays unknown for ever."""

LONGEST_VERDICT = 1_000_000
"""The most characters of a probe's result."""

_DEFINITIONS = {PYTHON: r"^(async )?def {}\(", TYPESCRIPT: r"^(export\s+)?((async\s+)?function\s+{0}\b|const\s+{0}\b)"}
"""Patterns of a function's definition at the top level of a source, by its language."""


class Probe(NamedTuple):
    """A probe, and the parameters that it takes."""

    tool: Tool
    """The probe in the form of a tool, so that the tool's runner can call it."""
    parameters: frozenset[str] | None = None
    """The parameters that the probe takes. None: its runner passes the parameters that its function has."""

    def arguments(self, of_call: dict[str, Any], key: str) -> dict[str, Any]:
        """Returns the arguments of the call that the probe takes, and the call's key."""
        if self.parameters is None:
            return of_call
        known = {**of_call, KEY_PARAMETER: key}
        return {name: known[name] for name in self.parameters if name in known}


def probe_of(tool: Tool) -> Probe | None:
    """Returns the tool's probe; None if it has none."""
    name = PROBE + tool.name
    if (source := tool_source(tool)) is not None:
        if source.probe is None or source.probe.problem:
            return None
        place = source_metadata(replace(source, tool_name=source.probe.tool_name, probe=None))
        asked = replace(tool, name=name, metadata=place, return_char_limit=LONGEST_VERDICT)
        return Probe(asked, frozenset(source.probe.parameters))
    definition = _DEFINITIONS.get(tool.source_type) if tool.tool_type == CUSTOM else None
    if definition is None:
        return None
    if not re.search(definition.format(re.escape(name)), textwrap.dedent(tool.source_code), re.MULTILINE):
        return None
    return Probe(replace(tool, name=name, return_char_limit=LONGEST_VERDICT))


async def result_of_lost_call(
    context: AgentContext, call: ToolCall, tool: Tool, arguments: str, *, may_repeat: bool
) -> ToolReturn | None:
    """Returns the result of a call that an earlier owner of the run had started: the probe's result, or "outcome
    unknown". None if the tool starts again; the new attempt is stored then.

    `arguments` is JSON. `may_repeat`: the tool may be started twice. Raises what interrupts a run.
    """
    verdict = await _verdict(context, call, tool, arguments)
    if verdict is not None and verdict.happened:
        return await _settled(context, call, verdict.result_of(call, tool))
    if verdict is None and not may_repeat:
        return unknown_return(call)
    # Base tools find the work that they have begun: their calls are made again whenever a run goes on.
    if not is_base_tool(tool):
        checkpoints = context.handle.services.checkpoints
        attempt = 1 + await context.whole(lambda: checkpoints.attempt(context.run, call.id))
        await context.handle.calls.starting(call, attempt)
    return None


async def _settled(context: AgentContext, call: ToolCall, result: ToolReturn) -> ToolReturn:
    settlement = SettledEffect(
        idempotency_key=context.idempotency_key(call),
        call_id=call.id,
        by="probe",
        outcome="happened",
        result=result.text,
        at=context.handle.clock.now(),
    )
    record = context.handle.services.checkpoints.record_settled_effect
    async with context.writing() as run:
        await context.whole(lambda: record(run, settlement, [result]))
    return result


async def _verdict(context: AgentContext, call: ToolCall, tool: Tool, arguments: str) -> Verdict | None:
    """Asks the probe. None if the tool has no probe, or if the probe cannot tell."""
    probe, runner = probe_of(tool), context.services.runners.of(tool)
    # Each call of such a tool needs a person's decision, and a probe's call has none.
    if probe is None or runner.traits.asks_always:
        return None
    checked = await check_arguments(arguments, runner.arguments(tool))
    if isinstance(checked, RefusedArguments):
        return Verdict(happened=False)  # the tool was not started with these arguments
    given = probe.arguments(checked, context.idempotency_key(call))
    async with context.services.sandbox.of_run(context.run.id):  # for a tool whose calls share a folder
        for delay_s in TRIES_AFTER_S:
            await asyncio.sleep(delay_s)
            if context.handle.interruption.leaves:
                raise ShutdownRequested  # the next owner asks the probe
            said = await runner.call(context, call, probe.tool, given)
            if isinstance(said, ForeignOutcome) and said.outcome.status == "success":
                return verdict_of((await without_secrets(said.outcome, context.secrets)).text)
    return None
