"""The result of a performance, as text."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.chaos.faults import Faults
from bench.chaos.recovery import percentile
from bench.long_conversation.checks import Checks
from bench.long_conversation.model import PlannedModel
from bench.long_conversation.talk import Talk

SHOWN = 40
"""Violations that are printed; all are counted."""

PART = 10
"""The first tenth of the turns is compared with the last."""


@dataclass
class Report:
    """Figures and findings."""

    seed: int
    measured_on: str
    database: str
    model: PlannedModel
    violations: list[str] = field(default_factory=list[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    changed_hands: int = 0
    took_s: float = 0.0
    turns: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """The seconds of each turn, by agent."""
    answers: int = 0
    edits: int = 0
    summaries: int = 0
    estimates: list[float] = field(default_factory=list[float])
    """Of the first request after each compaction: the model's count of tokens divided by the estimate."""

    @property
    def is_clean(self) -> bool:
        return not self.violations

    def talked(self, talks: Sequence[Talk], took_s: float, faults: Faults) -> None:
        """Takes the figures of ended conversations."""
        self.took_s = took_s
        self.turns = {talk.name: talk.took_s for talk in talks}
        self.faults = Counter(happened.fault.kind.value for happened in faults.happened)
        self.changed_hands = len(faults.recoveries.measured)

    def checked(self, checks: Checks) -> None:
        """Takes the figures of a checked history."""
        self.answers += len(set(checks.told.answers))
        self.summaries += len(checks.told.summaries)
        self.edits += sum(fact[0] == "returned" and fact[-1] == "success" for fact in checks.told.facts)
        for number, message in checks.told.summaries.items():
            stats = message.compaction_stats
            if number in self.model.first_after and stats is not None and stats.context_tokens_after:
                self.estimates.append(self.model.first_after[number] / stats.context_tokens_after)

    def lines(self) -> Iterable[str]:
        """Renders the whole result."""
        model = self.model
        turns = sum(map(len, self.turns.values()))
        yield f"seed {self.seed}, {self.database}, window {model.window}; {self.measured_on}"
        yield ""
        yield f"turns       {turns} ({', '.join(f'{name} {len(took)}' for name, took in self.turns.items())})"
        yield f"time        {self.took_s:.0f} s, {turns / max(self.took_s, 0.001):.1f} turns/s"
        for name, took in self.turns.items():
            yield f"a turn      {name}: {_pace(took)}"
        yield f"edits       {self.edits} applied"
        asked = len(model.answers)
        yield f"model       {asked} answers, {asked - self.answers} of them lost with their worker and requested again"
        lost = len(model.summaries) - self.summaries
        yield f"compactions {self.summaries}; {lost} more summaries were written and lost with their worker"
        largest = max((one.tokens for one in model.answers.values()), default=0)
        yield f"requests    the largest had {largest} of {model.window} tokens; {len(model.refused)} were refused"
        if self.estimates:
            low, high = min(self.estimates), max(self.estimates)
            middle = median(self.estimates)
            yield f"estimate    counted tokens for 1 estimated: {low:.2f} to {high:.2f}, median {middle:.2f}"
        yield f"faults      {self.faults.total()}; {self.changed_hands} times another worker took over a run"
        yield from (f"            {times:4} {name}" for name, times in sorted(self.faults.items()))
        yield ""
        yield f"must be zero: {len(self.violations)} violations"
        yield from (f"! {one}" for one in self.violations[:SHOWN])


def _pace(took: Sequence[float]) -> str:
    """Compares medians, which ignore the turns that had to wait for another worker."""
    part = max(1, len(took) // PART)
    if not took:
        return "none was answered"
    figures = [f"{median(some) * 1000:.0f} ms" for some in (took, took[:part], took[-part:])]
    slowest = f"p99 {percentile(list(took), 0.99):.1f} s"
    return f"median {figures[0]}, of the first tenth {figures[1]}, of the last {figures[2]}; {slowest}"
