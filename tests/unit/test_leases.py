"""What becomes of a lease, event by event: the table of `worker.queue.leases`, without clock, Redis or thread."""

from collections.abc import Callable

import pytest

from shared.redis.queue import Renewal
from worker.queue.leases import Leases, LeaseState, Report

LEASE_S = 6.0
MARGIN_S = 1.0
JOB = "run-1:1"
HELD, UNSURE, LOST, RELEASING = LeaseState.HELD, LeaseState.UNSURE, LeaseState.LOST, LeaseState.RELEASING
RENEWED, TAKEN, FORGOTTEN = Renewal.RENEWED, Renewal.TAKEN, Renewal.FORGOTTEN

Happening = Callable[[Leases], object]


def leases_in(state: LeaseState) -> Leases:
    """A lease that was claimed at second 0, brought into a state."""
    leases = Leases(LEASE_S)
    leases.hold(JOB, asked_at=0)
    match state:
        case LeaseState.HELD:
            pass
        case LeaseState.UNSURE:
            leases.renewed({JOB: FORGOTTEN}, asked_at=0)
        case LeaseState.LOST:
            leases.renewed({JOB: TAKEN}, asked_at=0)
        case LeaseState.RELEASING:
            leases.release(JOB)
    assert leases.state(JOB) is state
    return leases


def answered(answer: Renewal) -> Happening:
    return lambda leases: leases.renewed({JOB: answer}, asked_at=0)


def retaken(leases: Leases) -> bool:
    return leases.retaken(JOB, asked_at=0)


def refused(leases: Leases) -> bool:
    return leases.refused(JOB)


def overdue(leases: Leases) -> list[str]:
    return leases.overdue(LEASE_S)


def released(leases: Leases) -> bool:
    return leases.release(JOB)


def claimed_again(leases: Leases) -> None:
    leases.hold(JOB, asked_at=0)


TABLE: list[tuple[Happening, LeaseState, LeaseState, object]] = [
    (answered(RENEWED), HELD, HELD, []),
    (answered(RENEWED), UNSURE, UNSURE, []),
    (answered(RENEWED), LOST, LOST, []),
    (answered(RENEWED), RELEASING, RELEASING, []),
    (answered(FORGOTTEN), HELD, UNSURE, []),
    (answered(FORGOTTEN), UNSURE, UNSURE, []),
    (answered(FORGOTTEN), LOST, LOST, []),
    (answered(FORGOTTEN), RELEASING, RELEASING, []),
    (answered(TAKEN), HELD, LOST, [JOB]),
    (answered(TAKEN), UNSURE, LOST, [JOB]),
    (answered(TAKEN), LOST, LOST, []),
    (answered(TAKEN), RELEASING, RELEASING, []),
    (retaken, HELD, HELD, True),
    (retaken, UNSURE, HELD, True),
    (retaken, LOST, LOST, False),
    (retaken, RELEASING, RELEASING, False),
    (refused, HELD, LOST, True),
    (refused, UNSURE, LOST, True),
    (refused, LOST, LOST, False),
    (refused, RELEASING, RELEASING, False),
    (overdue, HELD, LOST, [JOB]),
    (overdue, UNSURE, LOST, [JOB]),
    (overdue, LOST, LOST, []),
    (overdue, RELEASING, RELEASING, []),
    (released, HELD, RELEASING, True),
    (released, UNSURE, RELEASING, True),
    (released, LOST, LOST, False),
    (released, RELEASING, RELEASING, True),
    (claimed_again, HELD, HELD, None),
    (claimed_again, UNSURE, UNSURE, None),
    (claimed_again, LOST, LOST, None),
    (claimed_again, RELEASING, RELEASING, None),
]


@pytest.mark.parametrize(("happening", "state", "becomes", "told"), TABLE)
def test_every_state_with_everything_that_may_happen(
    happening: Happening, state: LeaseState, becomes: LeaseState, told: object
) -> None:
    leases = leases_in(state)
    assert happening(leases) == told
    assert leases.state(JOB) is becomes


@pytest.mark.parametrize("happening", [happening for happening, state, *_ in TABLE if state is HELD][:-1])
def test_a_job_that_is_not_here_stays_away(happening: Happening) -> None:
    """An answer may come when the job is gone already."""
    leases = Leases(LEASE_S)
    assert not happening(leases)
    assert leases.state(JOB) is None


