"""What the calls of a run raise."""


class Denied(Exception):
    """A person has denied what `approval` asked for."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name!r} was denied: {reason}")
        self.name = name
        self.reason = reason


class OutcomeUnknown(Exception):
    """A tool was started, and its process died before the result was stored: it may or may not have had its effect."""

    def __init__(self, name: str, idempotency_key: str) -> None:
        super().__init__(f"the tool {name!r} was started, and nobody knows how it ended")
        self.name = name
        self.idempotency_key = idempotency_key


class StepFailed(Exception):
    """The function of a step or tool raised. It is raised again whenever the body is, so it holds texts alone; the
    function's own exception is its `__cause__` the first time."""

    def __init__(self, name: str, error_type: str, text: str) -> None:
        super().__init__(f"{name!r} failed: {error_type}: {text}")
        self.name = name
        self.error_type = error_type
        self.text = text


class NestedApproval(RuntimeError):
    """A step or tool waits for nobody: it could not be entered again when a person has decided. Only the body itself
    and a `Run.scope` may ask a person or a client."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name!r} waits for a person or a client inside of a step or tool, which is not entered again behind it: "
            "only the body itself and a run.scope may wait"
        )
        self.name = name
