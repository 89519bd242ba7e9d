"""What work costs each kind of process: the figures that a simulation stands on."""

from pathlib import Path

import msgspec

POOLS = ("worker", "api", "redis", "postgres")


class PoolCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Processor time of one kind of process, in microseconds. Each uses one core; of Postgres, a core counts as one."""

    token: float
    """For each token that a model writes; of the API, for each that a client reads."""
    step: float
    """For each step beyond the first."""
    run: float
    """For each run, with its first step."""


class Costs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measured by `python -m bench.run`; where from is said in docs/scaling.md."""

    worker: PoolCosts
    api: PoolCosts
    redis: PoolCosts
    postgres: PoolCosts

    def of(self, pool: str) -> PoolCosts:
        return getattr(self, pool)


def read_costs(file: Path) -> Costs:
    """The costs in a JSON file. Raises `ValueError` that says what is wrong in it."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Costs)
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{file}: {error}") from error
