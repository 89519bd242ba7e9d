"""Computes the fleet that many runs in flight need, from the costs of its processes: `python -m bench.simulation
bench/simulation/costs.json --in-flight 100000`.

It sizes the fleet so that no process is busier than `--busy`, simulates a minute, and prints how busy each kind of
process was and how long tokens waited there.
"""

import argparse
import math
import sys
from pathlib import Path

import msgspec

from bench.progress import progress_bar
from bench.simulation.costs import POOLS, Costs, read_costs
from bench.simulation.fleet import Fleet, Outcome, Simulation, Workload

SAMPLE = 2000
"""Runs in flight of the simulation that measures the work."""

MEASURED_S, WARM_UP_S = 30.0, 30.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.simulation", description=__doc__)
    parser.add_argument("costs", type=Path, help="a JSON file with processor times in microseconds")
    parser.add_argument("--in-flight", type=int, default=100_000, metavar="N", help="concurrent runs")
    parser.add_argument("--busy", type=float, default=0.7, help="the most that a process may be busy, from 0 to 1")
    parser.add_argument("--workload", type=Path, help="a JSON file with other steps, tokens and times")
    parser.add_argument("--json", type=Path, help="also write the outcome to this file")
    options = parser.parse_args()
    if options.in_flight < 1 or not 0 < options.busy <= 1:
        parser.error("--in-flight is at least 1, and --busy is above 0 and at most 1")
    try:
        costs = read_costs(options.costs)
        work = msgspec.json.decode(options.workload.read_bytes(), type=Workload) if options.workload else Workload()
    except (ValueError, OSError) as error:
        sys.exit(f"holdfast: {error}")
    outcome = simulate(costs, work, in_flight=options.in_flight, busy=options.busy)
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(outcome)) + b"\n")
    print(table(outcome))


def simulate(costs: Costs, work: Workload, *, in_flight: int, busy: float) -> Outcome:
    """Simulates a fleet of the needed size under load."""
    fleet = sized(costs, work, in_flight=in_flight, busy=busy)
    with progress_bar(f"{in_flight:,} runs", WARM_UP_S + MEASURED_S) as progress:
        simulation = Simulation(costs, fleet, work, in_flight=in_flight)
        return simulation.run(warm_up_s=WARM_UP_S, for_s=MEASURED_S, progress=progress)


def sized(costs: Costs, work: Workload, *, in_flight: int, busy: float) -> Fleet:
    """Returns the smallest fleet in which no process is busier than `busy`, from the work of a sample of runs. Postgres
    is one server, so its figure is the cores that it needs."""
    sample = min(in_flight, SAMPLE)
    one_of_each = Fleet(worker=1, api=1, redis=1)
    few = Simulation(costs, one_of_each, work, in_flight=sample).run(warm_up_s=WARM_UP_S, for_s=MEASURED_S)
    return Fleet(**{name: math.ceil(few.pools[name].needed * in_flight / sample / busy) or 1 for name in POOLS})


def table(outcome: Outcome) -> str:
    """Renders the outcome in Markdown."""
    lines = [
        f"{outcome.in_flight:,} runs in flight, {outcome.streaming:,.0f} of them streaming: "
        f"{outcome.tokens_per_s:,.0f} tokens/s, {outcome.runs_per_s:,.0f} runs/s",
        "",
        "| processes | number | busy | wait of a token there, p50 | p99 |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, pool in outcome.pools.items():
        waits = f"{pool.wait_p50_s * 1000:.1f} ms | {pool.wait_p99_s * 1000:.1f} ms"
        lines.append(f"| {name} | {pool.processes:,} | {pool.busy:.0%} | {waits} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
