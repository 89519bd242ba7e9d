"""Every key, channel and lifetime that Holdfast uses in Redis. No other module spells one.

The keys of one run share a hash tag, so that the scripts that touch them also work on a cluster.
"""

from arq.constants import in_progress_key_prefix, job_key_prefix, retry_key_prefix

from shared.domain.ids import ProjectId, RunId

_DAY_S = 24 * 3600

LIVE_LOG_TTL_S = _DAY_S
"""The lifetime of an unfinished log. Every append refreshes it: an expired stream would forget its last id."""

CANCEL_FLAG_TTL_S = _DAY_S
"""The lifetime of a cancel flag: longer than any run. The request itself is in SQL."""

JOB_TTL_S = 30 * _DAY_S
"""How long a run may wait in the queue before the description of its job expires."""

QUEUE = "holdfast:runs"
"""Sorted set, job id → score: every job. Written by `dispatch.lua` and the lease scripts, by Redis' own clock. No
expiry.

A waiting job has a score below 0 (`fair_queue.lua`). The score of a leased job is the end of its lease plus
`SCORE_SLACK_MS`. A due job with a score above 0 has lost its lease; the next claim puts it back into its project's
queue.
"""

TURNS = "holdfast:turns"
"""Sorted set, project that has waiting jobs → rank. Workers claim a job of the first project next. Written by the
scripts of the queue. No expiry."""

TURN = "holdfast:turn"
"""String, the number of the newest turn. Counted by the scripts of the queue. No expiry: it is deleted with the last
job."""

WAITING_PREFIX = "holdfast:waiting:"
"""With a project: sorted set, job id → ms of its dispatch minus the head start of its priority. Written by the scripts
of the queue. No expiry: it is deleted with its last job."""

IN_FLIGHT_PREFIX = "holdfast:in-flight:"
"""With a project: set of the ids of its leased jobs. Written by the scripts of the queue. No expiry: it is deleted with
its last job, and the sweep removes remains after a loss of data."""

SCORE_SLACK_MS = 60_000
"""Milliseconds by which the clock that scored a waiting job may be ahead, before workers claim the job late. A failover
replaces the Redis with that clock."""

WAKE_CHANNEL = "holdfast:wake"
"""Published by `dispatch` and by a release, received by every worker: there may be a job to claim. The payload is
empty.
"""

CANCELS_CHANNEL = "holdfast:cancels"
"""Published by the API, received by every worker: `<run_id> <mode>`."""

WORKER_ALIVE = "holdfast:worker-alive"
"""String, the name of the worker that wrote it last. Written by every worker with its renewals. Lives for a lease."""

TRIAL = "holdfast:trial"
"""String, empty, and a channel: shows whether Redis takes writes. Written by readiness checks. Lives for a second."""

LEASE_PREFIX = in_progress_key_prefix
JOB_PREFIX = job_key_prefix
"""arq's own prefixes, see `lease` and `job`. Scripts complete them with the ids of jobs."""


CODE_AGENTS = "holdfast:code-agents"
"""Hash, agent and version → the times until and since which a live worker has it. Written by `show_versions.lua`. Lives
for a lease."""


def interval(name: str) -> str:
    """String, empty: a process does this work in the present interval. Written by the first process that asks. Lives
    for the interval."""
    return f"holdfast:interval:{name}"


def sandbox_alive(tier: str) -> str:
    """String, empty: a live worker isolates tools with this tier. Refreshed by every worker. Lives for a lease."""
    return f"holdfast:sandbox-alive:{tier}"


def javascript_alive(answer: bool) -> str:
    """String, empty: a live worker runs tools in JavaScript, or a live worker cannot. Refreshed by every worker. Lives
    for a lease."""
    return f"holdfast:javascript-alive:{'yes' if answer else 'no'}"


def processes(kind: str) -> str:
    """Sorted set, name of a live process of this kind → ms until which it counts as present. Written by `present.lua`.
    Lives as long as its newest process counts as present."""
    return f"holdfast:processes:{kind}"


def process(kind: str, name: str) -> str:
    """String, the process's description of itself as JSON. Refreshed by `present.lua`. `SHOWN_FOR_S`."""
    return f"holdfast:process:{kind}:{name}"


def events(run_id: RunId) -> str:
    """Stream of the run's events; entry id `<seq>-0`, one field `e` with the event's bytes. Written by `append.lua`,
    and trimmed to the entries that SQL lacks. `LIVE_LOG_TTL_S` while the run goes on, then the log's `ttl_s`.
    """
    return f"run:{{{run_id}}}:events"


def fence(run_id: RunId) -> str:
    """String `<fence> <owner>`: who may append to the run's log. Written by `open.lua`. Lives as long as the stream."""
    return f"run:{{{run_id}}}:fence"


def cancel_flag(run_id: RunId) -> str:
    """String, the cancel's mode. Written by the API, deleted by the run's owner. `CANCEL_FLAG_TTL_S`."""
    return f"run:{{{run_id}}}:cancel"


def feed(run_id: RunId) -> str:
    """Channel of the run's events: `<first seq> ` and the entries, one per line. Published by `append.lua`."""
    return f"run:{{{run_id}}}:feed"


def thread_changes(project_id: ProjectId) -> str:
    """Channel: a thread of the project has changed. `<thread id> <agent id> <run id>`. Published by the process that
    claims, decides or ends the run, received by the API processes that have readers of the project's threads."""
    return f"holdfast:threads:{{{project_id}}}"


def job_id(run_id: RunId, number: int) -> str:
    """Member of `QUEUE`: one dispatch of a run. Not a key of its own."""
    return f"{run_id}:{number}"


def parse_job_id(text: str) -> tuple[RunId, int]:
    """The run and the number of the dispatch in a job id."""
    run_id, _, number = text.rpartition(":")
    return RunId(run_id), int(number)


def job(job_id: str) -> str:
    """String, arq's description of the job as JSON. Written by `dispatch.lua` and `retake.lua`. `JOB_TTL_S`."""
    return JOB_PREFIX + job_id


def lease(job_id: str) -> str:
    """String, the worker that runs the job. Written by the lease scripts. Lives as long as the lease."""
    return LEASE_PREFIX + job_id


def attempts(job_id: str) -> str:
    """String, arq's counter of starts. Written by arq, deleted with the job. About a day (arq's choice)."""
    return retry_key_prefix + job_id


def bucket(owner: str) -> str:
    """String, the µs at which the owner's bucket of requests is full again. Written by `take.lua`. Lives until then."""
    return f"holdfast:bucket:{owner}"


def readers(owner: str) -> str:
    """Sorted set, open stream → ms until which it counts as open. Written by `enter.lua` and `stay.lua`. Lives as long
    as its newest reader."""
    return f"holdfast:readers:{owner}"
