"""The state machine, every status with every trigger. The table is written here a second time, as what must hold."""

import pytest

from shared.domain.errors import IllegalTransition
from shared.domain.lifecycle import (
    ACTIVE,
    STREAM_ENDED,
    TERMINAL,
    TRANSITIONS,
    RunStatus,
    RunTrigger,
    next_status,
    sources_of,
)

LEADS_TO: dict[str, dict[str, str]] = {
    "created": {"claim": "running", "fail": "failed", "cancel": "cancelled"},
    "running": {
        "claim": "running",
        "park": "awaiting_approval",
        "complete": "completed",
        "fail": "failed",
        "cancel": "cancelled",
    },
    "awaiting_approval": {"decide": "completed", "cancel": "cancelled"},
    "completed": {},
    "failed": {},
    "cancelled": {},
}


@pytest.mark.parametrize("status", RunStatus)
@pytest.mark.parametrize("trigger", RunTrigger)
def test_every_status_with_every_trigger(status: RunStatus, trigger: RunTrigger) -> None:
    target = LEADS_TO[status].get(trigger)
    if target is None:
        with pytest.raises(IllegalTransition) as refused:
            next_status(status, trigger)
        assert (refused.value.status, refused.value.trigger) == (status, trigger)
        assert status not in sources_of(trigger)
    else:
        assert next_status(status, trigger) == target
        assert sources_of(trigger)[status] == target


def test_the_table_has_every_status() -> None:
    assert set(LEADS_TO) == set(RunStatus)


def test_a_terminal_status_has_no_way_out_and_every_other_has_one() -> None:
    assert {status for status in RunStatus if not LEADS_TO[status]} == TERMINAL
    assert set(RunStatus) == TERMINAL | ACTIVE
    assert not TERMINAL & ACTIVE


@pytest.mark.parametrize("status", sorted(ACTIVE))
def test_every_active_run_can_be_cancelled(status: RunStatus) -> None:
    assert next_status(status, RunTrigger.CANCEL) is RunStatus.CANCELLED


def test_every_status_can_be_reached() -> None:
    reached = {RunStatus.CREATED}
    while more := {target for (source, _), target in TRANSITIONS.items() if source in reached} - reached:
        reached |= more
    assert reached == set(RunStatus)


def test_streams_end_when_a_run_ends_or_is_parked() -> None:
    assert TERMINAL | {RunStatus.AWAITING_APPROVAL} == STREAM_ENDED
