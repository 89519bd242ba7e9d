"""Structured logs on standard error, one line per event. A worker binds the id of the current run.

Logs are kept longer and read by more people than the database. So they contain ids, types of errors and places in the
code, and no text of users: no messages or tracebacks of unexpected errors, unless the operator asks for them, and no
log lines of libraries about statements and requests.
"""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import Any, cast

import structlog

from shared.process.settings import Settings

OURS = frozenset({"api", "cli", "shared", "worker", "holdfast"})
"""The packages whose loggers follow the setting."""

FRAMES = 3
"""The number of our innermost functions that a log line of an error shows."""

ERRORS = 5
"""The number of errors in a chain of causes that such a line shows."""


def configure_logging(settings: Settings) -> None:
    """Sets up logging for this process: readable lines, or JSON with `HOLDFAST_LOG_JSON`."""
    shared_steps: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        first_line_of_others,
    ]
    if not settings.log_tracebacks:
        shared_steps.append(places_of_errors)
    # Chosen explicitly: if `rich` is installed, structlog would print the values of local variables.
    console = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    last: list[structlog.typing.Processor] = [without_control_characters, console]
    if settings.log_json:
        shared_steps.append(structlog.processors.format_exc_info)
        last = [structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[*shared_steps, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        # A line below the level costs one empty call. Otherwise it would be formatted and then discarded.
        wrapper_class=structlog.make_filtering_bound_logger(settings.log_level.lower()),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(is_shown)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared_steps,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    for package in OURS:
        logging.getLogger(package).setLevel(settings.log_level.upper())
    # At DEBUG, drivers and model clients log the values of statements and the bodies of requests.
    root.setLevel(logging.WARNING)


def is_shown(record: logging.LogRecord) -> bool:
    """Whether a record is logged. Libraries are logged from WARNING, even if their own environment variables request
    more."""
    return record.levelno >= logging.WARNING or record.name.partition(".")[0] in OURS


def first_line_of_others(
    _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Keeps only the first line of a library's message: asyncio puts the error's text into the following lines."""
    is_foreign = str(event.get("logger", "")).partition(".")[0] not in OURS
    if is_foreign and isinstance(event.get("event"), str):
        event["event"] = event["event"].partition("\n")[0]
    return event


def places_of_errors(
    _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Describes an error and its causes by their types and the places that raised them, without texts and values."""
    given: Any = event.pop("exc_info", None)
    event.pop("stack_info", None)
    error: BaseException | None = sys.exc_info()[1]
    if isinstance(given, BaseException):
        error = given
    elif isinstance(given, tuple):
        error = cast("tuple[Any, BaseException | None, Any]", given)[1]
    if given and error is not None:
        event["error"] = "; from ".join(_described(one) for one in _chain(error))
    return event


def _chain(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    for _ in range(ERRORS):
        if current is None:
            return
        yield current
        if isinstance(current, BaseExceptionGroup):
            current = cast("BaseExceptionGroup[BaseException]", current).exceptions[0]
        else:
            current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _described(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    # asyncpg's error has the database's code, which contains no user's value.
    state = getattr(error, "sqlstate", None)
    places = " < ".join(_places(error.__traceback__))
    return name + (f" ({state})" if isinstance(state, str) else "") + (f" at {places}" if places else "")


def _places(traceback: TracebackType | None) -> list[str]:
    """Our innermost functions, the innermost first, preceded by the innermost of all functions if that is not ours."""
    found = [
        (frame.f_globals.get("__name__", ""), Path(frame.f_code.co_filename).name, line, frame.f_code.co_name)
        for frame, line in walk_tb(traceback)
    ]
    ours = [place for place in found if place[0].partition(".")[0] in OURS][-FRAMES:]
    chosen = ours if not found or (ours and found[-1] == ours[-1]) else [*ours, found[-1]]
    return [f"{module or file}:{line} {function}" for module, file, line, function in reversed(chosen)]


def without_control_characters(
    _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Escapes characters that are not printable. Otherwise a path or a name could move the reader's cursor, or look
    like another log line."""
    for name, value in event.items():
        if isinstance(value, str) and name != "exception" and not value.isprintable():
            event[name] = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in value)
    return event
