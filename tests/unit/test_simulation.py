"""What a simulated fleet says agrees with what can be worked out by hand."""

from pathlib import Path

import pytest

from bench.simulation.__main__ import simulate, sized
from bench.simulation.costs import Costs, PoolCosts, read_costs
from bench.simulation.fleet import Fleet, Simulation, Workload

NOTHING = PoolCosts(token=0, step=0, run=0)
EVEN = Workload(steps=1, silence_s=1.0, tokens=100, tokens_per_s=50, watched=1.0, spread=0.0)
"""Each run waits for a second and then streams for two."""


def costs_of(**pools: PoolCosts) -> Costs:
    return Costs(**{**dict.fromkeys(("worker", "api", "redis", "postgres"), NOTHING), **pools})


def test_load_is_what_the_runs_give() -> None:
    """300 runs of three seconds: 100 a second, 200 stream at a time."""
    costs = costs_of(worker=PoolCosts(token=50, step=0, run=0), postgres=PoolCosts(token=0, step=0, run=1000))
    fleet = Fleet(worker=4, api=1, redis=1)
    outcome = Simulation(costs, fleet, EVEN, in_flight=300).run(warm_up_s=6, for_s=6)
    assert outcome.streaming == pytest.approx(200, rel=0.03)
    assert outcome.tokens_per_s == pytest.approx(10_000, rel=0.03)
    assert outcome.runs_per_s == pytest.approx(100, rel=0.05)
    assert outcome.pools["worker"].busy == pytest.approx(10_000 * 50e-6 / 4, rel=0.05)
    assert outcome.pools["postgres"].busy == pytest.approx(0.1, rel=0.1)


def test_a_process_with_too_much_to_do_falls_behind() -> None:
    costs = costs_of(worker=PoolCosts(token=150, step=0, run=0))
    outcome = Simulation(costs, Fleet(worker=1, api=1, redis=1), EVEN, in_flight=300).run(warm_up_s=6, for_s=6)
    worker = outcome.pools["worker"]
    assert worker.busy == pytest.approx(1.0)
    assert worker.needed == pytest.approx(1.5, rel=0.05)
    assert worker.wait_p99_s > 1


def test_a_fleet_is_as_large_as_it_must_be() -> None:
    costs = costs_of(worker=PoolCosts(token=50, step=0, run=0), api=PoolCosts(token=10, step=0, run=0))
    fleet = sized(costs, EVEN, in_flight=6000, busy=0.5)
    assert fleet.worker == pytest.approx(20, rel=0.05) and fleet.api == pytest.approx(4, abs=1)
    assert simulate(costs, EVEN, in_flight=600, busy=0.5).pools["worker"].busy == pytest.approx(0.5, rel=0.1)


def test_costs_that_cannot_be_read_are_refused_with_their_place(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_text('{"worker": {"token": "fast"}}')
    with pytest.raises(ValueError, match=r"costs\.json.*\$\.worker\.token"):
        read_costs(file)
