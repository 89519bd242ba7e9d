"""The body of runs of an operator's own code: one process per attempt. The journal lets a process continue where
another one ended.

Crash, hand-over, decision and deploy are handled alike: the process is killed, and a later one replays the journal.
"""

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import structlog

from shared.domain.errors import CancelRequested, ErrorCode, NotFound, RunTimeout
from shared.domain.events import StopReason
from shared.domain.journal import BodyChanged, begun_anew
from shared.domain.lifecycle import RunTrigger
from shared.domain.runs import RunError
from shared.domain.settling import RunEnd
from worker.agents.attached_tools import AttachedTools
from worker.agents.attempt import Attempt
from worker.agents.body_process import BodyProcess, HostGone, ProcessEnd
from worker.agents.frames import BodyRaised
from worker.agents.hosts import CodeAgents
from worker.agents.models.endpoint import ModelEndpoint
from worker.agents.models.run_models import RunModels
from worker.bodies.agent_context import AgentServices
from worker.run.run_handle import AwaitsRuns, Body, Outcome, Parked, RunHandle, Sleeps
from worker.run.settle import failed_by_defect

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Result = TypeVar("Result")

QUIET_S = 3.0

MOST_CRASHES = 3
"""Processes in a row that may end before one of them has stored an entry of the journal."""

LONGEST_TEXT = 2000
"""The most characters of an exception's text in the run's error."""


class _Crashed(NamedTuple):
    """A process that has ended by itself."""

    ending: ProcessEnd | None
    """None if its host is gone and cannot report how it ended."""
    in_hand: list[str]
    has_stored: bool
    was_shared: bool = False
    """Whether the process had other runs, which may have ended it."""

    @property
    def said(self) -> str:
        """How the process has ended, in words."""
        return f"its process ended with {_named(self.ending)}{_where(self.in_hand)}"


@dataclass(frozen=True)
class CodeBody(Body):
    """Executes an agent of a module in a process of its own."""

    agents: CodeAgents
    services: AgentServices
    """For the tools that are attached to its agents."""
    grace_s: float
    """Seconds for a cancelled body to clean up before its process is killed."""
    endpoint: ModelEndpoint
    quiet_s: float = QUIET_S
    """Seconds without a frame of its process after which a run that only sleeps leaves the worker. Code that works
    beside the sleep for longer than that, without a call, repeats this work."""

    async def execute(self, handle: RunHandle) -> Outcome | Parked | AwaitsRuns | Sleeps:
        name = handle.run.options.code_agent or ""
        serves_all = self.agents.described[name].models == "worker"
        if handle.run.follows_wait and handle.shown.message_id is not None:
            handle.begin_again()  # the code emits again what it had emitted before its call had to wait
        try:
            async with self.endpoint.of_run(handle, serves_all=serves_all) as models:
                return await self._to_end(handle, name, models)
        except NotFound as error:
            log.warning("run_cannot_go_on", reason=error.message)
            return Outcome(end=failed_by_defect(error))

    async def _to_end(self, handle: RunHandle, name: str, models: RunModels) -> Outcome | Parked | AwaitsRuns | Sleeps:
        crashes, is_alone, tools = 0, False, AttachedTools(handle, self.services, self.quiet_s)
        for number in range(1, 1_000_000):
            attempt = await Attempt.load(handle, self.services, models, tools, number)
            try:
                async with tools.of_attempt():
                    ended = await self._once(handle, attempt, models, tools, is_alone=is_alone)
            except BodyChanged as change:
                if self.agents.described[name].on_change == "fail":
                    return _failed(ErrorCode.BODY_CHANGED, "The agent's code has changed during the run.", str(change))
                log.warning("body_begins_anew", reason=str(change))
                models.forget()
                await handle.record_journal(begun_anew(attempt.replay.entries.values()), anew=True)
                continue
            except BodyRaised as error:
                log.warning("body_raised", error=error.error_type, traceback=error.traceback)
                return _raised(error)
            if not isinstance(ended, _Crashed):
                return ended
            # It is unknown which of several runs has ended their process, so each continues in a process of its own.
            is_alone = True
            crashes = (1 if ended.has_stored else crashes + 1) if not ended.was_shared else crashes
            log.warning("body_crashed", reason=ended.said, crashes=crashes)
            if (failed := _failed_with(ended, crashes)) is not None:
                return failed
            if handle.shown.message_id is not None:
                handle.begin_again()
        raise RuntimeError("a body was executed a million times")

    async def _once(
        self, handle: RunHandle, attempt: Attempt, models: RunModels, tools: AttachedTools, *, is_alone: bool
    ) -> Outcome | Parked | AwaitsRuns | Sleeps | _Crashed:
        name = handle.run.options.code_agent or ""
        with handle.interruption.shielded():
            process = await (self.agents.fork(name) if is_alone else self.agents.join(name))
        try:
            ended = await attempt.converse(process)
            if ended is not None:
                return ended
            models.process_is_gone()
            return _Crashed(await process.kill(), attempt.in_hand, attempt.has_stored, process.is_shared)
        except HostGone:
            return _Crashed(None, attempt.in_hand, attempt.has_stored)
        finally:
            if handle.interruption.error is not None:
                models.stop()  # before the body may clean up
                tools.stop()
            await tools.stop_reading()
            await self._end(handle, process, attempt)

    async def _end(self, handle: RunHandle, process: BodyProcess, attempt: Attempt) -> None:
        """Returns when the process is gone, or executes nothing of the run any longer. The body of a cancelled run may
        clean up first."""
        error, may_stay = handle.interruption.error, False
        try:
            # A run that has timed out is killed in a process of its own; in a shared process, it is asked to end first.
            if isinstance(error, CancelRequested) or (isinstance(error, RunTimeout) and process.is_shared):
                stored = await handle.services.runs.look_up(handle.run.id)
                process.send({"t": "cancel", "reason": None if stored.cancel is None else stored.cancel.reason})
                await _at_most(self.grace_s, _clean_up(process))
            if process.has_ended:
                may_stay = error is None or not process.goes_on
            elif error is None:
                # The body waits for an answer that never comes. In a scope, or beside a sleep, more may be running.
                may_stay = not attempt.in_hand or (
                    process.has_others and bool(await _at_most(self.grace_s, process.freeze()))
                )
        finally:
            await (process.leave() if may_stay else process.kill())


