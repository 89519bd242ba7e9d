"""A log has ids, types of errors and places in the code, and nothing that users wrote."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = """
import logging, structlog
from shared.concurrency import retry_while_unavailable
from shared.domain.messages import estimate_tokens
from shared.process.logging import configure_logging
from shared.process.settings import Settings

configure_logging(Settings())
ours, plain = structlog.get_logger("worker.run"), logging.getLogger("api.errors")
"""
"""In a process of its own: a process has one log."""

FAILS = """
try:
    try:
        {}["what the user said"]
    except KeyError as error:
        raise ValueError("what the user said") from error
except ValueError as error:
    ours.exception("run_failed", run_id="run-1")
    plain.error("%s failed", "GET", exc_info=error)
    logging.getLogger("asyncio").error("Task was lost\\nfuture: what the user said", exc_info=error)
"""


def logged(program: str, **settings: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + program], env=clean | settings, capture_output=True, text=True, check=True
    )
    return done.stderr


def as_json(program: str, **settings: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in logged(program, HOLDFAST_LOG_JSON="true", **settings).splitlines()]


@pytest.mark.parametrize("level", ["INFO", "DEBUG"])
@pytest.mark.parametrize("shape", ["false", "true"])
def test_logs_had_tracebacks_with_what_users_said(level: str, shape: str) -> None:
    said = logged(FAILS, HOLDFAST_LOG_LEVEL=level, HOLDFAST_LOG_JSON=shape)
    assert len(said.splitlines()) == 3
    assert "what the user said" not in said
    assert "Traceback" not in said
    assert said.count("ValueError at __main__:") == 3
    assert said.count("; from KeyError at __main__:") == 3
    assert "run-1" in said


def test_tracebacks_are_there_when_they_are_asked_for() -> None:
    for shape in ("false", "true"):
        said = logged(FAILS, HOLDFAST_LOG_TRACEBACKS="true", HOLDFAST_LOG_JSON=shape)
        assert said.count("Traceback (most recent call last)") == 6
        assert "what the user said" in said


def test_the_place_of_an_error_is_in_our_code() -> None:
    program = "try:\n    estimate_tokens(None)\nexcept Exception:\n    ours.exception('failed')\n"
    [line] = as_json(program)
    assert line["error"].startswith("AttributeError at shared.domain.messages:") or line["error"].startswith(
        "TypeError at shared.domain.messages:"
    )
    assert line["logger"] == "worker.run"


def test_libraries_logged_the_values_of_statements() -> None:
    """Finding M9 of the security audit: `aiosqlite` at DEBUG. Others write the bodies of requests."""
    libraries = ("aiosqlite", "openai._base_client", "httpcore2.http11", "fakeredis", "sqlalchemy.engine", "new.one")
    program = f"""
for name in {libraries}:
    logging.getLogger(name).debug("what the user said")
    logging.getLogger(name).setLevel(logging.DEBUG)  # as OPENAI_LOG=debug does
    logging.getLogger(name).debug("what the user said")
    logging.getLogger(name).warning("away")
plain.debug("ours")
"""
    events = [line["event"] for line in as_json(program, HOLDFAST_LOG_LEVEL="DEBUG")]
    assert events == ["away"] * len(libraries) + ["ours"]


def test_escape_characters_of_a_path_reached_the_console() -> None:
    """Finding low 17 of the security audit."""
    program = (
        'plain.error("GET /v1/%s failed", "\\x1b[2J\\x9b31m\\u202e\\r\\nforged ü"); ours.error("x", name="a\\x1b[31m")'
    )
    said = logged(program)
    assert said.count("\n") == 2
    assert all(character.isprintable() for character in said.replace("\n", ""))
    assert "/v1/\\x1b[2J\\x9b31m\\u202e\\r\\nforged ü failed" in said


def test_a_round_that_finds_the_database_away_logged_a_traceback() -> None:
    program = """
import asyncio
from shared.concurrency import repeating
from shared.domain.errors import Unavailable

async def main():
    done = asyncio.Event()
    async def away():
        done.set()
        raise Unavailable("the database does not answer; try again")
    async with repeating(away, every_s=60, name="sweep"):
        await done.wait()

asyncio.run(main())
"""
    [line] = as_json(program)
    assert (line["event"], line["loop"], line["level"]) == ("background_round_put_off", "sweep", "warning")
    assert line["reason"] == "the database does not answer; try again"
    assert "error" not in line
