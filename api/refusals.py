"""Requests that are refused: why, in the words of no dialect, and as what each dialect answers it.

A route, a check or a middleware makes a `Refusal`. It becomes bytes when it is sent: the request's path decides in
which dialect.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastapi.responses import JSONResponse
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from shared.domain.approvals import WaitingCalls
from shared.domain.errors import ErrorCode, error_fields

_FLAWS_IN_SENTENCE = 10
_PREFIX = re.compile(r"[A-Z_]{4,}: ")
MOST_FLAWS = 20
"""Of one request that are shown: a body has room for a hundred thousand."""


class Failure(NamedTuple):
    """Why a run failed that a request has waited for."""

    error_type: str
    detail: str | None


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a request is refused."""

    status: int
    code: ErrorCode
    message: str
    """A sentence."""
    detail: str | None = None
    """The same behind a word in capitals, or in the framework's own words, where older programs look for that."""
    field: str | None = None
    hint: str = ""
    """What to do. Empty: what the code says."""
    run_id: str | None = None
    """The run that is in the way, or goes on."""
    waiting: WaitingCalls | None = None
    """The calls that are to be decided before."""
    flaws: Sequence[Mapping[str, Any]] = ()
    """What is wrong with the request, as pydantic says it."""
    failure: Failure | None = None


ErrorShape = Callable[[Refusal], tuple[int, dict[str, Any]]]
"""How a dialect says a refusal: the status and the body of the answer."""


class Dialects(NamedTuple):
    """The error shapes of the API's dialects, by the beginning of their paths; the longest that fits counts."""

    shapes: Mapping[str, ErrorShape]

    def shape_of(self, path: str) -> ErrorShape:
        """The shape of errors for a request to this path."""
        return self.shapes[max((one for one in self.shapes if path.startswith(one)), key=len)]


DIALECTS = "dialects"
"""The attribute of an application's state that holds its `Dialects`."""


class RefusalAnswer(Response):
    """The answer to a request that is refused. It is made when it is sent, for the dialect of the request's path."""

    def __init__(self, refusal: Refusal, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status_code=refusal.status)
        del self.headers["content-length"]
        self.refusal = refusal
        self._more = headers or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, body = getattr(scope["app"].state, DIALECTS).shape_of(scope["path"])(self.refusal)
        answer = JSONResponse(body, status, {**self.headers, **self._more}, background=self.background)
        await answer(scope, receive, send)


def plain_body(
    code: ErrorCode, detail: object, message: str = "", *, field: str | None = None, hint: str = "", **more: object
) -> dict[str, Any]:
    """The body of an error where no dialect has another one: `detail`, and what is the same for every error. `message`
    is the sentence, where `detail` is none; `more` are further fields."""
    sentence = message or without_prefix(str(detail))
    return {"detail": detail, **error_fields(code, sentence, field=field, hint=hint), **more}


def without_prefix(detail: str) -> str:
    """The sentence of a detail that begins with a word in capitals."""
    return _PREFIX.sub("", detail, count=1)


def sentence_of(found: Sequence[Mapping[str, Any]]) -> str:
    """The first ten flaws of a request in one sentence, each behind its place."""
    said = ((field_of(one["loc"]), text_of(one)) for one in found[:_FLAWS_IN_SENTENCE])
    return "; ".join(f"{place}: {text}" if place else text for place, text in said)


def field_of(loc: Sequence[Any]) -> str | None:
    """A place that pydantic names, as programs write it: `messages[0].role` in the body, `query.limit` elsewhere. None:
    the whole body."""
    place = place_of(loc[1:] if loc and loc[0] == "body" else loc, "")
    return showable(place.removeprefix(".")) or None


def place_of(keys: Sequence[Any], whole: str) -> str:
    """A place inside `whole` as programs write it: `agents[0].name`."""
    return whole + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)


def text_of(flaw: Mapping[str, Any]) -> str:
    """What a flaw says."""
    return showable(str(flaw["msg"]).removeprefix("Value error, "))


def showable(text: str) -> str:
    """The text without halves of surrogate pairs, which no answer can have."""
    return text.encode(errors="backslashreplace").decode()
