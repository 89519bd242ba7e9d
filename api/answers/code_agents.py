"""Agents of operators' own code, and their journals."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from api.answers.messages import Anything, Fields, Time


class CodeAgentOfRun(TypedDict):
    """The agent of an operator's own code that the run is of, and the version that has executed it last."""

    name: str
    version: str | None


class CodeAgentVersion(TypedDict):
    """A version of an agent of own code. `version` is null where the code declares none."""

    version: str | None
    workers: int
    last_seen_at: Time


class CodeAgent(TypedDict):
    """An agent of own code, with the numbers of live workers that have it."""

    name: str
    description: str
    framework: str
    workers: int
    versions: list[CodeAgentVersion]


class JournalError(TypedDict):
    """What a call of the code has raised."""

    type: str
    text: str


class JournalEntry(TypedDict):
    """One call that the code of a run has made."""

    slot: str
    number: int
    branch: str
    kind: Literal["step", "model", "tool", "approval", "inbox", "sleep"]
    name: str
    state: Literal["started", "done", "failed", "unknown"]
    attempt: int
    started_at: Time
    ended_at: Time | None
    idempotency_key: str
    error: JournalError | None
    result: NotRequired[Anything]


class RecordedEntry(JournalEntry):
    """The same with what it was called with, as hashes."""

    hash: str
    settings_hash: str


class Replay(TypedDict):
    """What an execution of the run's code begins with, and what its journal answers."""

    run_id: str
    code_agent: CodeAgentOfRun
    hello: Fields
    entries: list[RecordedEntry]
