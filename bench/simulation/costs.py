"""The cost of work for each kind of process, which a simulation needs."""

from pathlib import Path

import msgspec

POOLS = ("worker", "api", "redis", "postgres")


class PoolCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Processor time of one kind of process, in microseconds. A process uses one core; each core of Postgres counts as
    a process."""

    token: float
    """Per token that a model writes; for the API, per token that a client reads."""
    step: float
    """Per step after the first."""
    run: float
    """Per run, including its first step."""


class Costs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measured by `python -m bench.run`; docs/scaling.md names the sections."""

    worker: PoolCosts
    api: PoolCosts
    redis: PoolCosts
    postgres: PoolCosts

    def of(self, pool: str) -> PoolCosts:
        return getattr(self, pool)


def read_costs(file: Path) -> Costs:
    """Reads the costs from a JSON file. Raises `ValueError`, which names the fault."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Costs)
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{file}: {error}") from error
