"""Starts an operator's command: reads the settings, sets up the log, runs the event loop, prints announcements."""

import sys
from collections.abc import Callable, Coroutine
from typing import Any, TextIO

import uvloop
from pydantic import ValidationError

from cli.command_table import refuse_unknown_settings
from cli.printable import event_line
from shared.crash_points import arm
from shared.domain.errors import InvalidRequest
from shared.process.importing import without_collections
from shared.process.logging import configure_logging
from shared.process.settings import Settings, wrong_values


def operate(command: Callable[[Settings], Coroutine[Any, Any, None]], **chosen: object) -> None:
    """Runs the command with the settings. `chosen` are as for `ready_settings`. A command may import its implementation
    when it is called. Raises `InvalidRequest` for wrong settings."""
    settings = ready_settings(**chosen)
    with without_collections():
        work = command(settings)
    execute(work)


def ready_settings(**chosen: object) -> Settings:
    """Returns the settings, after it has set up the log. `chosen` are fields of `Settings` from the command line; None:
    not given. Raises `InvalidRequest` for wrong settings."""
    settings = read_settings(**chosen)
    configure_logging(settings)
    if settings.crash_at:
        arm(settings.crash_at)
        said = f"holdfast: THIS PROCESS WILL END ITSELF at {settings.crash_at}"
        announce(settings, "process_ends_itself", said, stream=sys.stderr, point=settings.crash_at)
    return settings


def execute(work: Coroutine[Any, Any, None]) -> None:
    """Runs a command's implementation to its end."""
    uvloop.run(work)


def read_settings(**chosen: object) -> Settings:
    """Returns the environment's settings; the command line's values replace theirs. Raises `InvalidRequest`."""
    refuse_unknown_settings()
    given: dict[str, Any] = {field: value for field, value in chosen.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        # `from None`: pydantic's error shows the values, keys included.
        raise InvalidRequest("; ".join(wrong_values(error))) from None


def require_database(settings: Settings) -> None:
    """Raises `InvalidRequest` if the settings name no database."""
    if not settings.database_url:
        raise InvalidRequest("HOLDFAST_DATABASE_URL is not set: use postgresql://role:password@host/database")


def require_redis(settings: Settings) -> None:
    """Raises `InvalidRequest` if the settings name no Redis."""
    if not settings.redis_url:
        raise InvalidRequest(
            "HOLDFAST_REDIS_URL is not set: use redis://host:6379/0. The embedded Redis lives in one process, so the "
            "API and the workers cannot share it; `holdfast dev` runs both in one"
        )


def announce(settings: Settings, event: str, text: str, *, stream: TextIO | None = None, **facts: object) -> None:
    """Prints `text` for people, or a JSON event with `facts` if logs are JSON. `stream`: standard output by default."""
    level = "info" if stream is None else "warning"
    print(event_line(event, level, **facts) if settings.log_json else text, file=stream or sys.stdout, flush=True)
