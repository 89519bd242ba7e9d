"""Prints the result: runs, faults, recoveries, errors of requests, and the counts that must be zero."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from bench.chaos.deployment import PROJECTS
from bench.chaos.faults import OVERLAP_S, Faults
from bench.chaos.ledger import Column, Ledger
from bench.chaos.recovery import NEVER, Recovered, Recoveries, percentile
from bench.chaos.run_checks import RunChecks
from bench.chaos.schedule import FaultKind

SHOWN = 60
"""Violations that are printed; all are counted."""

KILL_SLACK_S = 2.0
UNDISTURBED = "no other fault"
BEGINS_ALONE = "no other fault, two workers lost without a step"
DISTURBED = "among other faults"


@dataclass
class Scoreboard:
    """The result of a performance."""

    seed: int
    tier: str
    lease_s: float
    ledger: Ledger
    faults: Faults
    recoveries: Recoveries
    runs: RunChecks
    explicit_gaps: int
    tool_starts: int
    mcp_calls: int
    """Calls that reached an MCP server."""
    children: int
    """Runs that agents' calls have begun."""

    def is_clean(self, *, timed: bool) -> bool:
        """Returns whether all counts that must be zero are; if `timed`, also whether no recovery took too long."""
        return not self.ledger.violations and not (timed and self._too_slow())

    def lines(self) -> Iterable[str]:
        """Renders the whole result."""
        accepted = f"{len(self.ledger.runs)} runs accepted in {len(PROJECTS)} projects"
        calls = f"{self.tool_starts} tools started, {self.mcp_calls} calls of MCP servers, {self.children} child runs"
        yield f"seed {self.seed}, {accepted}, {calls}, isolation: {self.tier}"
        yield from self._ends()
        yield from _counted("faults", Counter(happened.fault.kind.value for happened in self.faults.happened))
        yield from _counted("faults left out, because another one had their target", self.faults.skipped)
        yield from _counted("failed runs", self.runs.errors)
        yield from _counted("limits that were reached", self.ledger.limits)
        yield from _counted("connections and statuses", self.ledger.http)
        yield from _counted("notes", self.ledger.notes)
        yield ""
        yield from self._recovery()
        yield from self._columns()

    def _ends(self) -> Iterable[str]:
        statuses = sorted({status for _, status in self.runs.ends})
        yield ""
        yield f"{'runs':24}" + "".join(f"{status:>18}" for status in statuses)
        for kind in sorted({kind for kind, _ in self.runs.ends}):
            yield f"{kind:24}" + "".join(f"{self.runs.ends[kind, status]:>18}" for status in statuses)

    def _recovery(self) -> Iterable[str]:
        for kind in (FaultKind.KILL_WORKER, FaultKind.FREEZE_WORKER, FaultKind.END_WORKER):
            for title, measured in self._measured(kind).items():
                yield f"recovery, {kind}, {title}: {_figures([one.took_s for one in measured])}"
        if self.recoveries.unknown:
            yield f"recovery: of {self.recoveries.unknown} faults it is unknown which runs the worker held"

    def _columns(self) -> Iterable[str]:
        counted = Counter(violation.column for violation in self.ledger.violations)
        yield f"explicit gaps: {self.explicit_gaps}"
        yield ""
        yield "must be zero"
        for column in Column:
            yield f"  {column.value:48}{counted[column]:>6}"
        yield f"  {'recovery later than the lease + 2 s':48}{len(self._too_slow()):>6}"
        for violation in self.ledger.violations[:SHOWN]:
            yield f"! {violation.column.value}: {violation.run_id} ({violation.kind}): {violation.detail}"
        for one in self._too_slow()[:SHOWN]:
            yield f"! recovery: {one.run_id} took {one.took_s:.2f} s"

    def _too_slow(self) -> list[Recovered]:
        """Returns the recoveries above the bound, if they are more than one in a hundred: the bound is for the p99."""
        kills = self._measured(FaultKind.KILL_WORKER)[UNDISTURBED]
        limit = self.lease_s + KILL_SLACK_S
        if not kills or percentile([one.took_s for one in kills], 0.99) <= limit:
            return []
        return [one for one in kills if one.took_s > limit]

    def _measured(self, kind: FaultKind) -> dict[str, list[Recovered]]:
        """Returns the recoveries from faults of this kind, by the other faults that they had to wait for."""
        measured: dict[str, list[Recovered]] = {UNDISTURBED: [], BEGINS_ALONE: [], DISTURBED: []}
        for one in self.recoveries.measured:
            if one.fault.kind is kind:
                kept_waiting = BEGINS_ALONE if one.begins_alone else UNDISTURBED
                measured[kept_waiting if self._is_undisturbed(one) else DISTURBED].append(one)
        return measured

    def _is_undisturbed(self, recovered: Recovered) -> bool:
        return not any(
            happened.began_at < recovered.until and happened.ended_at + OVERLAP_S > recovered.began_at
            for happened in self.faults.happened
            if happened.fault is not recovered.fault
        )


def _figures(figures: list[float]) -> str:
    if not figures:
        return "none"
    p50, p99 = percentile(figures, 0.5), percentile(figures, 0.99)
    never = sum(figure == NEVER for figure in figures)
    lost = f", {never} not within a minute" if never else ""
    return f"{len(figures)} runs, p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms{lost}"


def _counted(title: str, counted: Counter[str]) -> Iterable[str]:
    if counted:
        yield ""
        yield title
        yield from (f"  {name:56}{times:>6}" for name, times in sorted(counted.items()))
