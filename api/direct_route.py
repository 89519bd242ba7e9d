"""A route that answers plain requests without FastAPI's dependency resolution.

FastAPI resolves each dependency again for every request, which costs more than the rest of a route without SQL. The
declarations do not change, so `Plan` reads them once. A request is plain if it has no query and, where its route reads
a body, that body is a JSON object. FastAPI gets all other requests, and those in which a check fails, so that it writes
the refusal. Clients see no difference.

`declaration_of` reads the declaration from the signature of a route's function, once. It follows FastAPI's documented
rules: `Path`, `Query`, `Header` and `Depends` mark a parameter; an unmarked one is a path parameter if the path names
it, the body if its type is a model, and a query parameter otherwise.
"""

import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from inspect import Parameter as Named
from inspect import iscoroutinefunction, signature
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, cast, get_args, get_origin

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
from shared.concurrency import others_turn

Kind = Literal["path", "query", "header", "body", "form", "inner", "request", "response", "other"]
"""`inner`: the result of another function, as `Depends` declares it. `other`: only FastAPI can find the value."""

ABSENT = Named.empty
"""The default of a required parameter."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a function."""

    name: str
    alias: str
    """The parameter's name in requests."""
    kind: Kind
    annotation: Any
    """The parameter's type, without the marker of its source."""
    default: Any
    inner: "Declaration | None" = None

    @cached_property
    def adapter(self) -> "TypeAdapter[Any]":
        """Validates values of the parameter."""
        return TypeAdapter(self.annotation)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yields the models in a field's annotation, also inside unions, lists and `Annotated`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, UnionType, Annotated, list):
        for argument in get_args(annotation):
            yield from models_in(argument)


@dataclass(frozen=True)
class Declaration:
    """A function and its parameters, in order."""

    function: Callable[..., Awaitable[Any]]
    parameters: Sequence[Parameter]

    @property
    def is_awaited(self) -> bool:
        """Whether the function is a coroutine. FastAPI runs a plain function in a thread, and closes a generator after
        the answer."""
        return iscoroutinefunction(self.function)

    def of(self, *kinds: Kind) -> list[Parameter]:
        """The function's own parameters of these kinds."""
        return [one for one in self.parameters if one.kind in kinds]

    def all_of(self, kind: Kind) -> Iterator[Parameter]:
        """The parameters of this kind, those of its dependencies included."""
        yield from self.of(kind)
        for one in self.parameters:
            if one.inner is not None:
                yield from one.inner.all_of(kind)

    def body_model(self) -> type[BaseModel] | None:
        """The model of the whole body. A form has none: its route checks the fields. The model of a route that reads no
        body is empty."""
        if not self.of("body", "form", "request"):
            return BaseModel
        bodies = self.of("body")
        return next(models_in(bodies[0].annotation), None) if len(bodies) == 1 else None


def declaration_of(route: APIRoute) -> Declaration:
    """The declaration of the route's function and of its router."""
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


# Finds the route of a request by its method and its noun, instead of searching the list of all routes. That search
# matches a regular expression per route: for the last routes it takes a tenth of a millisecond and more.


_OF_PAGES = ("/ag-ui/", "/ai-sdk/")
"""Paths whose second part is the id of an agent."""


def noun_of(path: str) -> str:
    """The noun of a path, such as `/v1/agents` for everything below it. No route has a parameter in it."""
    return "/".join(path.split("/", 3)[: 2 if path.startswith(_OF_PAGES) else 3])


