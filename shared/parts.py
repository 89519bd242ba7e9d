"""What both processes are built from: made once by the command line, handed to the composition roots."""

from collections.abc import Mapping
from dataclasses import dataclass

from shared.clock import Clock
from shared.domain.ids import IdMaker
from shared.redis.connection import Redis
from shared.settings import Settings
from shared.sql.engine import Database


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of one process."""

    settings: Settings
    database: Database
    redis: Redis
    clock: Clock
    ids: IdMaker
    environment: Mapping[str, str]
    """The process's environment variables, with the model providers' keys."""
