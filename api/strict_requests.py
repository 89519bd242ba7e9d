"""Strict requests: a name that is not acted on refuses the request, which otherwise only gets a `Warning`.

Letta's clients send fields that no server acts on, so strictness is asked for: by a header, or by the operator for
every request. The refusal comes before the route has done anything.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from typing import Any, cast
from urllib.parse import parse_qsl

from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Scope

from api.answer_headers import ASKS_FOR_NOTHING, PIP_REQUIREMENTS
from api.declarations import declaration_of
from api.direct_route import RouteIndex
from api.errors import input_refusal
from api.letta.unused_input import Unacted, unacted
from api.refusals import MOST_FLAWS
from shared.domain.errors import ErrorCode

STRICT = b"x-holdfast-strict"
OURS = "x-holdfast-"
"""How the names of our own headers begin. What other headers mean is not for us to know."""
_SAID = {"true": True, "1": True, "false": False, "0": False}
CLOSE = 0.6
"""How much of a name has to be the same for it to be meant."""
LONGEST_NAME = 80
"""Characters of a name that are compared and shown. A longer one is no slip of a finger."""

Flaw = dict[str, Any]


class StrictRequests:
    """Refuses what is not acted on, where the request or the operator wants that."""

    def __init__(self, *, routes: Sequence[BaseRoute], by_default: bool, installs_packages: bool) -> None:
        self._routes = routes
        self._by_default = by_default
        self._acted_on = PIP_REQUIREMENTS if installs_packages else ()

    def refusal(self, scope: Scope, body: bytes) -> Response | None:
        """The 422 that names what is not acted on; None where nothing is, or nobody asked."""
        said = next((value for name, value in scope["headers"] if name == STRICT), None)
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
        model, given = declared.body_model(), _document(body)
        if model is not None and isinstance(given, dict):
            for one in unacted(model, cast("dict[str, Any]", given), strict=True):
                if str(one) not in self._acted_on:
                    yield _flaw(("body", *one.loc), _why(one))

    @cached_property
    def _index(self) -> RouteIndex:
        return RouteIndex(self._routes)

    @cached_property
    def _headers(self) -> frozenset[str]:
        """The headers of ours that a route reads. A client may send them with every request."""
        routes = [route for route in self._routes if isinstance(route, APIRoute)]
        read = (one.alias.lower() for route in routes for one in declaration_of(route).all_of("header"))
        return frozenset(name for name in read if name.startswith(OURS)) | {STRICT.decode()}


def _document(body: bytes) -> object:
    try:
        return json.loads(body) if body else None
    except (ValueError, RecursionError):
        return None  # the route says what is wrong with it


def _why(one: Unacted) -> str:
    name = str(one.loc[-1])
    because = one.known.unused.get(name)
    return _unknown("field", name, one.known.fields) if because is None else f"{name!r} is not acted on: {because}"


def _unknown(kind: str, name: str, known: Collection[str]) -> str:
    shown = name[:LONGEST_NAME]
    # `callbackUrl` and `callback_url` differ in more letters than most slips do.
    plain = {one.replace("_", "").replace("-", "").lower(): one for one in sorted(known)}
    near = get_close_matches(shown.replace("_", "").replace("-", "").lower(), plain, 1, CLOSE)
    meant = f"; did you mean {plain[near[0]]!r}?" if near else ""
    return f"there is no {kind} {shown!r} here{meant}"


def _flaw(loc: tuple[str | int, ...], text: str) -> Flaw:
    return {"type": "unknown_field", "loc": loc, "msg": text}
