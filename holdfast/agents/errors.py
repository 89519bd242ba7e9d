"""The errors that the calls of a run raise, and the description of any other exception."""

from typing import Any

LONGEST_TEXT = 20_000
"""Characters of an exception's text that the journal and the worker get."""

MOST_NAMED = 5
"""The exceptions of a group that its text names."""


def error_fields(error: BaseException) -> dict[str, str]:
    """Returns the type and the text of an exception. A group, such as `asyncio.TaskGroup` raises, names its members,
    because its own text only counts them."""
    error = sole(error)
    text = _text_of(error)
    if inner := _members_of(error):
        named = [error_fields(one) for one in inner[:MOST_NAMED]]
        text = f"{text}: " + "; ".join(f"{one['type']}: {one['text']}" for one in named)
    return {"type": type(error).__name__, "text": text[:LONGEST_TEXT]}


def sole(error: BaseException) -> BaseException:
    """Returns the only exception of a group; any other exception unchanged."""
    inner = _members_of(error)
    return sole(inner[0]) if len(inner) == 1 else error


def _members_of(error: BaseException) -> Any:
    """The exceptions of a group. Others may have an attribute `exceptions`, too, with anything in it. The class goes by
    its name, because Python 3.10 gets it from a library."""
    is_group = any(one.__name__ == "BaseExceptionGroup" for one in type(error).__mro__)
    return getattr(error, "exceptions", ()) if is_group else ()


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failed:  # noqa: BLE001 - the error itself must be described, whatever its `__str__` does
        return f"its text cannot be made: {type(failed).__name__}"


class Denied(Exception):
    """A person has denied the request of an `approval`."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name!r} was denied: {reason}")
        self.name = name
        self.reason = reason


class OutcomeUnknown(Exception):
    """A tool was started, and its process died before the result was stored. The tool may have had its effect."""

    def __init__(self, name: str, idempotency_key: str) -> None:
        super().__init__(f"the tool {name!r} was started, and nobody knows how it ended")
        self.name = name
        self.idempotency_key = idempotency_key


class StepFailed(Exception):
    """The function of a step or tool raised. A later execution of the body raises this again, so it contains only
    texts. The first time, its `__cause__` is the function's own exception."""

    def __init__(self, name: str, error_type: str, text: str) -> None:
        super().__init__(f"{name!r} failed: {error_type}: {text}")
        self.name = name
        self.error_type = error_type
        self.text = text


class NestedApproval(RuntimeError):
    """A step or tool cannot wait for a person: it could not be entered again after the decision. Only the body itself
    and a `Run.scope` may ask a person or a client."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name!r} waits for a person or a client inside of a step or tool, which is not entered again behind it: "
            "only the body itself and a run.scope may wait"
        )
        self.name = name
