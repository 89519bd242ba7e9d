"""The command lines of `holdfast dev`, `api`, `worker` and `openapi`.

A server's modules are imported after its settings were read, so that a wrong setting is reported at once; and each
server imports only its own parts.
"""

from collections.abc import Coroutine
from functools import partial
from typing import Annotated, Any

import typer

from cli.operator.start import operate, require_database, require_redis
from shared.domain.errors import InvalidRequest
from shared.process.settings import Settings

commands = typer.Typer()

LOOPBACK, PORT, MOST_PORT = "127.0.0.1", 8283, 65535

DRAIN_HELP = (
    "After SIGTERM, seconds for runs to finish their steps before other workers take them over (default: {default})."
)


Running = Coroutine[Any, Any, None]

HostOption = Annotated[str, typer.Option(help="Address to listen on.")]
PortOption = Annotated[int, typer.Option(min=1, max=MOST_PORT, metavar="PORT", help="Port to listen on.")]


AgentsOption = Annotated[
    list[str] | None,
    typer.Option(metavar="MODULE", help="A Python module with agents of your own. Repeat it for further ones."),
]
AgentsPythonOption = Annotated[
    str | None, typer.Option(metavar="PATH", help="The Python that imports them (default: Holdfast's own).")
]
AgentsEnvFileOption = Annotated[
    str | None, typer.Option(metavar="PATH", help="A file with NAME=value lines for their environment.")
]


@commands.command(epilog="Example: holdfast dev --port 9000 --data-dir /tmp/holdfast")
def dev(
    host: HostOption = LOOPBACK,
    port: PortOption = PORT,
    data_dir: Annotated[str | None, typer.Option(help="Directory of the database (default: .holdfast).")] = None,
    drain_seconds: Annotated[float | None, typer.Option(help=DRAIN_HELP.format(default="0, at once"))] = None,
    agents: AgentsOption = None,
    agents_python: AgentsPythonOption = None,
    agents_env_file: AgentsEnvFileOption = None,
) -> None:
    """Run everything in one process, with embedded services; no key, loopback only."""
    chosen = _of_agents(agents, agents_python, agents_env_file)
    operate(partial(_run_dev, host=host, port=port), data_dir=data_dir, drain_s=drain_seconds, **chosen)


@commands.command(epilog="Example: holdfast api --host 0.0.0.0 --port 8283")
def api(host: HostOption = LOOPBACK, port: PortOption = PORT) -> None:
    """Serve the API. Needs HOLDFAST_DATABASE_URL and HOLDFAST_REDIS_URL."""
    operate(partial(_run_api, host=host, port=port))


@commands.command(epilog="Example: holdfast openapi > openapi.json")
def openapi() -> None:
    """Print the OpenAPI document of this version: every request, answer, stream and error."""
    from cli.operator.api_server import document

    print(document())


@commands.command(epilog="Example: OPENAI_API_KEY=… holdfast worker --max-runs 50 --health-port 8284")
def worker(
    max_runs: Annotated[int | None, typer.Option(min=1, metavar="N", help="Runs at once (default: 100).")] = None,
    drain_seconds: Annotated[float | None, typer.Option(help=DRAIN_HELP.format(default="5"))] = None,
    health_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_PORT,
            metavar="PORT",
            help="Port for health checks and metrics (default: HOLDFAST_WORKER_PORT).",
        ),
    ] = None,
    agents: AgentsOption = None,
    agents_python: AgentsPythonOption = None,
    agents_env_file: AgentsEnvFileOption = None,
) -> None:
    """Execute runs. Needs HOLDFAST_DATABASE_URL and HOLDFAST_REDIS_URL."""
    chosen = _of_agents(agents, agents_python, agents_env_file)
    operate(_run_worker, max_runs=max_runs, drain_s=drain_seconds, worker_port=health_port, **chosen)


def _of_agents(agents: list[str] | None, python: str | None, env_file: str | None) -> dict[str, object]:
    modules = ",".join(agents) if agents else None
    return {"agents": modules, "agents_python": python, "agents_env_file": env_file}


def _run_dev(settings: Settings, *, host: str, port: int) -> Running:
    if settings.redis_url or settings.database_url or settings.event_log_url:
        raise InvalidRequest(
            "holdfast dev uses embedded services: unset HOLDFAST_REDIS_URL, HOLDFAST_DATABASE_URL and "
            "HOLDFAST_EVENT_LOG_URL, or use holdfast api and holdfast worker"
        )
    from cli.operator.dev_server import run_dev

    return run_dev(settings, host=host, port=port)


def _run_api(settings: Settings, *, host: str, port: int) -> Running:
    require_database(settings)
    require_redis(settings)
    from cli.operator.api_server import run_api

    return run_api(settings, host=host, port=port)


def _run_worker(settings: Settings) -> Running:
    require_database(settings)
    require_redis(settings)
    from cli.operator.worker_server import run_worker

    return run_worker(settings)
