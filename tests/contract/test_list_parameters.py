"""Every list and search of letta-client, with every query parameter that it can send: acted on, or said in the answer.

A parameter that a route does not declare is named in the answer's `Warning` header (`test_unused_input.py`). Here is
shown which these are, and that the document says the same.
"""

import functools
import inspect
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import httpx
import letta_client
import pytest
from fastapi import FastAPI
from letta_client import APIConnectionError, AsyncLetta

from api.application import ROUTERS
from tests.kit.project.documents import ROOT, documents, table_rows

NOT_OURS = frozenset(
    {
        "access_tokens.list", "agents.schedule.list", "environments.list", "folders.agents.list", "folders.files.list",
        "tools.search",
    }
)  # fmt: skip
"""Answered with 501."""

ABOUT_THE_CALL = frozenset({"extra_headers", "extra_query", "extra_body", "timeout"})


_FIELD = re.compile(r"^    (\w+): ", re.MULTILINE)
_WORD = re.compile(r"\b\w+\b")


class Sent(NamedTuple):
    """A request as the SDK sends it."""

    method: str
    path: str
    parameters: frozenset[str]


@pytest.fixture
async def sent() -> AsyncGenerator[tuple[AsyncLetta, list[httpx.Request]]]:
    """The SDK, and the requests that it has sent to nobody."""
    requests: list[httpx.Request] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        raise httpx.ConnectError("nobody is there")

    async with httpx.AsyncClient(transport=httpx.MockTransport(refuse)) as http:
        yield AsyncLetta(base_url="http://holdfast", api_key="none", max_retries=0, http_client=http), requests


def lists_of(resource: Any, *path: str) -> Iterator[tuple[str, Callable[..., Awaitable[object]]]]:
    """The lists and searches of a resource and of those below it, by name."""
    for name, attribute in inspect.getmembers_static(cast("object", type(resource))):
        if name in ("list", "search"):
            yield ".".join((*path, name)), getattr(resource, name)
        elif isinstance(attribute, functools.cached_property) and not name.startswith("with_"):
            yield from lists_of(getattr(resource, name), *path, name)


def with_all_parameters(method: Callable[..., Awaitable[object]]) -> Awaitable[object]:
    """A call with a value for each parameter."""
    parameters = [one for one in inspect.signature(method).parameters.values() if one.name not in ABOUT_THE_CALL]
    positional = ["x" for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    return method(*positional, **{one.name: "x" for one in parameters if one.kind is one.KEYWORD_ONLY})


def operations() -> dict[tuple[str, str], frozenset[str]]:
    """The product's routes by method and path, with the query parameters that they declare."""
    app = FastAPI()
    for router in ROUTERS:
        app.router.routes.extend(router.routes)
    return {
        (method.upper(), path): frozenset(one["name"] for one in said.get("parameters", []) if one["in"] == "query")
        for path, methods in app.openapi()["paths"].items()
        for method, said in methods.items()
    }


def route_of(sent: Sent, routes: dict[tuple[str, str], frozenset[str]]) -> str | None:
    """The path of the route that answers; one without a variable goes first."""
    fitting = [
        path
        for method, path in routes
        if method == sent.method and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), sent.path.rstrip("/"))
    ]
    return min(fitting, key=lambda path: path.count("{"), default=None)


def test_a_new_parameter_of_a_route_asked_for_no_test_and_no_word_in_the_documents() -> None:
    """What Letta's client sends is Letta's to explain; everything else is ours. A test names every parameter."""
    sources = Path(letta_client.__file__).parent.rglob("types/**/*_params.py")
    theirs = {name for source in sources for name in _FIELD.findall(source.read_text(encoding="utf-8"))}
    written = {word for document in documents() for word in _WORD.findall(document.read_text(encoding="utf-8"))}
    tests = (path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__))
    tested = {word for test in tests for word in _WORD.findall(test.read_text(encoding="utf-8"))}
    declared = {name for names in operations().values() for name in names}
    assert declared - theirs >= {"created_after", "decided"}
    assert declared - theirs - written == set()
    assert declared - tested == set()


async def test_parameters_of_lists_were_passed_over_and_no_document_said_so(
    sent: tuple[AsyncLetta, list[httpx.Request]],
) -> None:
    """Of nobody could it be told whether `created_by_id` was a filter."""
    client, requests = sent
    routes = operations()
    ignored: set[tuple[str, str]] = set()
    not_served: set[str] = set()
    for name, method in lists_of(client):
        with pytest.raises(APIConnectionError):
            await with_all_parameters(method)
        request = requests.pop()
        names = frozenset(key.removesuffix("[]") for key in request.url.params)
        one = Sent(request.method, request.url.path, names)
        path = route_of(one, routes)
        if path is None:
            not_served.add(name)
        else:
            ignored |= {(path, parameter) for parameter in names - routes[one.method, path]}

    assert not_served == NOT_OURS
    listed = {
        (path.strip("` "), parameter.strip("` "))
        for paths, parameters, _ in table_rows("api.md", "list")
        for path in paths.split(",")
        for parameter in parameters.split(",")
    }
    assert sorted(listed) == sorted(ignored)
