"""The server itself: its health, its keys, what it does."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from api.answers.messages import Fields, Nothing, Time


class Index(TypedDict):
    """Where to go from here."""

    name: str
    version: str
    console: str
    paths: str
    health: str
    readiness: str
    documentation: str


class Health(TypedDict):
    """Letta's health check. `version` is the release of Letta's server whose API this is."""

    version: str
    status: str
    holdfast_version: str


class Liveness(TypedDict):
    """The process lives."""

    status: str


class Readiness(TypedDict):
    """Whether what the API needs is there, by name. `sandbox` and `javascript`: of the whole deployment (`?full`). The
    fields of an error: while it is not ready."""

    status: Literal["ready", "not ready"]
    services: dict[str, bool | None]
    sandbox: NotRequired[str | None]
    javascript: NotRequired[bool | None]
    detail: NotRequired[str]
    code: NotRequired[str]
    message: NotRequired[str]
    field: NotRequired[str | None]
    hint: NotRequired[str]


class Deleted(TypedDict):
    """What was asked for is gone."""

    message: str


class ApiKey(TypedDict):
    """A key, without its secret."""

    id: str
    project: str
    name: str
    scopes: list[str]
    prefix: str
    status: Literal["active", "expired", "revoked"]
    created_at: Time
    created_by: str | None
    expires_at: Time | None
    last_used_at: Time | None
    rotated_at: Time | None
    revoked_at: Time | None


class IssuedKey(ApiKey):
    """A new key. Its secret is in this answer and nowhere else."""

    key: str


class DeploymentStatus(TypedDict):
    """The deployment as an operator asks for it."""

    holdfast_version: str
    status: Literal["ready", "not ready"]
    services: dict[str, bool | None]
    sandbox: str | None
    sandboxes: list[str]
    javascript: bool | None


class AuditEvent(TypedDict):
    """Who did what, when and from where."""

    id: str
    at: Time
    project: str
    key_id: str | None
    key_name: str | None
    action: str
    object_id: str | None
    outcome: str
    address: str | None
    user_agent: str | None
    request_id: str | None


class DatabaseState(TypedDict):
    """The database."""

    kind: Literal["sqlite", "postgresql"]
    answers_ms: float | None


class RedisState(TypedDict):
    """The Redis that all processes share."""

    embedded: bool
    answers_ms: float | None
    used_memory_bytes: int | None
    max_memory_bytes: int | None


class LogServerState(TypedDict):
    """A Redis that keeps logs of runs."""

    server: str
    used_memory_bytes: int | None
    max_memory_bytes: int | None


class ProcessState(TypedDict):
    """A process that lives: a worker has `runs` and what follows, a process of the API `readers`."""

    name: str
    version: str
    started_at: Time
    seen_at: Time
    readers: NotRequired[int]
    runs: NotRequired[int]
    max_runs: NotRequired[int]
    sandbox: NotRequired[str | None]
    javascript: NotRequired[bool | None]


class QueueFigures(TypedDict):
    """The queue."""

    waiting: int | None
    oldest_wait_s: float | None
    in_flight: int | None


class ActiveRuns(TypedDict):
    """Runs that have not ended."""

    created: int
    running: int
    awaiting_approval: int


class EndedRuns(TypedDict):
    """Runs that ended within the last hour."""

    completed: int
    failed: int
    cancelled: int


class Percentiles(TypedDict):
    """Milliseconds."""

    p50: float | None
    p95: float | None
    p99: float | None


class CallbackCounts(TypedDict):
    """Callbacks that are not delivered yet."""

    waiting: int
    failing: int


class MinuteFigures(TypedDict):
    """A minute of the last hour."""

    at: Time
    submitted: int
    completed: int
    failed: int
    cancelled: int
    queue_wait_p50_ms: float | None
    first_token_p50_ms: float | None


class OperationsView(TypedDict):
    """What the deployment does. A field is null while the service that knows it is away."""

    at: Time
    version: str
    services: dict[str, bool | None]
    database: DatabaseState
    redis: RedisState
    log_servers: list[LogServerState] | None
    workers: list[ProcessState] | None
    api_processes: list[ProcessState] | None
    queue: QueueFigures
    runs: ActiveRuns | None
    ended_last_hour: EndedRuns | None
    queue_wait_ms: Percentiles | None
    first_token_ms: Percentiles | None
    callbacks: CallbackCounts | None
    last_hour: list[MinuteFigures] | None


class OpenCallback(TypedDict):
    """A callback that waits, or was given up: then `next_attempt_at` is null."""

    run_id: str
    url: str
    attempts: int
    next_attempt_at: Time | None
    last_status_code: int | None
    last_error: str | None
    created_at: Time


class OpenDelivery(TypedDict):
    """What a webhook endpoint has not heard of. It waits, or was given up: then `next_attempt_at` is null."""

    id: str
    run_id: str
    webhook_id: str
    url: str | None
    outcome: Literal["completed", "failed", "cancelled", "incomplete"]
    attempts: int
    next_attempt_at: Time | None
    last_status_code: int | None
    last_error: str | None
    created_at: Time


class NoFiles(TypedDict):
    """There are none."""

    files: list[Fields]
    next_cursor: Nothing
    has_more: bool


class NoRepositories(TypedDict):
    """There are none."""

    repositories: list[Fields]


class NoSharedAgents(TypedDict):
    """There are none."""

    agents: list[Fields]
    nextCursor: Nothing