async def _clean_up(process: BodyProcess) -> None:
    """Returns when the body reports its end. Other frames no longer count."""
    while (frame := await process.receive()) is not None:
        if frame["t"] in ("stopped", "returned", "raised"):
            return


async def _at_most(seconds: float, work: Coroutine[Any, Any, Result]) -> Result | None:
    """Returns the result of the work; None if it takes longer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await work
    return None


def _raised(error: BodyRaised) -> Outcome:
    if error.error_type == MemoryError.__name__:
        return _failed(ErrorCode.BODY_OUT_OF_MEMORY, "The agent's process could get no more memory.", error.said)
    return _failed(ErrorCode.BODY_ERROR, "The agent's code has raised an exception.", error.said)


def _failed_with(crashed: _Crashed, crashes: int) -> Outcome | None:
    """Returns the end of a run whose process has ended; None if the run is executed again."""
    if crashed.was_shared:
        return None
    if crashed.ending is not None and crashed.ending.grown_mb:
        # Another process would grow in the same way, and pay for the same model calls.
        said = f"The agent's process has grown beyond HOLDFAST_AGENTS_MAX_MB ({crashed.ending.max_mb} MiB)."
        return _failed(ErrorCode.BODY_OUT_OF_MEMORY, said, crashed.said)
    if crashes < MOST_CRASHES:
        return None
    return _failed(ErrorCode.BODY_CRASHED, f"The agent's process has ended {crashes} times.", crashed.said)


def _failed(code: ErrorCode, message: str, detail: str) -> Outcome:
    error = RunError(code, message, detail[:LONGEST_TEXT])
    return Outcome(end=RunEnd(trigger=RunTrigger.FAIL, stop_reason=StopReason.FAILED, cause="body", error=error))


def _named(ending: ProcessEnd | None) -> str:
    """Describes the end of a process in words."""
    if ending is None:
        return "its host"
    if ending.grown_mb:
        return f"{ending.grown_mb} MiB of its own"
    if ending.status >= 0:
        return f"exit code {ending.status}"
    try:
        return signal.Signals(-ending.status).name
    except ValueError:
        return f"signal {-ending.status}"


def _where(in_hand: list[str]) -> str:
    return f" in {', '.join(map(repr, in_hand))}" if in_hand else ""
