"""A route that answers plain requests itself answers every request as FastAPI does, to the byte."""

from collections.abc import Iterator
from typing import Annotated, Any, cast

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, Path, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import PlainTextResponse

from api.application import ROUTERS
from api.direct_route import DirectRoute, Plan, declaration_of
from api.letta.routes import agents, messages, runs
from tests.kit.product.in_process import asgi_client


class Thing(BaseModel):
    name: str
    size: float = 1.0


async def _who(request: Request) -> str:
    return request.headers.get("x-who", "nobody")


async def _wish(
    who: Annotated[str, Depends(_who)],
    priority: Annotated[int, Header(alias="X-Priority", ge=-1, lt=2)] = 0,
    is_loud: Annotated[bool, Header()] = False,
) -> str:
    if priority == 1 and who == "nobody":
        raise PermissionError
    return f"{who} {priority} {is_loud}"


async def _make(
    thing_id: Annotated[str, Path(pattern="^thing-[0-9]$")],
    body: Thing,
    response: Response,
    who: Annotated[str, Depends(_who)],
    wish: Annotated[str, Depends(_wish)],
    tags: Annotated[list[str] | None, Query()] = None,
) -> dict[str, Any]:
    response.headers["x-made"] = thing_id
    return {"id": thing_id, **body.model_dump(), "by": who, "wish": wish, "tags": tags, "ratio": 1e16, "ü": "ü"}


async def _show(thing_id: str, wish: Annotated[str, Depends(_wish)]) -> PlainTextResponse:
    return PlainTextResponse(f"{thing_id} {wish}", 203, {"x-shown": "1"})


async def _fill(body: Thing | None = None) -> Thing:
    return body or Thing(name="nothing")


async def _refused(_request: Request, _error: Exception) -> Response:
    return PlainTextResponse("refused", 403)


def app_of(route_class: type[APIRoute]) -> FastAPI:
    router = APIRouter(route_class=route_class)
    router.post("/things/{thing_id}")(_make)
    router.get("/things/{thing_id}", response_model=None)(_show)
    router.post("/filled")(_fill)
    app = FastAPI(exception_handlers={PermissionError: _refused})
    app.router.routes.extend(router.routes)
    return app


JSON = {"content-type": "application/json"}
PLAIN = {"content": '{"name": "a", "size": 2}', "headers": JSON}
ASKED: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "an answer that has a header of the endpoint's": {**PLAIN, "path": "/things/thing-2"},
    "headers that are declared": {**PLAIN, "headers": {**JSON, "X-Who": "me", "X-Priority": "1", "is-loud": "yes"}},
    "a header twice": {**PLAIN, "headers": [*JSON.items(), ("x-priority", "-1"), ("x-priority", "0")]},
    "a header that is refused": {**PLAIN, "headers": {**JSON, "X-Priority": "2"}},
    "a dependency that raises": {**PLAIN, "headers": {**JSON, "X-Priority": "1"}},
    "a dependency that raises beside a body that is refused": {"content": "{}", "headers": {**JSON, "X-Priority": "1"}},
    "several flaws": {"content": "{}", "headers": {**JSON, "X-Priority": "x"}, "path": "/things/none"},
    "a path that is refused": {**PLAIN, "path": "/things/thing-10"},
    "a query": {**PLAIN, "params": {"tags": ["a", "b"], "other": "c"}},
    "no body": {"headers": JSON},
    "no JSON": {**PLAIN, "content": '{"name": '},
    "no object": {**PLAIN, "content": "[1]"},
    "null": {**PLAIN, "content": "null"},
    "other characters": {**PLAIN, "content": '{"name": "ü"}'.encode("utf-16")},
    "no characters": {**PLAIN, "content": b'{"name": "\xff"}'},
    "no type": {**PLAIN, "headers": {}},
    "a longer type": {**PLAIN, "headers": {"content-type": "application/vnd.api+json; charset=utf-8"}},
    "another type": {**PLAIN, "headers": {"content-type": "text/plain"}},
    "an answer that is a response": {"method": "GET"},
    "an answer that is a response, with a query": {"method": "GET", "params": {"a": "b"}},
    "a method that is not there": {"method": "PUT"},
    "a body that may be left out": {**PLAIN, "path": "/filled"},
    "a body that is left out": {"path": "/filled"},
    "a body that is null": {**PLAIN, "path": "/filled", "content": "null"},
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
async def test_a_request_is_answered_as_by_fastapi(asked: dict[str, Any]) -> None:
    given: dict[str, Any] = {"method": "POST", "path": "/things/thing-1", **asked}
    method, path = given.pop("method"), given.pop("path")
    answers: list[httpx.Response] = []
    for route_class in (APIRoute, DirectRoute):
        async with asgi_client(app_of(route_class)) as client:
            answers.append(await client.request(method, path, **given))
    by_fastapi, direct = answers
    assert (direct.status_code, direct.headers.raw, direct.content) == (
        by_fastapi.status_code,
        by_fastapi.headers.raw,
        by_fastapi.content,
    )


def test_the_document_of_a_direct_route_is_fastapis() -> None:
    assert app_of(DirectRoute).openapi() == app_of(APIRoute).openapi()


def _read_by_fastapi(dependant: Any, of: str) -> Iterator[str]:
    yield from (field.alias.lower() for field in getattr(dependant, of))
    for inner in dependant.dependencies:
        yield from _read_by_fastapi(inner, of)


@pytest.mark.parametrize("router", ROUTERS)
def test_what_a_route_declares_is_read_as_fastapi_reads_it(router: Any) -> None:
    """Names that nobody acts on are found by it: a name that is left out would be refused, or warned about."""
    for route in router.routes:
        if isinstance(route, APIRoute):
            declared = declaration_of(route)
            for kind, of in (("query", "query_params"), ("header", "header_params")):
                ours = {one.alias.lower() for one in declared.all_of(cast("Any", kind))}
                assert ours == set(_read_by_fastapi(route.dependant, of)), f"{route.path}: {kind}"
            [*bodies] = [field.name for field in route.dependant.body_params]
            assert [one.name for one in declared.of("body", "form")] == bodies, f"{route.path}: body"


async def _later() -> Any:
    yield 1


async def _with_form(request: Request, later: Annotated[int, Depends(_later)]) -> Response:
    return PlainTextResponse(f"{request.url} {later}")


async def _needs_query(wanted: str) -> Response:
    return PlainTextResponse(wanted)


async def _needs_list(wanted: Annotated[list[str] | None, Header()] = None) -> Response:
    return PlainTextResponse(str(wanted))


def _waits() -> Response:
    return PlainTextResponse("in a thread")


async def _anything() -> Any:
    return {}


@pytest.mark.parametrize("endpoint", [_with_form, _needs_query, _needs_list, _waits, _anything])
def test_what_only_fastapi_knows_how_to_find_is_left_to_it(endpoint: Any) -> None:
    assert Plan.of(APIRoute("/", endpoint, response_model=None)) is None


@pytest.mark.parametrize("name", ["create_agent", "send_messages", "stream_run"])
def test_the_requests_that_every_run_begins_with_are_answered_directly(name: str) -> None:
    routes = [*agents.router.routes, *messages.router.routes, *runs.router.routes]
    [route] = [one for one in routes if isinstance(one, DirectRoute) and one.name == name]
    assert Plan.of(route) is not None
