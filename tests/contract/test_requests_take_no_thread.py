"""A request is answered on the event loop alone: what FastAPI runs in a thread costs two switches of threads each."""

import inspect
from collections.abc import Iterator

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from tests.kit.product.in_process import api_app
from tests.kit.services.databases import open_database


def _what_is_called(dependant: Dependant) -> Iterator[object]:
    yield dependant.call
    for needed in dependant.dependencies:
        yield from _what_is_called(needed)


async def test_every_request_went_through_threads_to_find_its_services_and_its_caller(sqlite_url: str) -> None:
    async with open_database(sqlite_url) as database, api_app(database) as app:
        routes = [route for route in app.routes if isinstance(route, APIRoute)]
    assert len(routes) > 100
    called = {call for route in routes for call in _what_is_called(route.dependant)}
    assert [call for call in called if not inspect.iscoroutinefunction(call)] == []