class RouteIndex(BaseRoute):
    """The application's first route. It dispatches to the first of `routes` that matches by method and path, and leaves
    other requests to the routes after it."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        found: defaultdict[tuple[str, str], list[BaseRoute]] = defaultdict(list)
        for route in routes:
            for method in getattr(route, "methods", None) or ():
                found[method, noun_of(getattr(route, "path", ""))].append(route)
        self._routes = dict(found)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """The first route that matches, and its additions to the scope."""
        for route in self._routes.get((scope["method"], noun_of(scope["path"])), ()) if scope["type"] == "http" else ():
            match, child = route.matches(scope)
            if match is Match.FULL:
                return match, {**child, "route": route}
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The route's own `handle` would check the method again.
        await scope["route"].app(scope, receive, send)


# FastAPI analyses the declaration of a `LateRoute` at its first use, not at import. The analysis walks the dependencies
# of a route and makes a validator for each parameter. For all routes together that took a third of a server's start,
# and a deployment uses few of them.


class LateRoute(APIRoute):
    """A route that has its path, methods and name at once. FastAPI reads the rest of the declaration when code first
    accesses another attribute. Only then, at each access, it raises an error in the declaration."""

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
        # These values are FastAPI's. Starlette adds HEAD to GET, and has wrapped the endpoint in an application of its
        # own.
        self.methods = {method.upper() for method in declared.get("methods") or ["GET"]}
        del self.app

    def __getattr__(self, name: str) -> Any:
        # Python calls this for attributes that do not exist yet.
        if name.startswith("__") or "_declared" not in self.__dict__:
            raise AttributeError(name)
        self.read()
        return getattr(self, name)

    def read(self) -> None:
        """Reads the declaration. Afterwards the route has all attributes."""
        declared = self._declared
        declared["endpoint"] = with_long_answers(declared["endpoint"])
        super().__init__(**declared)
        del self._declared


JSON = "application/json"


class NotPlain(Exception):
    """FastAPI must handle the request."""


@dataclass(frozen=True)
class Call:
    """A function that a route declares, and its arguments by source."""

    function: Callable[..., Awaitable[Any]]
    inner: Sequence[tuple[str, "Call"]]
    defaults: Mapping[str, Any]
    """Defaults of all optional parameters outside the path."""
    path: Sequence[Parameter]
    headers: Mapping[str, Parameter]
    itself: Sequence[str]
    """The parameters that receive the request itself. The parameters in `answers` receive the response, to which a
    route may add headers."""
    answers: Sequence[str]


class ResolvedRequest(NamedTuple):
    """A request, and the results of its dependencies so far."""

    request: Request
    headers: Mapping[str, str]
    response: Response
    """Collects the headers that a route adds."""
    answers: dict[Callable[..., Awaitable[Any]], Any]


@dataclass(frozen=True)
class Plan:
    """How to call a route. `of` returns None if only FastAPI can find one of its values."""

    endpoint: Call
    body: Parameter | None
    answer: "TypeAdapter[Any] | None"
    """Validates and renders the answer; None if the route returns a response."""
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
    """How to call the declared function. Raises `NotPlain`."""
    absent = declared.of("query", "header")
    is_found_here = (
        declared.is_awaited,
        not declared.of("form", "other"),
        not (is_inner and declared.of("body")),
        not any(model for one in declared.of("path", "query", "header") for model in models_in(one.annotation)),
        not any(_takes_list(one.annotation) for one in declared.of("header")),
        # Other defaults are lists, which a function might change, or mean that the value is required.
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
    """Answers plain requests by its plan, and leaves other requests to FastAPI."""

    def read(self) -> None:
        """See `LateRoute.read`."""
        super().read()
        self._plan, self._fastapi = Plan.of(self), self.app
        if self._plan is not None:
            self.app = self._answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        read: list[Message] = []
        try:
            # The objects behind the answer are released before it begins: a stream may last for hours.
            answer = await self._made(scope, receive, read)
        except NotPlain:
            await others_turn(read[0].get("body", b"") if read else b"")
            await self._fastapi(scope, _replayed(read, receive), send)
            return
        await answer(scope, receive, send)

    async def _made(self, scope: Scope, receive: Receive, read: list[Message]) -> Response:
        """The answer to a plain request. When it raises `NotPlain`, `read` has the messages that were received."""
        plan = self._plan
        headers = _first_of_each(scope["headers"])
        if plan is None or scope["query_string"] or (plan.body and headers.get("content-type") != JSON):
            raise NotPlain
        given = await _document(receive, read) if plan.body else None
        response = Response()
        del response.headers["content-length"]
        asked = ResolvedRequest(Request(scope, receive), headers, response, {})
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


async def _values(call: Call, asked: ResolvedRequest) -> dict[str, Any]:
    """The arguments of a function. Raises `NotPlain`, and the errors of its dependencies."""
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
    """The JSON object of a body, which `RequestInput` passes on in one message. Raises `NotPlain` for other bodies."""
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
