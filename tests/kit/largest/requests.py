"""The largest requests of every route that an OpenAPI document has: each part of each request large in turn.

They are made of the document, so that a new route, parameter or field is walked without being named here.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import quote

from tests.kit.largest.values import (
    LONG_NUMBER,
    PIECES,
    ROOM,
    Fragment,
    Schemas,
    an_object,
    encoded,
    largest_objects,
    text,
)
from tests.kit.walls.belongings import Belongings, unknown_like
from tests.kit.walls.requests import Pick, Request, builders

URL_BYTES = 15_000
HEADER_BYTES = 7_000
JSON_TYPE = {"Content-Type": "application/json"}


class LargeRequest(NamedTuple):
    """A request, and the name of its large part."""

    route: str
    part: str
    """The part, and its sort."""
    method: str
    target: str
    """Path and query."""
    headers: Mapping[str, str]
    body: bytes | None = None

    def __str__(self) -> str:
        return f"{self.route}, {self.part}"


class Base(NamedTuple):
    """An ordinary request of a route, and its description in the OpenAPI document."""

    route: str
    request: Request
    operation: Mapping[str, Any]

    def with_body(self, part: str, body: Fragment) -> LargeRequest:
        """The request with another body."""
        target = f"{self.request.path}?{self.needed}".rstrip("?")
        return LargeRequest(self.route, part, self.request.method, target, {**self.request.headers, **JSON_TYPE}, body)

    @property
    def needed(self) -> str:
        """The query that the route cannot do without."""
        return "&".join(f"{name}={quote(value)}" for name, value in self.request.params)


TAKES_AWAY = re.compile(r"^DELETE|/detach/|reset-messages")


def bases(document: Mapping[str, Any], belongings: Belongings) -> Iterator[Base]:
    """Returns a request for each route, by a caller who has these objects. Deletions name objects that do not exist."""
    own, nobodys = Pick(belongings), Pick(unknown_like(belongings))
    seen: set[str] = set()
    for build in builders(document):
        request = build(own, own)
        route = f"{request.method} {request.template}"
        if route in seen or request.template not in document["paths"]:
            continue
        seen.add(route)
        if TAKES_AWAY.search(route):
            request = build(nobodys, nobodys)
        yield Base(route, request, document["paths"][request.template][request.method.lower()])


def largest_heads(base: Base) -> Iterator[LargeRequest]:
    """With each part of the address and each header large in turn."""
    request, room = base.request, URL_BYTES - len(base.request.path) - len(base.needed)
    start = f"{request.path}?{base.needed}&"
    body = None if request.body is None else json.dumps(request.body).encode()

    def made(part: str, target: str, headers: Mapping[str, str] | None = None) -> LargeRequest:
        sent = {**request.headers, **(JSON_TYPE if body else {}), **(headers or {})}
        return LargeRequest(base.route, part, request.method, target, sent, body)

    for parameter in base.operation.get("parameters", []):
        name = parameter["name"]
        for sort in ("separators", "no spaces", "combining", "words"):
            piece = PIECES[sort]
            value = _in_address(piece, room - len(name) - 2)
            match parameter["in"]:
                case "query":
                    yield made(f"{name}: {sort}", f"{start}{name}={value}")
                case "path" if sort != "separators":
                    path = request.template.replace(f"{{{name}}}", value).replace("{", "").replace("}", "")
                    yield made(f"{name}: {sort}", path)
                case "header" if piece.isprintable() and piece.isascii():
                    yield made(f"{name}: {sort}", start, {name: text(piece, HEADER_BYTES).strip()})
                case _:
                    pass
        if parameter["in"] == "query":
            yield made(f"{name}: many", start + f"{name}=1&" * (room // (len(name) + 3)))
    yield made("query: separators", start + "&" * room)
    yield made("query: many names", (start + "".join(f"p{number}=&" for number in range(2500)))[:URL_BYTES])
    yield made("headers: many", start, {f"X-{number}": "a" * 600 for number in range(80)})


@cache
def _in_address(piece: str, room: int) -> str:
    quoted = quote(piece, safe="")
    return quoted * (room // len(quoted))


def largest_bodies(base: Base, schemas: Schemas) -> Iterator[LargeRequest]:
    """With each field of the body large in turn, and with bodies that have only their size."""
    content = base.operation.get("requestBody", {}).get("content", {})
    if "application/json" in content:
        [(_, known), *_] = schemas.kinds(content["application/json"]["schema"])
        given: dict[str, Any] = base.request.body or {}
        for part, body in schemas.largest_fields(known, given):
            yield base.with_body(part, body)
        for sort, fragment in largest_objects():
            if sort in ("many keys", "deep"):
                yield base.with_body(f"unknown field: {sort}", an_object(given, "unknown_", fragment))


REFUSED_AT_ONCE = ("long numbers without an end", "texts and commas")


def odd_bodies(base: Base, *, every: bool) -> Iterator[LargeRequest]:
    """Bodies of which no route knows anything: no JSON, or JSON that ends in what is none. Not `every`: those of which
    one shows that a route's bodies are looked at before it."""
    for part, body in _odd_bodies().items():
        if "requestBody" in base.operation and (every or part in REFUSED_AT_ONCE):
            yield base.with_body(f"body: {part}", body)


