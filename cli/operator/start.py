"""How a command of an operator begins: its settings, its log, its event loop; and what it says while it works."""

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
    """Runs the command on the settings. `chosen` are fields of `Settings` that the command line gives; None: it gives
    none. A command may import what it runs when it is called. Raises `InvalidRequest` for settings that are wrong."""
    settings = read_settings(**chosen)
    configure_logging(settings)
    if settings.crash_at:
        arm(settings.crash_at)
        said = f"holdfast: THIS PROCESS WILL END ITSELF at {settings.crash_at}"
        announce(settings, "process_ends_itself", said, stream=sys.stderr, point=settings.crash_at)
    with without_collections():
        work = command(settings)
    uvloop.run(work)


def read_settings(**chosen: object) -> Settings:
    """The settings of the environment, with what the command line gives in their place. Raises `InvalidRequest`."""
    refuse_unknown_settings()
    given: dict[str, Any] = {field: value for field, value in chosen.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        # `from None`: the error shows what it was given, keys included.
        raise InvalidRequest("; ".join(wrong_values(error))) from None


def require_database(settings: Settings) -> None:
    """Raises `InvalidRequest` where the settings name no database."""
    if not settings.database_url:
        raise InvalidRequest("HOLDFAST_DATABASE_URL is not set: use postgresql://role:password@host/database")


def require_redis(settings: Settings) -> None:
    """Raises `InvalidRequest` where the settings name no Redis."""
    if not settings.redis_url:
        raise InvalidRequest(
            "HOLDFAST_REDIS_URL is not set: use redis://host:6379/0. The embedded Redis lives in one process, so the "
            "API and the workers cannot share it; `holdfast dev` runs both in one"
        )


def announce(settings: Settings, event: str, text: str, *, stream: TextIO | None = None, **facts: object) -> None:
    """Says what a process has to say of itself: `text` to people, a JSON event with `facts` where logs are JSON.

    It goes to standard output unless another stream is given."""
    level = "info" if stream is None else "warning"
    print(event_line(event, level, **facts) if settings.log_json else text, file=stream or sys.stdout, flush=True)
