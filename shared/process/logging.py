"""Structured logs on standard error: one line per event. A worker binds the id of the run that it works on."""

import logging
import sys

import structlog

from shared.process.settings import Settings


def configure_logging(settings: Settings) -> None:
    """Sets up logging for this process: readable lines, or JSON with `HOLDFAST_LOG_JSON`."""
    shared_steps: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: structlog.typing.Processor = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    if settings.log_json:
        shared_steps.append(structlog.processors.format_exc_info)
        last = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[*shared_steps, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared_steps,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.log_level.upper())
    # Every request of the model clients at INFO would drown the rest.
    for chatty in ("httpx", "httpx2", "httpcore", "httpcore2", "arq", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
