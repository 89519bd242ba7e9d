"""Checks the arguments of a tool call before anything starts: the model's in the worker, a person's edits in the API.

The schema may come from a tenant, and the check runs on the process's event loop. So it fetches no remote reference,
runs no regular expression of the schema, and gives up on a schema that is built to take for ever.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec
from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import SchemaError, ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

MAX_ARGUMENTS_CHARS = 1_000_000
MAX_REFERENCES = 10_000
MAX_COMPLAINTS = 5
MAX_COMPLAINT_CHARS = 300


class RefusedArguments(msgspec.Struct, frozen=True):
    """Arguments that the tool must not be called with."""

    text: str
    """For the model: what is wrong, so that it can call again."""


def read_arguments(text: str, schema: dict[str, Any]) -> dict[str, Any] | RefusedArguments:
    """The arguments of a call as an object that fits `schema`. No text at all is no arguments."""
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
    try:
        plain = _without_dialects(schema)
        Draft202012Validator.check_schema(plain, format_checker=cast("Any", None))
        complaints = _complaints(arguments, plain)
    except SchemaError as error:
        return RefusedArguments(f"Error: the tool's parameter schema is not valid: {_shortened(error.message)}")
    except Unresolvable as error:
        return RefusedArguments(f"Error: the tool's parameter schema refers to nothing known: {_shortened(error)}")
    except RecursionError:
        return RefusedArguments("Error: the tool's parameter schema refers to itself without end")
    if not complaints:
        return arguments
    return RefusedArguments(f"Error: the arguments do not fit the tool's parameters: {'; '.join(complaints)}")


def _complaints(arguments: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    validator = _bounded_validator()(schema, registry=Registry[Any]())
    found: list[str] = []
    errors = cast("Iterator[ValidationError]", validator.iter_errors(cast("Any", arguments)))
    for error in errors:
        where = error.json_path.removeprefix("$").removeprefix(".")
        found.append(f"{where}: {_shortened(error.message)}" if where else _shortened(error.message))
        if len(found) == MAX_COMPLAINTS:
            break
    return found


def _bounded_validator() -> Any:
    """A validator class for one check. References are counted, because a few of them can fan out exponentially; the
    keywords that run a tenant's regular expression or compare every pair of items are not checked at all."""
    left = MAX_REFERENCES

    def reference(validator: Any, target: Any, instance: Any, schema: Any) -> Iterator[Any]:
        nonlocal left
        left -= 1
        if left < 0:
            raise RecursionError
        yield from Draft202012Validator.VALIDATORS["$ref"](validator, target, instance, schema)

    def unchecked(*_: Any) -> Iterator[Any]:
        return iter(())

    def additional(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if "patternProperties" in schema:
            return
        yield from Draft202012Validator.VALIDATORS["additionalProperties"](validator, wanted, instance, schema)

    keywords: dict[str, Callable[..., Any]] = {"$ref": reference, "$dynamicRef": reference}
    keywords["additionalProperties"] = additional
    expensive = ("pattern", "patternProperties", "uniqueItems", "unevaluatedItems", "unevaluatedProperties")
    return cast("Any", validators).extend(Draft202012Validator, keywords | dict.fromkeys(expensive, unchecked))


def _without_dialects(schema: Any) -> Any:
    """The schema without any `$schema`: one of them would switch to a validator that is not bounded."""
    if isinstance(schema, dict):
        items = cast("dict[str, Any]", schema).items()
        return {key: _without_dialects(value) for key, value in items if key != "$schema"}
    if isinstance(schema, list):
        return [_without_dialects(value) for value in cast("list[Any]", schema)]
    return schema


def _shortened(message: object) -> str:
    text = str(message)
    return text if len(text) <= MAX_COMPLAINT_CHARS else f"{text[:MAX_COMPLAINT_CHARS]}..."


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
