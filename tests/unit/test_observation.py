"""Who is told of a run, and what follows when one of them fails: nothing for the run."""

from collections.abc import Sequence

import pytest

from shared.concurrency import SystemClock
from shared.domain.ids import IdMaker
from shared.domain.runs import Step
from tests.kit.log_events import log_events
from tests.kit.runs.definitions import NOW
from tests.kit.runs.stored_runs import AGENT, some_run
from worker.models.provider import AttemptFailed, ModelCall, Text
from worker.run.interruption import Interruption
from worker.run.observation import SUCCESS, Observed, ObservedModelCall, RunObservation, RunObserver

CALL = ModelCall(handle="openai/gpt-4o-mini", system="", history=[])


class Broken(RunObserver):
    """Fails at everything that it is told."""

    def began(self, what: Observed) -> None:
        raise ValueError("Counters can only be incremented by non-negative amounts.")

    def ended(self, what: Observed) -> None:
        raise ZeroDivisionError

    def first_piece(self, call: ObservedModelCall) -> None:
        raise ZeroDivisionError

    def retried(self, call: ObservedModelCall, failure: AttemptFailed) -> None:
        raise ZeroDivisionError

    def shown(self, size: int, delay_s: float | None) -> None:
        raise ZeroDivisionError

    def restarted(self) -> None:
        raise ZeroDivisionError

    def log_lost(self) -> None:
        raise ZeroDivisionError


class Noting(RunObserver):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.first: list[ObservedModelCall] = []

    def began(self, what: Observed) -> None:
        self.told.append("began")

    def ended(self, what: Observed) -> None:
        self.told.append("ended")

    def first_piece(self, call: ObservedModelCall) -> None:
        self.told.append("first piece")
        self.first += [call] if call.is_first else []

    def retried(self, call: ObservedModelCall, failure: AttemptFailed) -> None:
        self.told.append("retried")

    def shown(self, size: int, delay_s: float | None) -> None:
        self.told.append("shown")

    def restarted(self) -> None:
        self.told.append("restarted")

    def log_lost(self) -> None:
        self.told.append("log lost")


def observed_by(*observers: RunObserver) -> RunObservation:
    return RunObservation(
        some_run(),
        worker="worker-1",
        clock=SystemClock(),
        interruption=Interruption(),
        observers=observers,
    )


def a_step() -> Step:
    ids = IdMaker()
    return Step(id=ids.step(), run_id=ids.run(), agent_id=AGENT.id, number=1, model=CALL.handle, created_at=NOW)


def test_an_observer_that_failed_ended_the_run() -> None:
    """A provider reported -1 tokens, which no counter takes: the run ended with an error of the one who counted."""
    noting = Noting()
    observation = observed_by(Broken(), noting)

    with log_events() as logged, observation.executing():
        with observation.model_call(CALL, a_step()) as call:
            observation.hear(call, AttemptFailed(attempt=1, wait=0.1, error="llm_timeout"))
            observation.hear(call, Text("Hello"))
        observation.shown(10, 0.1)
        observation.restarted()
        observation.log_lost()

    told = ["began", "began", "retried", "first piece", "ended", "shown", "restarted", "log lost", "ended"]
    assert noting.told == told
    assert (call.outcome, observation.run.outcome) == (SUCCESS, SUCCESS)
    assert [line["observer"] for line in logged.all("observer_failed")] == ["Broken"] * len(told)


@pytest.mark.parametrize(
    ("calls", "first"),
    [
        pytest.param(["summary", "step"], 1, id="a summary came before"),
        pytest.param(["silent step", "step"], 1, id="the call before brought nothing"),
        pytest.param(["step", "step"], 0, id="another step follows"),
    ],
)
def test_a_summary_was_taken_for_the_first_answer_of_a_run(calls: Sequence[str], first: int) -> None:
    """A full window made the time to the first token look short: nobody waits for a summary."""
    noting, made = Noting(), list[ObservedModelCall]()
    observation = observed_by(noting)

    for kind in calls:
        with observation.model_call(CALL, None if kind == "summary" else a_step()) as call:
            if kind != "silent step":
                observation.hear(call, Text("Hello"))
        made.append(call)

    assert noting.first == [made[first]]
