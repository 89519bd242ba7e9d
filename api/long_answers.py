"""Long answers: they are made JSON piece by piece, on a thread, so that nobody else waits for them.

What a list holds was stored over months, and is read at once: an agent with its tools and its memory, a page of
messages, a run with its results. To make JSON of so much takes a second and more.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, cast

from fastapi import Response
from pydantic_core import to_json

from shared.concurrency import LONG_DATA

CHARACTERS_OF_A_VALUE = 100
"""As many characters become JSON in the time that a value takes which is none: a number, the key of a field."""

JSON = "application/json"


def is_long(value: object) -> bool:
    """Whether it takes more than about a millisecond to make JSON of this. Looks at a thousand values at most."""
    left, waiting = LONG_DATA, [value]
    while waiting and left > 0:
        one = waiting.pop()
        left -= CHARACTERS_OF_A_VALUE
        if isinstance(one, str):
            left -= len(one)
        elif isinstance(one, dict):
            waiting.extend(cast("dict[str, object]", one).values())
        elif isinstance(one, list):
            waiting.extend(cast("list[object]", one))
    return left <= 0


def in_pieces(value: Any) -> bytes:
    """As JSON, with no long call into C: nothing else of the process runs meanwhile."""
    if isinstance(value, list) and is_long(cast("object", value)):
        return b"[%b]" % b",".join(map(in_pieces, cast("list[Any]", value)))
    if isinstance(value, dict) and is_long(cast("object", value)):
        fields = cast("dict[str, Any]", value).items()
        return b"{%b}" % b",".join([b"%b:%b" % (to_json(name), in_pieces(one)) for name, one in fields])
    return to_json(value, inf_nan_mode="null")


async def json_answer(value: Any, status: int = 200) -> Response:
    """The answer with this value, whatever its length."""
    body = await asyncio.to_thread(in_pieces, value) if is_long(value) else in_pieces(value)
    return Response(body, status, media_type=JSON)


def with_long_answers(endpoint: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The endpoint of a route, whose long answers are responses already. FastAPI would look through each of them, and
    make it JSON, in one go."""

    @wraps(endpoint)
    async def answered(**values: Any) -> Any:
        value = await endpoint(**values)
        if isinstance(value, Response) or not is_long(value):
            return value
        answer = await json_answer(value)
        for given in values.values():
            if isinstance(given, Response):
                answer.headers.raw.extend(given.headers.raw)
        return answer

    return answered
