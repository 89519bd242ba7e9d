"""The sections of the bench, in order. Each has its measurement, its deployments and its number of repetitions."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from bench.deployments import Deployment
from bench.figures import EMBEDDED, MODEL, RELAY, SERVICES, Figure
from bench.sections import (
    age,
    burst,
    cancels,
    code_agents,
    dialects,
    folds,
    idle,
    recovery,
    redis_floor,
    replay,
    start,
    throughput,
    waiting,
)

PRODUCT = frozenset({EMBEDDED, SERVICES})
WITH_RELAY = PRODUCT | {RELAY}
EVERYTHING = WITH_RELAY | {MODEL}

Measure = Callable[[Deployment], Awaitable[list[Figure]]]


class Section(NamedTuple):
    """A group of figures that are measured together."""

    measure: Measure
    on: frozenset[str]
    is_repeated: bool
    """Whether it is measured in every round. Otherwise it takes long, or is already the worst of many times."""

    profiles: bool = False
    """Whether `--profile` measures it by default."""

    is_default: bool = True
    """Whether it is measured by default."""


SECTIONS = {
    "redis-floor": Section(redis_floor.redis_floor, frozenset({RELAY}), is_repeated=True),
    "start": Section(start.start, PRODUCT, is_repeated=True),
    "first-token": Section(waiting.first_token, EVERYTHING, is_repeated=True),
    "token-delay": Section(waiting.token_delay, EVERYTHING, is_repeated=True, profiles=True),
    "throughput": Section(throughput.tokens_per_s, EVERYTHING, is_repeated=True, profiles=True),
    "short-runs": Section(throughput.short_runs, WITH_RELAY, is_repeated=True, profiles=True),
    "dialects": Section(dialects.dialects, PRODUCT, is_repeated=True),
    "folds": Section(folds.folds, frozenset({SERVICES}), is_repeated=True),
    "replay": Section(replay.half_of_a_log, WITH_RELAY, is_repeated=True),
    "long-replay": Section(replay.few_of_many, WITH_RELAY, is_repeated=False),
    "idle": Section(idle.idle_readers, WITH_RELAY, is_repeated=False),
    "idle-conversations": Section(idle.idle_conversations, PRODUCT, is_repeated=False),
    "burst": Section(burst.burst, WITH_RELAY, is_repeated=False),
    "cancel": Section(cancels.cancel, PRODUCT, is_repeated=False),
    "cancel-floor": Section(cancels.cancel_streaming, frozenset({RELAY}), is_repeated=False),
    "cancel-load": Section(cancels.cancel_under_load, PRODUCT, is_repeated=False),
    "tool": Section(waiting.tool_call, PRODUCT, is_repeated=False),
    "hand-over": Section(recovery.hand_over, PRODUCT, is_repeated=False),
    "crash": Section(recovery.crash, PRODUCT, is_repeated=False),
    "code-agents": Section(code_agents.code_agents, WITH_RELAY, is_repeated=False),
    "age": Section(age.age, PRODUCT, is_repeated=False, is_default=False),
}
