"""The part of the composition root that makes what operators look at: this process, shown to the others, and the
deployment."""

from contextlib import AbstractAsyncContextManager

from api.caller_quotas import CallerQuotas
from api.operations import DeploymentFigures, Operations
from shared.domain.operations import ApiState
from shared.process.context import ProcessContext
from shared.process.version import VERSION
from shared.redis.event_log import EventLog
from shared.redis.process_presence import ProcessPresence, RedisServers, ToolPresence
from shared.redis.queue import RunQueue
from shared.sql.runs.callbacks import CallbackStore
from shared.sql.runs.figures import RunFigureStore


def operations_service(
    process: ProcessContext, everybodys: ProcessContext, queue: RunQueue, event_log: EventLog
) -> Operations:
    """Looks at the deployment, and at the rows of a caller's project. `everybodys` is the process with a database that
    shows all projects."""
    servers = RedisServers(shared=process.redis, logs=process.log_servers, is_embedded=process.is_embedded)
    return Operations(
        database=process.database,
        redis=servers,
        presence=ProcessPresence(process.redis),
        tool_presence=ToolPresence(process.redis),
        queue=queue,
        figures=RunFigureStore(process.database),
        callbacks=CallbackStore(process.database),
        clock=process.clock,
        deployment_figures=DeploymentFigures(
            metrics=process.metrics,
            figures=RunFigureStore(everybodys.database),
            queue=queue,
            redis=servers,
            event_log=event_log,
            clock=process.clock,
        ),
    )


def showing_process(process: ProcessContext, name: str, quotas: CallerQuotas) -> AbstractAsyncContextManager[None]:
    """Shows this process in `/v1/admin/operations` for as long as the block lasts, under its name in traces."""
    started_at = process.clock.now()

    def state() -> ApiState:
        return ApiState(
            name=name,
            version=VERSION,
            started_at=started_at,
            seen_at=process.clock.now(),
            readers=quotas.open_streams,
            secret_keys=process.secret_keys.fingerprints,
        )

    return ProcessPresence(process.redis).showing(state)
