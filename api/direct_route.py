"""A route that answers plain requests without FastAPI's resolution of dependencies.

FastAPI looks at each request anew at what its route declares, dependency by dependency, which costs more than all that
the routes do beside SQL. What is declared does not change: `Plan` reads it once. A request is plain when it has no
query and, where its route reads a body, a JSON object. Any other one, and any of which something is refused, goes to
FastAPI, which says what is wrong with it. So nobody sees a difference but in time.

`declaration_of` reads what a route's function declares, once, from its signature. The rules are FastAPI's, as its
documentation has them: `Path`, `Query`, `Header` and `Depends` say what a parameter is; without one of them, a name of
the path is of the path, a model is the body, and all else is of the query.
"""

import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from inspect import Parameter as Named
from inspect import iscoroutinefunction, signature
from typing import Annotated, Any, Literal, NamedTuple, cast, get_args, get_origin

from fastapi import params
from fastapi.datastructures import DefaultPlaceholder
from fastapi.exceptions import ResponseValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Message, Receive, Scope, Send

from api.event_stream import with_long_answers
from api.letta.unused_input import models_in
from shared.concurrency import others_turn

Kind = Literal["path", "query", "header", "body", "form", "inner", "request", "response", "other"]
"""`inner`: what another function makes of the request. `other`: what only FastAPI knows how to find."""

ABSENT = Named.empty
"""The default of what has to be there."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a function."""

    name: str
    alias: str
    """Its name in a request."""
    kind: Kind
    annotation: Any
    """Its type, without what says where it comes from."""
    default: Any
    inner: "Declaration | None" = None

    @cached_property
    def adapter(self) -> "TypeAdapter[Any]":
        """What checks a value of it."""
        return TypeAdapter(self.annotation)


@dataclass(frozen=True)
class Declaration:
    """A function, with its parameters in their order."""

    function: Callable[..., Awaitable[Any]]
    parameters: Sequence[Parameter]

    @property
    def is_awaited(self) -> bool:
        """Whether it is a coroutine: FastAPI runs any other in a thread, or ends it when the answer is out."""
        return iscoroutinefunction(self.function)

    def of(self, *kinds: Kind) -> list[Parameter]:
        """Its own parameters of these kinds."""
        return [one for one in self.parameters if one.kind in kinds]

    def all_of(self, kind: Kind) -> Iterator[Parameter]:
        """The parameters of this kind, also of the functions that it depends on."""
        yield from self.of(kind)
        for one in self.parameters:
            if one.inner is not None:
                yield from one.inner.all_of(kind)

    def body_model(self) -> type[BaseModel] | None:
        """The model of the whole body. A form's fields are its route's to judge."""
        bodies = self.of("body")
        return next(models_in(bodies[0].annotation), None) if len(bodies) == 1 else None


def declaration_of(route: APIRoute) -> Declaration:
    """What the route's function declares, and what its router does for all of its routes."""
    in_path = frozenset(route.param_convertors)
    own = _declaration(route.endpoint, in_path)
    of_router = [_depends(f"router {number}", one, None, in_path) for number, one in enumerate(route.dependencies)]
    return Declaration(own.function, [*of_router, *own.parameters]) if of_router else own


@cache
def _declaration(function: Callable[..., Any], in_path: frozenset[str]) -> Declaration:
    named = signature(function, eval_str=True).parameters.values()
    return Declaration(function, [_parameter(one, in_path) for one in named])


def _parameter(named: Named, in_path: frozenset[str]) -> Parameter:
    annotation, *notes = get_args(named.annotation) if get_origin(named.annotation) is Annotated else [named.annotation]
    depends = next((one for one in notes if isinstance(one, params.Depends)), None)
    if depends is not None:
        return _depends(named.name, depends, annotation, in_path)
    said = next((one for one in notes if isinstance(one, FieldInfo)), None)
    default = named.default
    if default is ABSENT and said is not None and not said.is_required():
        default = said.get_default(call_default_factory=True)
    checks = [check for one in notes for check in (one.metadata if isinstance(one, FieldInfo) else [one])]
    checked = Annotated[annotation, *checks] if checks else annotation
    return Parameter(named.name, _alias(named.name, said), _kind(named, annotation, said, in_path), checked, default)


def _depends(name: str, said: params.Depends, annotation: Any, in_path: frozenset[str]) -> Parameter:
    inner = None if said.dependency is None else _declaration(said.dependency, in_path)
    return Parameter(name, name, "other" if inner is None else "inner", annotation, ABSENT, inner)


def _alias(name: str, said: FieldInfo | None) -> str:
    if said is not None and said.alias is not None:
        return said.alias
    return name.replace("_", "-") if isinstance(said, params.Header) else name


def _kind(named: Named, annotation: Any, said: FieldInfo | None, in_path: frozenset[str]) -> Kind:
    if isinstance(annotation, type) and issubclass(annotation, (Request, Response)):
        return "request" if issubclass(annotation, Request) else "response"
    match said:
        case params.Path():
            return "path"
        case params.Query():
            return "query"
        case params.Header():
            return "header"
        case params.Form():
            return "form"
        case params.Cookie():
            return "other"
        case params.Body():
            return "other" if said.embed else "body"
        case _:
            pass
    if named.name in in_path:
        return "path"
    return "body" if next(models_in(annotation), None) is not None else "query"


