"""JSON Schema validation with limited cost: even a small schema and small arguments can take hours together.

The schema may come from a tenant. So its size is limited, it is checked once and not for every call, and its regular
expressions are never run. Each step of a validation is charged to a budget, and a validation that exceeds it is
refused.

Imported when the first arguments are checked: the library's import takes as long as all other imports of a call.
"""

import functools
import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, cast

from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import SchemaError, ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

from shared.json_limits import characters_of, schema_flaw, shortened

MAX_REFERENCES = 10_000
MAX_COST = 100_000
"""A unit is roughly the time of checking one keyword: 5 microseconds."""

CHECKED_SCHEMAS = 128
"""The number of schemas whose validity the process remembers."""


MAX_COMPLAINTS = 5

_PER_STEP = 64
"""Simple loop steps per unit."""
_COMPARISONS = 8
"""Comparisons of an `enum` per unit."""
_CHARACTERS = 500
"""Characters of an error's text per unit: the text repeats the invalid value."""

_FOR_EACH_ITEM = ("items", "contains", "propertyNames", "additionalProperties")
_NEVER_CHECKED = ("pattern", "patternProperties", "uniqueItems", "unevaluatedItems", "unevaluatedProperties")
"""Keywords that run a tenant's regular expression, or compare every pair of items."""

_Keyword = Callable[..., Iterator[ValidationError] | None]


class TooCostly(Exception):
    """The validation would take too long."""


class UnusableSchema(Exception):
    """This schema cannot validate anything; the text says why."""


def complaints_about(arguments: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """The errors of arguments against a schema, in a few lines at most. Raises `UnusableSchema`, and `TooCostly`."""
    too_large = schema_flaw(schema)
    if too_large is not None:
        raise UnusableSchema(f"cannot be used: {too_large}")
    plain: dict[str, Any] = _without_dialects(schema)
    try:
        invalid = _why_invalid(json.dumps(plain, sort_keys=True))
        if invalid is not None:
            raise UnusableSchema(f"is not valid: {shortened(invalid)}")
        validator = _Budget(plain).validator()(plain, registry=Registry[Any]())
        return [_complaint(error) for error in islice(validator.iter_errors(arguments), MAX_COMPLAINTS)]
    except Unresolvable as error:
        raise UnusableSchema(f"refers to nothing known: {shortened(error)}") from error
    except RecursionError as error:
        raise UnusableSchema("refers to itself without end") from error


def _complaint(error: ValidationError) -> str:
    where = shortened(error.json_path.removeprefix("$").removeprefix("."))
    return f"{where}: {shortened(error.message)}" if where else shortened(error.message)


@functools.lru_cache(maxsize=CHECKED_SCHEMAS)
def _why_invalid(schema: str) -> str | None:
    try:
        Draft202012Validator.check_schema(json.loads(schema), format_checker=cast("Any", None))
    except SchemaError as error:
        return error.message
    return None


class _Budget:
    """The remaining budget of one validation, and the validator class that charges it."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._left = MAX_COST
        self._references_left = MAX_REFERENCES
        self._widest = _widest(schema)
        self._sizes: dict[int, tuple[object, int]] = {}

    def validator(self) -> Any:
        checks = cast("dict[str, _Keyword]", Draft202012Validator.VALIDATORS)
        keywords = {name: self._paid(name, check) for name, check in checks.items() if name not in _NEVER_CHECKED}
        return cast("Any", validators).extend(Draft202012Validator, keywords | dict.fromkeys(_NEVER_CHECKED, _nothing))

    def _paid(self, name: str, check: _Keyword) -> _Keyword:
        def paid(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
            if name == "additionalProperties" and "patternProperties" in schema:
                return
            self._pay(self._cost(name, wanted, instance))
            for error in check(validator, wanted, instance, schema) or ():
                self._pay(1 + (self._length(instance) + self._length(wanted)) // _CHARACTERS)
                yield error

        return paid

    def _pay(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            raise TooCostly

    def _cost(self, name: str, wanted: Any, instance: Any) -> int:
        if name in ("$ref", "$dynamicRef"):
            self._references_left -= 1
            if self._references_left < 0:
                raise RecursionError
            return 1 + self._widest // _PER_STEP
        if name in ("enum", "const"):
            is_plain = not isinstance(instance, (dict, list))
            compared = len(cast("list[Any]", wanted)) if is_plain and isinstance(wanted, list) else self._length(wanted)
            return 1 + compared // _COMPARISONS
        each = 1 + _reach(wanted) // _PER_STEP
        if name not in _FOR_EACH_ITEM or not isinstance(instance, (dict, list)):
            return each
        return each * len(cast("list[Any]", instance)) + 1

    def _length(self, value: Any) -> int:
        """Roughly the number of characters of a value as JSON. The result is cached, because several keywords need
        it."""
        if not isinstance(value, (dict, list)):
            return len(value) if isinstance(value, str) else 8
        known = self._sizes.get(id(cast("object", value)))
        if known is None:
            # The value is kept too: another value could get the id of a deleted one.
            known = self._sizes[id(cast("object", value))] = (cast("object", value), characters_of(value))
        return known[1]


def _nothing(*_: Any) -> Iterator[ValidationError]:
    return iter(())


def _reach(wanted: Any) -> int:
    """The size of the part of a schema that a keyword reads: its own entries, and those of the schemas in it."""
    if not isinstance(wanted, (dict, list)):
        return 0
    inside = list(cast("dict[str, Any]", wanted).values() if isinstance(wanted, dict) else cast("list[Any]", wanted))
    return len(inside) + sum(len(cast("list[Any]", one)) for one in inside if isinstance(one, (dict, list)))


def _widest(schema: Any) -> int:
    """The largest number of entries of an object in the schema."""
    widest, waiting = 0, [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            widest = max(widest, len(cast("dict[str, Any]", one)))
            waiting.extend(cast("dict[str, Any]", one).values())
        elif isinstance(one, list):
            waiting.extend(cast("list[Any]", one))
    return widest


def _without_dialects(schema: Any) -> Any:
    """The schema without any `$schema`, which would switch to a validator without limits."""
    if isinstance(schema, dict):
        items = cast("dict[str, Any]", schema).items()
        return {key: _without_dialects(value) for key, value in items if key != "$schema"}
    if isinstance(schema, list):
        return [_without_dialects(value) for value in cast("list[Any]", schema)]
    return schema
