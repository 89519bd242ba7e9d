"""A model with a context window: it counts the tokens of each request, and refuses a request that is too long."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.kit.model_server.server import ReceivedRequest
from tests.kit.model_server.turn import Failure, Turn

SUMMARISER = "You write summaries"
"""The beginning of our own instructions for a summary."""


def tokens_of(request: ReceivedRequest) -> int:
    """The server's count: four characters of the request, names of fields included, are a token."""
    body = request.body
    return len(json.dumps([body["messages"], body.get("tools")])) // 4


def asks_for_summary(request: ReceivedRequest) -> bool:
    """Whether the request is for a summary and not for an answer."""
    return request.body["messages"][0]["content"].startswith(SUMMARISER)


def said_to(request: ReceivedRequest) -> str:
    """The whole content of a request, as text."""
    return json.dumps(request.body["messages"], ensure_ascii=False)


@dataclass
class CountingModel:
    """Answers with the turn of `answer`, counts tokens as `tokens_of` does, and refuses more than `window` of them."""

    answer: Callable[[ReceivedRequest], Turn]
    window: int | None = None
    summary: Turn = field(default_factory=lambda: Turn(text="Summary: they have talked."))
    counts: bool = True
    """Whether it reports its counts."""
    asked: list[ReceivedRequest] = field(default_factory=list[ReceivedRequest])
    """The accepted requests for an answer."""
    summarised: list[ReceivedRequest] = field(default_factory=list[ReceivedRequest])
    refused: list[ReceivedRequest] = field(default_factory=list[ReceivedRequest])

    def __call__(self, request: ReceivedRequest) -> Turn:
        tokens = tokens_of(request)
        if self.window is not None and tokens > self.window:
            self.refused.append(request)
            return Turn(failure=Failure("context"))
        wants_summary = asks_for_summary(request)
        (self.summarised if wants_summary else self.asked).append(request)
        turn = self.summary if wants_summary else self.answer(request)
        return replace(turn, prompt_tokens=tokens, cached_tokens=0, usage=self.counts)

    @property
    def longest(self) -> int:
        """Tokens of the longest request for an answer."""
        return max(map(tokens_of, self.asked))


def last_of(request: ReceivedRequest) -> dict[str, Any]:
    """The last message of a request."""
    return request.body["messages"][-1]
