"""Answers that are made JSON in pieces say the same as those that are made in one go."""

import json
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, Response

from api.direct_route import DirectRoute, LateRoute
from api.event_stream import in_pieces, is_long
from tests.kit.product.in_process import asgi_client

LONG: dict[str, Any] = {
    "text": '\u66f8 "quoted" \\ \n' * 50_000,
    "many": [{"n": number, "x": None, "y": True, "z": 0.5} for number in range(5_000)],
    "deep": {"a": {"b": [["c" * 200_000], [], {}, ""]}},
    'a "key"': "",
}


VALUES: list[Any] = [LONG, [LONG, LONG], {}, [], "", "a" * 200_000, None, 7, [[]] * 5_000, {"a": []}]


@pytest.mark.parametrize("value", VALUES)
def test_pieces_say_the_same(value: Any) -> None:
    assert json.loads(in_pieces(value)) == value


def test_what_is_long_is_known_by_few_looks() -> None:
    assert is_long(LONG)
    assert is_long([{"a": [1] * 50}] * 100)
    assert not is_long({"a": [1] * 50, "text": "a" * 1_000})
    assert not is_long(None)


@pytest.mark.parametrize("route_class", [LateRoute, DirectRoute])
@pytest.mark.parametrize("query", ["", "?more=1"])
@pytest.mark.parametrize("value", [{"a": 1}, LONG])
async def test_a_long_answer_has_the_headers_of_a_short_one(
    route_class: type[LateRoute], query: str, value: dict[str, Any]
) -> None:
    router = APIRouter(route_class=route_class)

    async def answered(response: Response, more: int = 0) -> dict[str, Any]:
        response.headers["Warning"] = f"more: {more}"
        return value

    router.get("/answered")(answered)
    app = FastAPI()
    app.include_router(router)
    async with asgi_client(app) as client:
        answer = await client.get(f"/answered{query}")
    assert answer.status_code == 200
    assert answer.json() == value
    assert answer.headers["Warning"] == f"more: {query[-1:] or 0}"
    assert answer.headers["Content-Type"] == "application/json"
    assert int(answer.headers["Content-Length"]) == len(answer.content)
