"""OpenAI's embeddings: a vector for each text, made by a function of the test."""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.kit.model_server.http_exchange import HttpRequest

TOPICS = (
    ("sky", "cloud", "rain", "weather", "storm"),
    ("dog", "puppy", "pet", "terrier", "cat"),
    ("money", "price", "invoice", "budget", "cost"),
)


def by_topic(text: str) -> list[float]:
    """A vector in which texts about one of the topics are near to each other, whatever their words."""
    lowered = text.lower()
    return [0.1 + sum(word in lowered for word in topic) for topic in TOPICS]


@dataclass(frozen=True)
class EmbeddingRequest:
    """A received request."""

    path: str
    model: str
    texts: list[str]
    headers: dict[str, str]


@dataclass
class EmbeddingAnswers:
    """Answers at `/embeddings`."""

    requests: list[EmbeddingRequest] = field(default_factory=list[EmbeddingRequest])
    vector_of: Callable[[str], Sequence[float]] = by_topic
    refuses: Callable[[str], bool] = field(default=lambda _text: False)
    """Texts for which the whole request is refused with a 400."""
    failures: deque[int] = field(default_factory=deque[int])
    """Statuses for the next requests."""
    is_away: bool = False
    """Every request is a 503."""
    bodies: deque[Any] = field(default_factory=deque[Any])
    """Whole bodies for the next requests, for odd servers."""
    resume: asyncio.Event | None = None
    """Answers wait for it."""

    async def answer(self, request: HttpRequest) -> tuple[int, Any]:
        """Status and body."""
        body: dict[str, Any] = json.loads(request.content)
        texts: list[str] = body["input"]
        self.requests.append(EmbeddingRequest(request.path, body["model"], texts, request.headers))
        if self.resume is not None:
            await self.resume.wait()
        if self.is_away or self.failures:
            return 503 if self.is_away else self.failures.popleft(), {"error": {"message": "Not now."}}
        if any(map(self.refuses, texts)):
            return 400, {"error": {"message": "This text is too long for the model."}}
        if self.bodies:
            return 200, self.bodies.popleft()
        entries = [
            {"object": "embedding", "index": index, "embedding": list(self.vector_of(text))}
            for index, text in enumerate(texts)
        ]
        # The order of the entries is not promised anywhere; `index` names the text of each.
        return 200, {"object": "list", "data": entries[::-1], "model": body["model"], "usage": {"prompt_tokens": 1}}
