"""Why an MCP server gave no answer, and the bounds within which it is asked."""

import asyncio
from dataclasses import dataclass
from typing import NamedTuple, Self

AN_ERROR = 0
"""The server has answered with an error, and says itself what it means."""


class ServerFailure(Exception):
    """The server gave no answer that can be used. The code, `AN_ERROR` or one of `guarded_http`, says whether it may
    have acted."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Deadline(NamedTuple):
    """When an answer must be there, by the event loop's clock, and how long that was at the beginning."""

    at: float
    seconds: float

    @classmethod
    def after(cls, seconds: float) -> Self:
        return cls(asyncio.get_running_loop().time() + seconds, seconds)

    @property
    def left_s(self) -> float:
        return max(0.0, self.at - asyncio.get_running_loop().time())


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What one server may cost a process. Times in seconds."""

    connect_s: float = 20.0
    list_s: float = 30.0
    """For a whole list of tools, connecting included."""
    idle_s: float = 60.0
    """How long a connection is kept that nobody uses."""
    kept_s: float = 1.0
    """How long an HTTP connection waits for the next request. Servers keep theirs for longer: a call that met their
    close on its way would be lost, and nobody could say whether it was made."""
    close_s: float = 5.0
    most_connections: int = 100
    """Of one process, to all servers together."""
    most_tools: int = 1_000
    most_pages: int = 50
    most_characters: int = 8_000_000
    """Of all tools of a server together: names, descriptions and schemas."""


BOUNDS = Bounds()


class SignInRefused(Exception):
    """The authorization server does not grant what it was asked for: a person has to sign in, or to sign in again."""


class SignInFailed(Exception):
    """The authorization server gave no answer that can be used. Another time it may."""
