"""After which lost workers a run is executed alone, and after which it is given up."""

import msgspec
import pytest

from shared.domain.runs import AttemptLimits
from tests.kit.runs.stored_runs import some_run


@pytest.mark.parametrize(
    ("max_attempts", "quarantined_after", "given_up_after"),
    [(1, {1}, 2), (2, {2}, 3), (3, {2}, 3), (5, {2, 3, 4}, 5)],
)
def test_a_run_is_alone_from_the_second_loss_until_it_is_given_up(
    max_attempts: int, quarantined_after: set[int], given_up_after: int
) -> None:
    limits = AttemptLimits.of(max_attempts)
    lost = [msgspec.structs.replace(some_run(), attempts_without_progress=number) for number in range(9)]
    assert {run.attempts_without_progress for run in lost if limits.demand_quarantine(run)} == quarantined_after
    # A claim is an attempt: the run that was lost with so many workers is claimed once more, and then ends.
    ends = [run.attempts_without_progress for run in lost if limits.give_up(run)]
    assert min(ends) == given_up_after + 1
