"""Reads a request's input once: its body, its permit as a submission, the limits of its key, and names that the API
ignores. Routes get a body that can be parsed, stored and shown again.

A client cannot make this process keep more than the limit, in whatever way it sends the body.

A strict request with an ignored name is refused; other requests only get a `Warning`. Letta's clients send fields that
no server uses, so strictness is off by default. A header turns it on for one request, and the operator for all. The
refusal precedes all work of the route.
"""

import asyncio
from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from typing import Any, cast
from urllib.parse import parse_qsl

from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.access.authentication import SIGN_IN_RETURN, acting_for, caller_within_reach
from api.access.route_rules import AgentReach
from api.admission import Admission, ClientLeft, is_submission
from api.direct_route import RouteIndex, declaration_of
from api.errors import MOST_FLAWS, domain_error_answer, input_refusal, refused
from api.every_answer import ASKS_FOR_NOTHING, PIP_REQUIREMENTS, Unacted, UnusedInputWarnings, document_of, unacted
from api.request_log import is_of_api
from shared.concurrency import others_turn
from shared.domain.errors import ErrorCode, Unavailable
from shared.json_limits import flaw_of_document

STRICT = b"x-holdfast-strict"
OURS = "x-holdfast-"
"""Prefix of Holdfast's own headers. Other headers are not checked."""
_SAID = {"true": True, "1": True, "false": False, "0": False}
CLOSE = 0.6
"""Similarity from which a known name is suggested for an unknown one."""
LONGEST_NAME = 80
"""Characters of a name that are compared and shown. A longer name is no typing error."""

Flaw = dict[str, Any]


class StrictRequests:
    """Refuses a request with ignored names, if the request or the operator demands that."""

    def __init__(self, *, routes: Sequence[BaseRoute], by_default: bool, installs_packages: bool) -> None:
        self._routes = routes
        self._by_default = by_default
        self._acted_on = PIP_REQUIREMENTS if installs_packages else ()

    def refusal(self, scope: Scope, body: bytes) -> Response | None:
        """The 422 that lists the ignored names; None if there are none or the request is not strict."""
        said = next((value for name, value in scope["headers"] if name == STRICT), None)
        if said is None and scope["path"] == SIGN_IN_RETURN:
            return None  # authorization servers add parameters of their own
        wanted = self._by_default if said is None else _SAID.get(said.decode("latin-1").lower())
        if wanted is None:
            return input_refusal([_flaw(("header", "X-Holdfast-Strict"), "it must be true or false")])
        route = self._index.matches(scope)[1].get("route") if wanted else None
        if not isinstance(route, APIRoute):
            return None
        found = list(islice(self._flaws(route, scope, body), MOST_FLAWS))
        return input_refusal(found, ErrorCode.UNKNOWN_FIELD) if found else None

    def _flaws(self, route: APIRoute, scope: Scope, body: bytes) -> Iterator[Flaw]:
        for name, _ in scope["headers"]:
            header = name.decode("latin-1")
            if header.startswith(OURS) and header not in self._headers:
                yield _flaw(("header", header), _unknown("header", header, self._headers))
        declared = declaration_of(route)
        parameters = frozenset(one.alias for one in declared.all_of("query"))
        for name, value in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True):
            if name not in parameters and ASKS_FOR_NOTHING.get(name) != value:
                yield _flaw(("query", name), _unknown("parameter", name, parameters))
        model, given = declared.body_model(), document_of(body)
        if model is not None and isinstance(given, dict):
            for one in unacted(model, cast("dict[str, Any]", given), strict=True):
                if str(one) not in self._acted_on:
                    yield _flaw(("body", *one.loc), _why(one))

    @cached_property
    def _index(self) -> RouteIndex:
        return RouteIndex(self._routes)

    @cached_property
    def _headers(self) -> frozenset[str]:
        """Holdfast's own headers that a route reads. A client may send them with every request."""
        routes = [route for route in self._routes if isinstance(route, APIRoute)]
        read = (one.alias.lower() for route in routes for one in declaration_of(route).all_of("header"))
        return frozenset(name for name in read if name.startswith(OURS)) | {STRICT.decode()}


def _why(one: Unacted) -> str:
    name = str(one.loc[-1])
    because = one.known.unused.get(name)
    return _unknown("field", name, one.known.fields) if because is None else f"{name!r} is not acted on: {because}"


def _unknown(kind: str, name: str, known: Collection[str]) -> str:
    shown = name[:LONGEST_NAME]
    # `callbackUrl` and `callback_url` differ by more characters than most typing errors.
    plain = {one.replace("_", "").replace("-", "").lower(): one for one in sorted(known)}
    near = get_close_matches(shown.replace("_", "").replace("-", "").lower(), plain, 1, CLOSE)
    meant = f"; did you mean {plain[near[0]]!r}?" if near else ""
    return f"there is no {kind} {shown!r} here{meant}"


def _flaw(loc: tuple[str | int, ...], text: str) -> Flaw:
    return {"type": "unknown_field", "loc": loc, "msg": text}