# Finds the route of a request by its method and its noun, instead of in the list of all routes.
#
# The list is searched from its beginning, and each entry matches a regular expression: for the last routes that takes a
# tenth of a millisecond and more.


def noun_of(path: str) -> str:
    """`/v1/agents` of everything below it; no route has a parameter there."""
    return "/".join(path.split("/", 3)[:3])


class RouteIndex(BaseRoute):
    """The routes that a request may mean, in their order. As the first of an application's routes it answers whatever
    one of them matches, and leaves the rest to those behind it: other methods, and paths that do not exist."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        found: defaultdict[tuple[str, str], list[BaseRoute]] = defaultdict(list)
        for route in routes:
            for method in getattr(route, "methods", None) or ():
                found[method, noun_of(getattr(route, "path", ""))].append(route)
        self._routes = dict(found)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """The first route that matches, and what it adds to the scope."""
        for route in self._routes.get((scope["method"], noun_of(scope["path"])), ()) if scope["type"] == "http" else ():
            match, child = route.matches(scope)
            if match is Match.FULL:
                return match, {**child, "route": route}
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Not the route's `handle`: that looks at the method again.
        await scope["route"].app(scope, receive, send)


# A route of which FastAPI works out what it declares when it is first asked, and not when its module is imported.
#
# FastAPI walks each route's dependencies anew and makes a validator of every parameter that it meets. For all routes
# together that was a third of a server's start, and a deployment uses few of them.


class LateRoute(APIRoute):
    """Knows at once what finds it: its path, methods and name. Whoever asks for anything else has FastAPI read the
    declaration first; what is wrong with it is raised then, once for each that asks."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **declared: Any) -> None:
        self._declared: dict[str, Any] = {"path": path, "endpoint": endpoint, **declared}
        Route.__init__(
            self,
            path,
            endpoint,
            methods=list(declared.get("methods") or ["GET"]),
            name=declared.get("name"),
            include_in_schema=declared.get("include_in_schema", True),
        )
        # As FastAPI has it. Starlette adds HEAD to GET, and has made an application of its own of the endpoint.
        self.methods = {method.upper() for method in declared.get("methods") or ["GET"]}
        del self.app

    def __getattr__(self, name: str) -> Any:
        # Python asks here for what is not there yet.
        if name.startswith("__") or "_declared" not in self.__dict__:
            raise AttributeError(name)
        self.read()
        return getattr(self, name)

    def read(self) -> None:
        """Reads the declaration. All of a route is there afterwards."""
        declared = self._declared
        declared["endpoint"] = with_long_answers(declared["endpoint"])
        super().__init__(**declared)
        del self._declared


JSON = "application/json"


class NotPlain(Exception):
    """FastAPI has to look at the request."""


@dataclass(frozen=True)
class Call:
    """A function that a route declares, and what it is called with."""

    function: Callable[..., Awaitable[Any]]
    inner: Sequence[tuple[str, "Call"]]
    defaults: Mapping[str, Any]
    """Of all parameters that are not in the path, which a request may leave out."""
    path: Sequence[Parameter]
    headers: Mapping[str, Parameter]
    itself: Sequence[str]
    """The names of parameters that are the request; so with `answers`, of what a route may add headers to."""
    answers: Sequence[str]


class Asked(NamedTuple):
    """A request, and what its dependencies have answered."""

    request: Request
    headers: Mapping[str, str]
    response: Response
    """What a route may add headers to."""
    answers: dict[Callable[..., Awaitable[Any]], Any]


@dataclass(frozen=True)
class Plan:
    """How a route is called. `of` is None for one that declares something which only FastAPI knows how to find."""

    endpoint: Call
    body: Parameter | None
    answer: "TypeAdapter[Any] | None"
    """What checks and renders the answer; None where it is a response already."""
    status: int | None

    @classmethod
    def of(cls, route: APIRoute) -> "Plan | None":
        """Reads a route's declaration."""
        declared = declaration_of(route)
        bodies = declared.of("body")
        try:
            endpoint = _call_of(declared)
        except NotPlain:
            return None
        if len(bodies) > 1 or not _is_rendered_plainly(route):
            return None
        answer = None if route.response_model is None else TypeAdapter[Any](route.response_model)
        return cls(endpoint, bodies[0] if bodies else None, answer, route.status_code)


def _is_rendered_plainly(route: APIRoute) -> bool:
    if route.response_model is None:
        returned = signature(route.endpoint).return_annotation
        return isinstance(returned, type) and issubclass(returned, Response)
    options = (
        *(route.response_model_include, route.response_model_exclude, route.response_model_exclude_unset),
        *(route.response_model_exclude_defaults, route.response_model_exclude_none, not route.response_model_by_alias),
    )
    has_own_class = not isinstance(route.response_class, DefaultPlaceholder)
    return not has_own_class and not any(options) and route.status_code in (None, 200, 201, 202)


