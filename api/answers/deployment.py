"""The server itself: its health, its keys, its activity; and agents of operators' own code, with their journals."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from api.answers.messages import Anything, Fields, Nothing, Time


class Index(TypedDict):
    """Links for a first visit."""

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
    """The process is alive."""

    status: str


class Readiness(TypedDict):
    """The services that the API needs, by name, and whether each answers. `sandbox` and `javascript` concern the whole
    deployment (`?full`). The fields of an error are present while the server is not ready."""

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
    """The object was deleted."""

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
    """A new key. Only this answer contains its secret."""

    key: str


class DeploymentStatus(TypedDict):
    """The deployment's state for an operator."""

    holdfast_version: str
    status: Literal["ready", "not ready"]
    services: dict[str, bool | None]
    sandbox: str | None
    sandboxes: list[str]
    javascript: bool | None


class AuditEvent(TypedDict):
    """An audit event: actor, action, time and origin."""

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
    """A Redis that stores logs of runs."""

    server: str
    used_memory_bytes: int | None
    max_memory_bytes: int | None


class ProcessState(TypedDict):
    """A live process. A worker has `runs` and the following fields, a process of the API has `readers`."""

    name: str
    version: str
    started_at: Time
    seen_at: Time
    readers: NotRequired[int]
    runs: NotRequired[int]
    max_runs: NotRequired[int]
    sandbox: NotRequired[str | None]
    javascript: NotRequired[bool | None]


class QueueStats(TypedDict):
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


class MinuteStats(TypedDict):
    """A minute of the last hour."""

    at: Time
    submitted: int
    completed: int
    failed: int
    cancelled: int
    queue_wait_p50_ms: float | None
    first_token_p50_ms: float | None


class OperationsView(TypedDict):
    """The deployment's activity. A field is null while the service that has its value is away."""

    at: Time
    version: str
    services: dict[str, bool | None]
    database: DatabaseState
    redis: RedisState
    log_servers: list[LogServerState] | None
    workers: list[ProcessState] | None
    api_processes: list[ProcessState] | None
    queue: QueueStats
    runs: ActiveRuns | None
    ended_last_hour: EndedRuns | None
    queue_wait_ms: Percentiles | None
    first_token_ms: Percentiles | None
    callbacks: CallbackCounts | None
    last_hour: list[MinuteStats] | None


class OpenCallback(TypedDict):
    """A callback that waits, or that was given up, in which case `next_attempt_at` is null."""

    run_id: str
    url: str
    attempts: int
    next_attempt_at: Time | None
    last_status_code: int | None
    last_error: str | None
    created_at: Time


class OpenDelivery(TypedDict):
    """An event that a webhook endpoint has not received. `next_attempt_at` is null if it was given up."""

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
    """An empty list: agents have no files here."""

    files: list[Fields]
    next_cursor: Nothing
    has_more: bool


class NoRepositories(TypedDict):
    """An empty list: agents have no repositories here."""

    repositories: list[Fields]


class NoSharedAgents(TypedDict):
    """An empty list: there are no shared agents here."""

    agents: list[Fields]
    nextCursor: Nothing


# Agents of operators' own code.


class CodeAgentOfRun(TypedDict):
    """The agent of an operator's own code that executes the run, and the version that executed it last."""

    name: str
    version: str | None


class CodeAgentVersion(TypedDict):
    """A version of an agent of own code. `version` is null if the code declares none."""

    version: str | None
    workers: int
    last_seen_at: Time


class CodeAgent(TypedDict):
    """An agent of own code, with the number of live workers that have it, in total and by version."""

    name: str
    description: str
    framework: str
    workers: int
    versions: list[CodeAgentVersion]


class JournalError(TypedDict):
    """The exception of a call of the code."""

    type: str
    text: str


class JournalEntry(TypedDict):
    """One call that the code of a run has made."""

    slot: str
    number: int
    branch: str
    kind: Literal["step", "model", "tool", "approval", "inbox", "sleep"]
    name: str
    state: Literal["started", "done", "failed", "unknown"]
    attempt: int
    started_at: Time
    ended_at: Time | None
    idempotency_key: str
    error: JournalError | None
    result: NotRequired[Anything]


class RecordedEntry(JournalEntry):
    """A journal entry with hashes of the call's arguments and settings."""

    hash: str
    settings_hash: str


class Replay(TypedDict):
    """The data with which an execution of the run's code begins, and the journal's answers."""

    run_id: str
    code_agent: CodeAgentOfRun
    hello: Fields
    entries: list[RecordedEntry]