class RequestInput:
    """Passes a request with valid input to the route, or refuses it."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        bodies: "BodyReader",
        admission: Admission,
        reach: AgentReach,
        strict: StrictRequests,
        warnings: UnusedInputWarnings,
    ) -> None:
        self._app = app
        self._bodies = bodies
        self._admission = admission
        self._reach = reach
        self._strict = strict
        self._warnings = warnings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body: bytes | Response | None = self._bodies.declared_too_long(scope)
        if body is None and self._bodies.is_read(scope):
            body = await self._bodies.read(receive)
            if body is None:
                return  # the client has disconnected
        if isinstance(body, Response):
            await body(scope, receive, send)
            return
        given = _Given(body, receive)
        del body
        if is_submission(scope):
            await self._in_turn(scope, given, send)
        else:
            await self._judged(scope, given, send)

    async def _in_turn(self, scope: Scope, given: "_Given", send: Send) -> None:
        """Reads the body of a submission first, and then waits for its permit."""
        try:
            permit = await self._admission.enter(given.receive)
        except ClientLeft:
            return
        except Unavailable as error:
            await domain_error_answer(f"POST {scope['path']}", error)(scope, given.receive, send)
            return
        with permit:
            await self._judged(scope, given, send)

    async def _judged(self, scope: Scope, given: "_Given", send: Send) -> None:
        refusal = await caller_within_reach(self._reach, scope, given.body)
        caller = scope.get("state", {}).get("caller")
        with acting_for(None if caller is None else caller.project_id):
            refusal = refusal or self._strict.refusal(scope, given.body)
            if refusal is not None:
                await refusal(scope, given.receive, send)
                return

            async def warned(message: Message) -> None:
                if message["type"] == "http.response.start":
                    if message["status"] < 400:
                        await others_turn(given.body)
                        self._warnings.warn(scope, given.body, message)
                    given.forget()
                await send(message)

            await self._app(scope, given.replayed, warned)


class _Given:
    """A body that was read, and the `receive` behind it. None: no part of the API reads this body."""

    def __init__(self, body: bytes | None, receive: Receive) -> None:
        self.receive = receive
        self.body = body or b""
        self._is_replayed = body is None

    async def replayed(self) -> Message:
        """The body for the route, in one message, and then the messages behind it."""
        if self._is_replayed:
            return await self.receive()
        self._is_replayed = True
        return {"type": "http.request", "body": self.body, "more_body": False}

    def forget(self) -> None:
        """Releases the body when the answer begins: a stream lasts as long as its run and no longer needs the body."""
        self.body = b""


TIMES_SLOWER = 10
"""A whole body may take this many times the longest allowed silence within it."""


class BodyReader:
    """Reads the body of a request to a path under `/v1` once. Checks its length, and then its JSON.

    `max_bytes` is the longest body. `timeout_s` is the longest silence of a client within one.
    """

    def __init__(self, *, max_bytes: int, timeout_s: float) -> None:
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    def is_read(self, scope: Scope) -> bool:
        """Whether the request has a body that the API reads."""
        return is_of_api(scope["path"]) and scope["method"] not in ("GET", "HEAD")

    def declared_too_long(self, scope: Scope) -> Response | None:
        """The 413 for a body whose `Content-Length` is too long; None for other bodies."""
        if not is_of_api(scope["path"]):
            return None
        declared: bytes = dict(scope["headers"]).get(b"content-length", b"0")
        return self._too_long() if declared.isdigit() and self._is_over(declared) else None

    async def read(self, receive: Receive) -> bytes | Response | None:
        """The body, or the answer that refuses it. None: the client has disconnected."""
        try:
            body = await self._received(receive)
        except TimeoutError:
            said = f"The request's body did not arrive within {self._timeout_s:g} seconds (HOLDFAST_REQUEST_TIMEOUT)"
            return refused(408, ErrorCode.BODY_TIMEOUT, said, headers={"Connection": "close"})
        if body is None:
            return None
        await others_turn(body)
        refusal = self._too_long() if len(body) > self._max_bytes else _refused_content(body)
        await others_turn(body)
        return body if refusal is None else refusal

    def _is_over(self, declared: bytes) -> bool:
        digits = declared.lstrip(b"0")
        # Python refuses to convert a number of thousands of digits.
        return len(digits) > len(str(self._max_bytes)) or int(digits or b"0") > self._max_bytes

    async def _received(self, receive: Receive) -> bytes | None:
        """The body, or enough of it to show that it is too long. None: the client has disconnected.

        Raises `TimeoutError` if the body does not arrive.
        """
        body = bytearray()
        async with asyncio.timeout(self._timeout_s * TIMES_SLOWER):
            while True:
                async with asyncio.timeout(self._timeout_s):
                    message: Any = await receive()
                if message["type"] == "http.disconnect":
                    return None
                body += message.get("body", b"")
                if not message.get("more_body") or len(body) > self._max_bytes:
                    return bytes(body)

    def _too_long(self) -> Response:
        said = (
            f"The request's body is longer than {self._max_bytes} bytes, which is what HOLDFAST_MAX_BODY_BYTES allows"
        )
        return refused(413, ErrorCode.BODY_TOO_LARGE, said)


def _refused_content(body: bytes) -> Response | None:
    flaw = flaw_of_document(body)
    if flaw is None:
        return None
    return input_refusal([{"type": "value_error", "loc": ("body", *flaw.place), "msg": flaw.text}])