def _call_of(declared: Declaration, *, is_inner: bool = False) -> Call:
    """Raises `NotPlain`."""
    absent = declared.of("query", "header")
    is_found_here = (
        declared.is_awaited,
        not declared.of("form", "other"),
        not (is_inner and declared.of("body")),
        not any(model for one in declared.of("path", "query", "header") for model in models_in(one.annotation)),
        not any(_takes_list(one.annotation) for one in declared.of("header")),
        # What is no constant is a list, which somebody might change, or has to be there.
        all(one.default is None or isinstance(one.default, (bool, int, float, str)) for one in absent),
    )
    if not all(is_found_here):
        raise NotPlain
    inner = [(one.name, one.inner) for one in declared.of("inner")]
    return Call(
        function=declared.function,
        inner=[(name, _call_of(one, is_inner=True)) for name, one in inner if one is not None],
        defaults={one.name: one.default for one in absent},
        path=declared.of("path"),
        headers={one.alias.lower(): one for one in declared.of("header")},
        itself=[one.name for one in declared.of("request")],
        answers=[one.name for one in declared.of("response")],
    )


def _takes_list(annotation: Any) -> bool:
    return any(list in (one, get_origin(one)) for one in (annotation, *get_args(annotation)))


class DirectRoute(LateRoute):
    """Answers plain requests as its plan says, and has FastAPI answer the others."""

    def read(self) -> None:
        """See `LateRoute.read`."""
        super().read()
        self._plan, self._fastapi = Plan.of(self), self.app
        if self._plan is not None:
            self.app = self._answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        read: list[Message] = []
        try:
            # What the answer was made of is let go before it begins: a stream may go on for hours.
            answer = await self._made(scope, receive, read)
        except NotPlain:
            await others_turn(read[0].get("body", b"") if read else b"")
            await self._fastapi(scope, _replayed(read, receive), send)
            return
        await answer(scope, receive, send)

    async def _made(self, scope: Scope, receive: Receive, read: list[Message]) -> Response:
        """The answer to a plain request. What is received is in `read` when `NotPlain` is raised."""
        plan = self._plan
        headers = _first_of_each(scope["headers"])
        if plan is None or scope["query_string"] or (plan.body and headers.get("content-type") != JSON):
            raise NotPlain
        given = await _document(receive, read) if plan.body else None
        response = Response()
        del response.headers["content-length"]
        asked = Asked(Request(scope, receive), headers, response, {})
        values = await _values(plan.endpoint, asked)
        if plan.body:
            await others_turn(read[0].get("body", b""))
            values[plan.body.name] = _checked(plan.body, given)
            await others_turn(read[0].get("body", b""))
        read.clear()
        answered = await plan.endpoint.function(**values)
        return answered if isinstance(answered, Response) else _rendered(plan, answered, response)


def _rendered(plan: Plan, answered: Any, response: Response) -> Response:
    if plan.answer is None:
        raise TypeError(f"{plan.endpoint.function} gave no response, and declares nothing else")
    try:
        checked = plan.answer.validate_python(answered, from_attributes=True)
    except ValidationError as error:
        raise ResponseValidationError(error.errors(include_url=False), body=answered) from error
    rendered = Response(plan.answer.dump_json(checked, by_alias=True), plan.status or 200, media_type=JSON)
    rendered.headers.raw.extend(response.headers.raw)
    return rendered


async def _values(call: Call, asked: Asked) -> dict[str, Any]:
    """What a function is called with. Raises `NotPlain`, and what its dependencies raise."""
    values = dict(call.defaults)
    for name, inner in call.inner:
        if inner.function not in asked.answers:
            asked.answers[inner.function] = await inner.function(**await _values(inner, asked))
        values[name] = asked.answers[inner.function]
    for parameter in call.path:
        values[parameter.name] = _checked(parameter, asked.request.path_params[parameter.alias])
    for header, parameter in call.headers.items():
        if header in asked.headers:
            values[parameter.name] = _checked(parameter, asked.headers[header])
    values |= dict.fromkeys(call.itself, asked.request) | dict.fromkeys(call.answers, asked.response)
    return values


def _checked(parameter: Parameter, given: Any) -> Any:
    try:
        return parameter.adapter.validate_python(given, from_attributes=True)
    except ValidationError:
        raise NotPlain from None


async def _document(receive: Receive, read: list[Message]) -> dict[str, Any]:
    """The JSON object of a body, which `RequestInput` has put into one message. Raises `NotPlain` for another body."""
    message = await receive()
    read.append(message)
    if message["type"] != "http.request" or message.get("more_body"):
        raise NotPlain
    try:
        given: Any = json.loads(message.get("body", b""))
    except ValueError:
        raise NotPlain from None
    if not isinstance(given, dict):
        raise NotPlain
    return cast("dict[str, Any]", given)


def _first_of_each(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in headers:
        found.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    return found


def _replayed(read: list[Message], receive: Receive) -> Receive:
    async def replayed() -> Message:
        return read.pop(0) if read else await receive()

    return replayed
