"""What is wrong with the settings of an operator, in one line for each: names that are none, values that cannot be."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails

from shared.process.settings import Settings

PREFIX = "HOLDFAST_"

OF_CLIENTS = ("HOLDFAST_URL", "HOLDFAST_API_KEY")
"""Which server the commands of the API's callers ask, and the key that they send it; no setting of a server."""

FOR_TESTS = "HOLDFAST_TEST_"
"""Where the tests of this project find their services; a command that they start may inherit it."""

_OF_KUBERNETES = re.compile(r"HOLDFAST_(?:\w+_)?(?:SERVICE_(?:HOST|PORT(?:_\w+)?)|PORT(?:_\d+_(?:TCP|UDP|SCTP)\w*)?)")
"""What Kubernetes puts into every pod when a service is called `holdfast` or `holdfast-api`."""


def unknown_names(environment: Iterable[str]) -> list[str]:
    """A line for each variable that looks like a setting and is none."""
    known = [f"{PREFIX}{field.upper()}" for field in Settings.model_fields] + list(OF_CLIENTS)
    return [
        f"{name} is no setting{_nearest(name, known)} docs/settings.md lists them all"
        for name in sorted(environment)
        if name.startswith(PREFIX)
        and name not in known
        and not name.startswith(FOR_TESTS)
        and not _OF_KUBERNETES.fullmatch(name)
    ]


def _nearest(name: str, known: list[str]) -> str:
    # The prefix, which all of them have, would make every name a near one.
    near = get_close_matches(name.removeprefix(PREFIX), [one.removeprefix(PREFIX) for one in known], n=1)
    return f": did you mean {PREFIX}{near[0]}?" if near else ";"


def wrong_values(error: ValidationError) -> list[str]:
    """A line for each setting that pydantic refuses. No line shows a value that may be, or hold, a secret."""
    return [_wrong_value(flaw) for flaw in error.errors()]


def _wrong_value(flaw: ErrorDetails) -> str:
    field = str(flaw["loc"][0])
    said = flaw["msg"].removeprefix("Value error, ")
    said = "it" + said.removeprefix("Input") if said.startswith("Input ") else said
    return f"{PREFIX}{field.upper()}{_given(field, flaw['input'])}: {said}"


def _given(field: str, value: object) -> str:
    known = Settings.model_fields.get(field)
    is_secret = known is None or known.annotation is SecretStr or field.endswith(("_url", "_endpoint"))
    return "" if is_secret else f" is {str(value)[:100]!r}"
