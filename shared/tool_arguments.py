"""Checks the arguments of a tool call before the tool starts: a model's arguments in the worker, a person's edits in
the API.

The schema may come from a tenant. So the check runs beside the event loop, fetches no remote reference and runs no
regular expression of the schema. It refuses arguments and schemas that would take long together.
"""

import asyncio
import json
from typing import Any, cast

import msgspec

from shared.json_limits import flaw_of

MAX_ARGUMENTS_CHARS = 1_000_000


class RefusedArguments(msgspec.Struct, frozen=True):
    """Arguments with which the tool must not be called."""

    text: str
    """For the model: the errors, so that it can call again."""


async def check_arguments(text: str, schema: dict[str, Any]) -> dict[str, Any] | RefusedArguments:
    """Runs `read_arguments` on a thread, so that it delays nothing else in the process."""
    return await asyncio.to_thread(read_arguments, text, schema)


async def why_unusable(schema: dict[str, Any]) -> str | None:
    """Why a schema cannot validate anything, as far as the schema alone shows it. None: it can."""
    return await asyncio.to_thread(_why_unusable, schema)


def _why_unusable(schema: dict[str, Any]) -> str | None:
    from shared.schema_validation import TooCostly, UnusableSchema, complaints_about

    try:
        complaints_about({}, schema)
    except UnusableSchema as error:
        return str(error)
    except TooCostly:
        return "takes too long to check anything against"
    return None


def as_object(text: str) -> str:
    """The arguments as an object, because some models write the object as a text, or null for no arguments."""
    if not text.lstrip().startswith(('"', "null")):
        return text
    try:
        meant: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return "{}" if meant is None else str(meant)


def read_arguments(text: str, schema: dict[str, Any]) -> dict[str, Any] | RefusedArguments:
    """The arguments of a call as an object that matches `schema`. An empty text means no arguments."""
    if len(text) > MAX_ARGUMENTS_CHARS:
        return RefusedArguments(f"Error: the arguments are longer than {MAX_ARGUMENTS_CHARS} characters")
    try:
        arguments: object = json.loads(text, parse_constant=_no_constant) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        return RefusedArguments(f"Error: the arguments are not valid JSON: {error}")
    if not isinstance(arguments, dict):
        return RefusedArguments("Error: the arguments must be a JSON object")
    return _checked(cast("dict[str, Any]", arguments), schema)


def _checked(arguments: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any] | RefusedArguments:
    flaw = flaw_of(arguments, size_only=True)
    if flaw is not None:
        return RefusedArguments(f"Error: the arguments cannot be used: {flaw.text}")
    # Imported here: most processes validate nothing for a while, and the import belongs to this thread.
    from shared.schema_validation import TooCostly, UnusableSchema, complaints_about

    try:
        complaints = complaints_about(arguments, schema)
    except UnusableSchema as error:
        return RefusedArguments(f"Error: the tool's parameter schema {error}")
    except TooCostly:
        return RefusedArguments("Error: so many arguments cannot be checked against the tool's parameter schema")
    if not complaints:
        return arguments
    return RefusedArguments(f"Error: the arguments do not fit the tool's parameters: {'; '.join(complaints)}")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
