"""Compares every answer that a test gets with the OpenAPI document's types: no field is missing, and none is extra.

Wrapped around each API that the kit makes, so the whole suite finds answers that the document does not describe.
"""

import copy
import json
from collections.abc import Awaitable, Generator
from contextlib import contextmanager
from functools import cache
from typing import Any

import jsonschema_rs
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.kit.project.documents import written_openapi

LONGEST = 400
"""Characters of an answer that are repeated."""

MOST_LOOKED_AT = 1_000_000
"""Bytes. The content of longer answers is in short ones, too, and checking it would hold the event loop."""


class DescribedAnswers:
    """Checks an application's answers, and adds to `wrong` what the document does not describe."""

    def __init__(self, app: ASGIApp, *, wrong: list[str]) -> None:
        self._app = app
        self._wrong = wrong

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._looked_at(scope, receive, send) if scope["type"] == "http" else self._app(scope, receive, send)

    async def _looked_at(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun: list[Message] = []
        body = bytearray()

        async def seen(message: Message) -> None:
            if message["type"] == "http.response.start":
                begun.append(message)
            if len(body) <= MOST_LOOKED_AT:
                body.extend(message.get("body", b"")[: MOST_LOOKED_AT + 1])
            await send(message)

        try:
            await self._app(scope, receive, seen)
        finally:
            route = scope.get("route")
            is_whole = bool(begun) and begun[0]["status"] < 300 and len(body) <= MOST_LOOKED_AT
            if is_whole and isinstance(route, APIRoute) and route.include_in_schema:
                media_type = dict(begun[0]["headers"]).get(b"content-type", b"").decode().partition(";")[0]
                self._wrong.extend(
                    flaws((scope["method"].lower(), getattr(route, "path_format", route.path)), media_type, bytes(body))
                )


@contextmanager
def described(app: FastAPI) -> Generator[None]:
    """Fails if the application sends, within the block, an answer that the document does not describe."""
    wrong: list[str] = []
    app.add_middleware(DescribedAnswers, wrong=wrong)
    yield
    assert not wrong, (
        "docs/openapi.json, which `make openapi` makes of the types in api/answers, does not say this:\n"
        + "\n".join(dict.fromkeys(wrong))
    )


def flaws(place: tuple[str, str], media_type: str, body: bytes) -> list[str]:
    """The mistakes in this body of a successful answer, of the operation with this method and path."""
    if not body:
        return []
    if media_type == "application/json":
        shown = [_whole(body)]
    elif media_type == "text/event-stream":
        frames = (line.removeprefix(b"data: ") for line in body.splitlines() if line.startswith(b"data: {"))
        shown = [_whole(frame) for frame in frames]
    else:
        return []
    validator = _validator(place, media_type)
    if validator is None:
        return [f"{place}: the document has no {media_type}"]
    found = (next(iter(validator.iter_errors(one)), None) for one in shown if one is not _CUT)
    return [f"{place} {list(error.instance_path)}: {error.message[:LONGEST]}" for error in found if error is not None]


_CUT = object()


def _whole(text: bytes) -> Any:
    """What is said. A test may have left in the middle of it."""
    try:
        return json.loads(text)
    except ValueError:
        return _CUT


@cache
def _closed_schemas() -> dict[str, Any]:
    closed = copy.deepcopy(written_openapi()["components"]["schemas"])
    for schema in closed.values():
        if "properties" in schema:
            schema["additionalProperties"] = False
    return closed


@cache
def _validator(place: tuple[str, str], media_type: str) -> Any:
    method, path = place
    operation = written_openapi()["paths"].get(path, {}).get(method)
    content: dict[str, Any] = {} if operation is None else operation["responses"]["200"].get("content", {})
    if media_type not in content:
        return None
    return validator_of({**content[media_type]["schema"], "components": {"schemas": _closed_schemas()}})


def validator_of(schema: dict[str, Any]) -> Any:
    """Checks formats, too: a time has its zone."""
    return jsonschema_rs.validator_for(schema, validate_formats=True)
