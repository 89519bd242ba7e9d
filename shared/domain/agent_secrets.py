"""The rules for an agent's secrets: what a change of them means, and how a text tells that it is encrypted.

Clients are shown names without values, and many send back the whole map with one entry changed. So an empty value
never takes the place of a stored one.
"""

from collections.abc import Mapping

from shared.domain.errors import InvalidRequest

SEALED = "holdfast-sealed:"
"""How a stored value begins that is encrypted. No value that a client gives may begin like that."""


def is_sealed(stored: str) -> bool:
    """Whether a stored value is encrypted."""
    return stored.startswith(SEALED)


def changed_secrets(
    before: Mapping[str, str], given: Mapping[str, str | None], *, sees_values: bool = True
) -> dict[str, str]:
    """The secrets after a client has sent `given`.

    An empty value, or None, leaves a stored one as it is. A name that is left out is removed, but only by a client that
    may see the values: another one was not shown what it would send back. Raises `InvalidRequest`.
    """
    for name, value in given.items():
        if value and is_sealed(value):
            raise InvalidRequest(
                f"secrets: the value of {name!r} begins with {SEALED!r}, which marks encrypted values", field="secrets"
            )
    after = {name: value or before.get(name, "") for name, value in given.items()}
    return after if sees_values else {**before, **after}