@pytest.mark.parametrize("state", LeaseState)
def test_only_living_leases_are_renewed_and_only_forgotten_ones_are_taken_again(state: LeaseState) -> None:
    leases = leases_in(state)
    assert list(leases.to_renew()) == ([JOB] if state in (HELD, UNSURE) else [])
    assert leases.unsure() == ([JOB] if state is UNSURE else [])


@pytest.mark.parametrize("state", LeaseState)
def test_a_job_that_is_gone_is_forgotten(state: LeaseState) -> None:
    leases = leases_in(state)
    leases.forget(JOB)
    assert leases.state(JOB) is None
    assert leases.to_renew() == {}


def test_a_job_stops_before_its_lease_ends() -> None:
    leases = leases_in(HELD)
    assert leases.overdue(LEASE_S - MARGIN_S - 0.001) == []
    assert leases.overdue(LEASE_S - MARGIN_S) == [JOB]


@pytest.mark.parametrize("longer", ["claimed again", "renewed", "retaken"])
def test_a_lease_counts_from_before_its_request(longer: str) -> None:
    """The answer may have taken long, and Redis counts from when it came."""
    leases = leases_in(HELD)
    match longer:
        case "renewed":
            leases.renewed({JOB: RENEWED}, asked_at=2.0)
        case "retaken":
            leases.retaken(JOB, asked_at=2.0)
        case _:
            leases.hold(JOB, asked_at=2.0)
    assert leases.overdue(2.0 + LEASE_S - MARGIN_S - 0.001) == []
    assert leases.overdue(2.0 + LEASE_S - MARGIN_S) == [JOB]


def test_a_renewal_that_is_read_late_does_not_shorten_a_lease() -> None:
    leases = leases_in(HELD)
    leases.renewed({JOB: RENEWED}, asked_at=4.0)
    leases.renewed({JOB: RENEWED}, asked_at=2.0)
    assert leases.overdue(4.0 + LEASE_S - MARGIN_S - 0.001) == []


def test_a_renewal_is_not_trusted_while_sql_has_not_said_whose_the_run_is() -> None:
    """Redis has the lease again, but the sweeper may have given the run to somebody else before."""
    leases = leases_in(UNSURE)
    leases.renewed({JOB: RENEWED}, asked_at=4.0)
    assert leases.unsure() == [JOB]
    assert leases.overdue(LEASE_S - MARGIN_S) == [JOB]


def test_a_loop_that_stood_still_reads_all_reports_before_it_gives_a_lease_up() -> None:
    """The loop stood still for three leases, the thread renewed meanwhile. The first of its reports is old by now: the
    job was stopped although its lease held."""
    leases = leases_in(HELD)
    now = 3 * LEASE_S
    reports = [Report({JOB: RENEWED}, asked_at) for asked_at in (2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0)]
    assert leases.catch_up(reports, now=now) == {}
    assert leases.state(JOB) is HELD
    assert list(leases.catch_up([], now=16.0 + LEASE_S - MARGIN_S)) == [JOB]


def test_a_loop_that_stood_still_stops_what_was_not_renewed_in_time() -> None:
    leases = leases_in(HELD)
    lost = leases.catch_up([Report({JOB: RENEWED}, 2.0), Report({}, 4.0), Report({}, 6.0)], now=3 * LEASE_S)
    assert lost == {JOB: "it could not be renewed in time"}


def test_a_job_is_told_once_that_it_is_lost() -> None:
    """It was taken, and overdue at the same moment."""
    leases = leases_in(HELD)
    reports = [Report({JOB: TAKEN}, 2.0), Report({JOB: TAKEN}, 4.0)]
    assert leases.catch_up(reports, now=3 * LEASE_S) == {JOB: "another worker has it"}
    assert leases.catch_up(reports, now=3 * LEASE_S) == {}


def test_the_leases_of_other_jobs_are_left_alone() -> None:
    leases = leases_in(HELD)
    leases.hold("run-2:1", asked_at=4.0)
    assert leases.catch_up([Report({JOB: TAKEN, "run-2:1": RENEWED}, 5.0)], now=6.0) == {JOB: "another worker has it"}
    assert list(leases.to_renew()) == ["run-2:1"]
