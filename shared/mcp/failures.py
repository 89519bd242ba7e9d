"""The failures of MCP servers, and the limits for requests to them."""

import asyncio
from dataclasses import dataclass
from typing import NamedTuple, Self

AN_ERROR = 0
"""The server has answered with an error, whose text explains it."""


class ServerFailure(Exception):
    """The server gave no usable answer. The code, `AN_ERROR` or one of `guarded_http`, says whether it may have
    acted."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Deadline(NamedTuple):
    """The end of a wait, by the event loop's clock, and the whole length of the wait."""

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
    """The limits for one server in one process. Times in seconds."""

    connect_s: float = 20.0
    list_s: float = 30.0
    """For a whole list of tools, including the time to connect."""
    idle_s: float = 60.0
    """Time after which an unused connection is closed."""
    kept_s: float = 1.0
    """How long an HTTP connection waits for the next request. Servers keep theirs longer. If a server closed a
    connection while a call was on its way, the client could not know whether the tool was called."""
    close_s: float = 5.0
    most_connections: int = 200
    """Per process, for all servers together. A project that is alone uses half of them."""
    most_tools: int = 1_000
    most_pages: int = 50
    most_characters: int = 8_000_000
    """For all tools of a server together: names, descriptions and schemas."""


BOUNDS = Bounds()


class SignInRefused(Exception):
    """The authorization server refuses a token. A person must sign in, or sign in again."""


class SignInFailed(Exception):
    """The authorization server gave no usable answer. A later attempt may succeed."""
