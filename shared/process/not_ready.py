"""Why a process is not ready, in the fields that every error has.

A probe reads the status alone. A monitor, and whoever is called at night, reads which service is missing in `services`,
or in `message` as a sentence.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shared.domain.error_codes import ErrorCode, error_fields

RETRY_AFTER_S = 2
"""What a client is told to wait when a service of ours is away."""

HINT = "Bring back what is false in `services`, and ask again: `holdfast doctor` says what is wrong with it."

_MISSING = {
    "database": "the database does not answer",
    "redis": "Redis does not answer",
    "migrations": "the database lacks migrations of this version",
    "worker": "no worker lives",
    "queue": "the worker does not look at its queue",
}
_UNKNOWN = {
    "migrations": "whether the database has all migrations cannot be known",
    "worker": "whether a worker lives cannot be known",
}


def what_is_missing(services: Mapping[str, bool | None]) -> list[str]:
    """A part of a sentence for each service that is not there, or of which that cannot be known."""
    false = [_MISSING[name] for name, answer in services.items() if answer is False]
    return false + [_UNKNOWN[name] for name, answer in services.items() if answer is None]


def not_ready(missing: Sequence[str], *, hint: str = HINT) -> dict[str, Any]:
    """The fields of the error. `missing` are parts of a sentence."""
    return _error(ErrorCode.SERVICE_UNAVAILABLE, missing, hint)


def ends(missing: Sequence[str]) -> dict[str, Any]:
    """The fields of the error of a worker that was told to end."""
    return _error(ErrorCode.SERVER_ENDING, [*missing, "the worker ends"], ErrorCode.SERVER_ENDING.hint)


def _error(code: ErrorCode, missing: Sequence[str], hint: str) -> dict[str, Any]:
    sentence = f"Not ready: {'; '.join(missing)}"
    return {"detail": sentence, **error_fields(code, sentence, hint=hint)}
