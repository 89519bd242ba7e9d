"""How large a JSON Schema may be that a tenant chose, and its check before anything is checked against it."""

from typing import Any, cast

from shared.json_limits import flaw_of

MAX_SCHEMA_VALUES = 3_000
"""Checking a schema itself costs a fraction of a millisecond for each of its values."""

MAX_SCHEMA_CHARS = 200_000

MAX_COMPLAINT_CHARS = 300


def schema_flaw(schema: dict[str, Any]) -> str | None:
    """Why a schema is too large to be checked against. None: it is not. It may still be invalid."""
    flaw = flaw_of(schema, max_values=MAX_SCHEMA_VALUES)
    if flaw is not None:
        where = shortened(".".join(map(str, flaw.place)))
        said = flaw.text.replace("Document", "Schema")
        return f"{where}: {said}" if where else said
    characters = characters_of(schema)
    return f"Schema has more than {MAX_SCHEMA_CHARS} characters" if characters > MAX_SCHEMA_CHARS else None


def shortened(message: object) -> str:
    """So much of what is wrong as a model needs: names and values in it may be of any length."""
    text = str(message)
    return text if len(text) <= MAX_COMPLAINT_CHARS else f"{text[:MAX_COMPLAINT_CHARS]}..."


def characters_of(value: Any) -> int:
    """About how many characters a value has when it is written down."""
    total, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        total += 8
        if isinstance(one, str):
            total += len(one)
        elif isinstance(one, dict):
            total += sum(len(key) for key in cast("dict[str, Any]", one))
            waiting.extend(cast("dict[str, Any]", one).values())
        elif isinstance(one, list):
            waiting.extend(cast("list[Any]", one))
    return total