@cache
def _odd_bodies() -> Mapping[str, bytes]:
    number = LONG_NUMBER.encode()
    return {
        "brackets": b"[" * ROOM,
        "commas": b"," * ROOM,
        "spaces": b" " * ROOM,
        "ampersands": b"&" * ROOM,
        "quotes": b'"' * ROOM,
        "long numbers": b"[" + b",".join([number] * 3600) + b"]",
        "long fractions": b"[" + b",".join([b"0." + number] * 3600) + b"]",
        "long exponents": b"[" + b",".join([b"1e" + number] * 3600) + b"]",
        "one number": b"9" * ROOM,
        "one fraction": b"0." + b"9" * ROOM,
        "long numbers without an end": b"[" + b",".join([number] * 3600),
        "many numbers": b"[" + b",".join([b"9" * 18] * 98_000) + b"]",
        "no end of a text": b'{"a": "' + b"\\\\" * (ROOM // 2),
        "escapes": b'{"a": "' + b"\\u66f8" * (ROOM // 6) + b'"}',
        "pairs": b'{"a": "' + b"\\ud83d\\ude00" * (ROOM // 12) + b'"}',
        "texts and commas": b'"",' * (ROOM // 3),
        "commas in a text": b'{"a":"' + b"," * ROOM + b'"}',
        "commas in many texts": b'{"a":[' + b",".join([b'"' + b"," * 300 + b'"'] * 50_000) + b"]}",
        "empty texts": b"[" + b",".join([b'""'] * 98_000) + b"]",
        "one key again and again": b"{" + b",".join([b'"a":1'] * 48_000) + b"}",
        "UTF-16": ('{"a": "' + "\u66f8" * (ROOM // 2 - 2000) + '"}').encode("utf-16"),
        "UTF-32": ('{"a": "' + "a" * (ROOM // 4 - 100) + '"}').encode("utf-32"),
        "Latin-1": b'{"a": "' + b"\xe9" * ROOM + b'"}',
    }


BOUNDARY = "the-boundary-of-the-parts"


def largest_forms(base: Base) -> Iterator[LargeRequest]:
    """Forms in parts, with what the parts hold large in turn, and with parts that are large and nothing else."""
    if base.request.file is None:
        return
    file: dict[str, Any] = json.loads(base.request.file)
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    for part, body in chain(_odd_forms(), _largest_files(file)):
        yield LargeRequest(base.route, f"form: {part}", base.request.method, base.request.path, headers, body)


def _odd_forms() -> Iterator[tuple[str, bytes]]:
    line, end = f"--{BOUNDARY}\r\n".encode(), f"--{BOUNDARY}--\r\n".encode()
    named = b'Content-Disposition: form-data; name="a"'
    whole = line + named + b"\r\n\r\nx\r\n"
    yield "many fields", whole * (ROOM // len(whole)) + end
    yield "boundaries", line * (ROOM // len(line)) + end
    yield "beginnings of boundaries", line + named + b"\r\n\r\n" + line[:-3] * (ROOM // (len(line) - 3)) + end
    yield "ends of lines", line + named + b"\r\n\r\n" + b"\r\n" * (ROOM // 2) + end
    yield "many headers", line + b"A: b\r\n" * (ROOM // 6) + b"\r\n\r\n" + end
    yield "long header", line + named[:-1] + b"a" * ROOM + b'"\r\n\r\nx\r\n' + end
    yield "quoted name", line + named[:-2] + b'\\"' * (ROOM // 2) + b'"\r\n\r\nx\r\n' + end
    yield "parameters of a header", line + named + b"; a=b" * (ROOM // 5) + b"\r\n\r\nx\r\n" + end
    yield "before the first boundary", b"-" * ROOM


def _largest_files(file: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    agent, block = (file[kind][0] for kind in ("agents", "blocks"))
    message = {"type": "message", "role": "user", "content": "Hello", "id": "message-0"}
    many: dict[str, Any] = {
        "messages": [{**file, "agents": [{**agent, "messages": [message] * 10_000}]}],
        "agents": [{**file, "agents": [{**agent, "id": f"agent-{number}"} for number in range(100)]}],
        "blocks": [{**file, "blocks": [{**block, "id": f"block-{number}"} for number in range(5000)]}],
    }
    for what, [large] in many.items():
        yield f"many {what}", _as_form(encoded(large))
    tool = file["tools"][0]
    several = [_another_tool(tool, number) for number in range(2000)]
    for time in ("first time", "second time"):  # then the project has them, and the file's are compared with those
        yield f"many tools, the {time}", _as_form(encoded({**file, "tools": [tool, *several]}))
    for sort, fragment in largest_objects():
        yield f"metadata of the file: {sort}", _as_form(an_object(file, "metadata", fragment))
        yield (
            f"metadata of an agent: {sort}",
            _as_form(an_object(file, "agents", b"[" + an_object(agent, "metadata", fragment) + b"]")),
        )
    for name in ("system", "name", "timezone", "description"):
        whole = encoded("".join(text(piece, ROOM // len(PIECES)) for piece in PIECES.values()))
        yield f"{name} of an agent", _as_form(an_object(file, "agents", b"[" + an_object(agent, name, whole) + b"]"))


def _another_tool(tool: Mapping[str, Any], number: int) -> dict[str, Any]:
    name, another = tool["name"], f"tool_{number}"
    schema = {**tool["json_schema"], "name": another}
    source = tool["source_code"].replace(name, another)
    return {**tool, "id": f"another-{number}", "name": another, "source_code": source, "json_schema": schema}


def _as_form(file: bytes) -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.af"\r\n\r\n'
    return head.encode() + file + f"\r\n--{BOUNDARY}--\r\n".encode()
