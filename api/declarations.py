"""What a route's function declares of a request, read once from its signature.

The rules are FastAPI's, as its documentation has them: `Path`, `Query`, `Header` and `Depends` say what a parameter is;
without one of them, a name of the path is of the path, a model is the body, and all else is of the query.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from inspect import Parameter as Named
from inspect import iscoroutinefunction, signature
from typing import Annotated, Any, Literal, get_args, get_origin

from fastapi import params
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from starlette.requests import Request
from starlette.responses import Response

from api.letta.unused_input import models_in

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
