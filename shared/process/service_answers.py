"""Whether what a process needs answers, and what only those services can tell.

Health checks ask for it every few seconds, without a key, and each look costs questions to the database and Redis. So
one look serves everybody who asks within a second, and no service is waited for for longer than a probe is patient.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from shared.concurrency import Clock
from shared.domain.errors import ErrorCode, Unavailable, error_fields

ANSWER_S = 3.0
"""Seconds for the services to answer, all at once. A probe of Kubernetes should wait longer."""

KEPT_S = 1.0
"""Seconds for which one look is the answer to everybody."""

Question = Callable[[], Awaitable[bool | None]]


class ServiceAnswers:
    """Asks each service once a second at most. `services` say whether they answer: silence is False. `facts` are true
    or false of the deployment, and known by a service: while it is silent they are None."""

    def __init__(
        self, services: Mapping[str, Question], facts: Mapping[str, Question] | None = None, *, clock: Clock
    ) -> None:
        self._services = dict(services)
        self._facts = dict(facts or {})
        self._clock = clock
        self._one_asks = asyncio.Lock()
        self._answers: dict[str, bool | None] = {}
        self._kept_until = 0.0

    async def look(self) -> Mapping[str, bool | None]:
        """The answers by name, within `ANSWER_S` of the moment at which the services are asked."""
        async with self._one_asks:
            if not self._answers or self._clock.monotonic() >= self._kept_until:
                self._answers = await self._ask()
                self._kept_until = self._clock.monotonic() + KEPT_S
            return self._answers

    async def _ask(self) -> dict[str, bool | None]:
        async with asyncio.TaskGroup() as group:
            asked = {
                name: group.create_task(_in_time(question), name=f"ask for {name}")
                for name, question in (self._services | self._facts).items()
            }
        answers = {name: task.result() for name, task in asked.items()}
        return {name: answer is True if name in self._services else answer for name, answer in answers.items()}


async def _in_time(question: Question) -> bool | None:
    try:
        async with asyncio.timeout(ANSWER_S):
            return await question()
    except (TimeoutError, Unavailable):
        return None


# Why a process is not ready, in the fields that every error has.
#
# A probe reads the status alone. A monitor, and whoever is called at night, reads which service is missing in
# `services`, or in `message` as a sentence.


RETRY_AFTER_S = 2
"""Seconds that a client is asked to wait when a service of ours is away."""

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
    """The fields of the error of a worker that ends."""
    return _error(ErrorCode.SERVER_ENDING, [*missing, "the worker ends"], ErrorCode.SERVER_ENDING.hint)


def _error(code: ErrorCode, missing: Sequence[str], hint: str) -> dict[str, Any]:
    sentence = f"Not ready: {'; '.join(missing)}"
    return {"detail": sentence, **error_fields(code, sentence, hint=hint)}
