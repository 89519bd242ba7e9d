"""Whatever text stands wherever: the answer is never a 5xx, and what reads it by itself says what is wrong."""

import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any, cast
from urllib.parse import quote_from_bytes

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from api.tool_source.reader import read_tool_source
from shared.domain.errors import InvalidToolSource
from shared.domain.runs import has_otid, key_of_otids
from shared.tool_arguments import RefusedArguments, read_arguments
from tests.kit.agent_files import a_file, an_agent, as_upload, block, custom_tool, message
from tests.kit.hostile_values import bounded, json_values, mutated, texts
from tests.kit.product.in_process import api_app, asgi_client
from tests.kit.project.documents import written_openapi
from tests.kit.services.databases import open_database

WORST = ["\0", "\ud800", "9" * 5_000, "x" * 9_000]
"""Those of the bad texts of which each stops something else: a database, an encoder, a number's parser, an index."""


@pytest.fixture
async def app(database_url: str) -> AsyncGenerator[FastAPI]:
    async with open_database(database_url) as database, api_app(database) as app:
        yield app


@pytest.fixture
async def http(app: FastAPI) -> AsyncGenerator[httpx.AsyncClient]:
    async with asgi_client(app) as client:
        yield client


def quoted(text: str) -> str:
    """The text as a part of an address. Half a character is bytes that are no UTF-8."""
    return quote_from_bytes(text.encode("utf-8", "surrogatepass"), safe="")


IDS = {"run_id": "run", "agent_id": "agent", "tool_id": "tool", "block_id": "block", "conversation_id": "conv"}


def _value(parameter: dict[str, Any]) -> str:
    """Something that the parameter takes."""
    known = IDS.get(parameter["name"], parameter["name"].removesuffix("_id"))
    return f"{known}-00000000-0000-4000-8000-000000000000" if parameter["name"].endswith("_id") else "x"


def requests(document: dict[str, Any], text: str) -> Iterator[tuple[str, str, dict[bytes, bytes]]]:
    """Every operation, with the text in the place of each of its parameters in turn."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parameters: list[dict[str, Any]] = operation.get("parameters", [])
            inside = {one["name"]: quoted(_value(one)) for one in parameters if one["in"] == "path"}
            for one in parameters:
                name, url, headers = one["name"], path.format(**inside), dict[bytes, bytes]()
                if one["in"] == "path":
                    url = path.format(**inside | {name: quoted(text)})
                elif one["in"] == "query":
                    url = f"{url}?{quoted(name)}={quoted(text)}"
                else:
                    value = text.encode("utf-8", "surrogatepass")
                    headers = {name.encode(): value.replace(b"\0", b"").replace(b"\n", b"")[:2_000]}
                yield method.upper(), url, headers


@pytest.mark.parametrize("text", WORST, ids=[ascii(text)[:12] for text in WORST])
async def test_bad_text_in_an_address_or_a_header_is_never_a_500(app: FastAPI, text: str) -> None:
    seen = 0
    async with asgi_client(app) as http:
        for method, url, headers in requests(written_openapi(), text):
            answer = await http.request(method, url, headers=headers)
            assert answer.status_code < 500, f"{method} {url[:200]} {headers}: {answer.text[:500]}"
            seen += 1
    assert seen > 300


@pytest.mark.parametrize("text", WORST, ids=[ascii(text)[:12] for text in WORST])
async def test_bad_text_in_every_field_of_a_body_is_never_a_500(app: FastAPI, text: str) -> None:
    document = written_openapi()
    fields = {name for schema in document["components"]["schemas"].values() for name in schema.get("properties", {})}
    async with asgi_client(app) as http:
        for path, methods in document["paths"].items():
            for method in [method for method in methods if "requestBody" in methods[method]]:
                inside = {one["name"]: _value(one) for one in methods[method].get("parameters", [])}
                content = json.dumps({**dict.fromkeys(fields, text), text: [{text: text}]})
                answer = await http.request(method.upper(), path.format(**inside), content=content)
                assert answer.status_code < 500, f"{method} {path}: {answer.text[:500]}"


@pytest.mark.parametrize("name", ["agent_id", "name", "override_name", "env_vars_json", "file", "model"])
@pytest.mark.parametrize("text", ["\0", "\ud800", "9" * 5_000, "[" * 2_000, '{"a": "\\ud800"}', '{"a\\u0000": "b"}'])
async def test_bad_text_in_a_form_is_never_a_500(http: httpx.AsyncClient, name: str, text: str) -> None:
    content = text.encode("utf-8", "surrogatepass")
    files = {**as_upload(a_file(an_agent())), name: (None, content)}
    answer = await http.post("/v1/agents/import", files=cast("Any", files))
    assert answer.status_code < 500, answer.text[:500]


@pytest.mark.parametrize("content_type", ["application/json", "text/json; charset=utf-16", "text/plain", "x", ""])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32-be", "latin-1", "utf-8-sig"])
async def test_another_encoding_is_never_a_500(http: httpx.AsyncClient, content_type: str, encoding: str) -> None:
    content = '{"label": "human", "value": "\u00e9\u00ff"}'.encode(encoding)
    answer = await http.post("/v1/blocks", content=content, headers={"content-type": content_type})
    assert answer.status_code < 500
    assert (await http.get("/v1/blocks")).status_code == 200


@bounded(30)
@given(cursor=texts, after=texts)
async def test_any_cursor(http: httpx.AsyncClient, cursor: str, after: str) -> None:
    headers = {b"last-event-id": cursor.encode("utf-8", "surrogatepass")}
    run = "/v1/runs/run-00000000-0000-4000-8000-000000000000/stream"
    assert (await http.get(run, headers=headers)).status_code < 500
    for path in (run, "/v1/agents", "/v1/messages", "/v1/runs", "/v1/steps"):
        url = f"{path}?after={quoted(after)}&before={quoted(cursor)}&starting_after={quoted(cursor)}"
        assert (await http.get(url)).status_code < 500


@bounded(30)
@given(given_id=texts, prefix=st.sampled_from(["", "agent-", "run-", "message-"]))
async def test_any_id(http: httpx.AsyncClient, given_id: str, prefix: str) -> None:
    for kind in ("agents", "runs", "tools", "blocks", "steps", "conversations", "approvals", "archives", "messages"):
        answer = await http.get(f"/v1/{kind}/{quoted(prefix + given_id)}")
        assert answer.status_code < 500, answer.text


@bounded(200)
@given(otids=st.lists(texts, min_size=1, max_size=4), others=st.lists(texts, min_size=1, max_size=4))
def test_other_otids_are_another_key(otids: list[str], others: list[str]) -> None:
    same = sorted(otids) == sorted(others)
    if not any("\ud800" <= character <= "\udfff" for text in otids + others for character in text):
        assert (key_of_otids(otids) == key_of_otids(others)) == same
        assert all(has_otid(key_of_otids(otids), otid) for otid in otids) or "#" in key_of_otids(otids)


PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "sides": {"type": "integer", "minimum": 2, "enum": [2, 6]},
        "labels": {"type": "array", "items": {"$ref": "#/$defs/label"}, "uniqueItems": True},
        "any": {"anyOf": [{"type": "string", "pattern": "^a+$", "format": "date-time"}, {"type": "null"}]},
    },
    "required": ["sides"],
    "$defs": {"label": {"type": "string", "maxLength": 5}},
}
ARGUMENTS = {"sides": 6, "labels": ["a", "b"], "any": "aaa"}


@bounded(150)
@given(arguments=st.one_of(mutated(ARGUMENTS), json_values), schema=st.one_of(st.just(PARAMETERS), mutated(PARAMETERS)))
def test_any_arguments_for_any_schema(arguments: Any, schema: Any) -> None:
    if not isinstance(schema, dict):
        return
    found = read_arguments(json.dumps(arguments), cast("dict[str, Any]", schema))
    if isinstance(found, RefusedArguments):
        assert found.text.startswith("Error: ")
        assert len(found.text) < 5_000
    else:
        assert found == arguments


@bounded(100)
@given(text=texts)
def test_any_text_as_arguments(text: str) -> None:
    assert isinstance(read_arguments(text, PARAMETERS), RefusedArguments | dict)


WHOLE = "def tool(a: int, b: str = 'x') -> str:\n    return b\n"
PIECES = [
    WHOLE, "def ", "async ", "class A(BaseModel):\n    x: int\n", "tool", "(a: list[", "]", "):", "\n", "    ", '"""',
    "Args:\n", "a (int): b\n", "Literal[", "Optional[", "int", "str", "|", "...", "=", "lambda: ", "*args", "**kwargs",
    "/", "@x\n", "\\", "\t", "0x", "f'{", "}'", "# coding: latin-1\n", "\r", "\f", "import os\n",
]  # fmt: skip


@bounded(200)
@given(pieces=st.lists(st.one_of(st.sampled_from(PIECES), texts), max_size=12))
def test_any_tool_source(pieces: list[str]) -> None:
    try:
        declaration = read_tool_source("".join(pieces))
    except InvalidToolSource as refusal:
        assert refusal.message
    else:
        json.dumps([declaration.parameters, declaration.description, declaration.name]).encode()


@bounded(60)
@given(data=st.data())
async def test_any_agent_file(http: httpx.AsyncClient, data: st.DataObject) -> None:
    whole = a_file(
        an_agent(
            message(0, "system", "Be kind."), message(1, "user", "Hi."), tool_ids=["tool-0"], block_ids=["block-0"]
        ),
        tools=[custom_tool()],
        blocks=[block()],
    )
    changed = data.draw(mutated(whole))
    answer = await http.post("/v1/agents/import", files=as_upload(json.dumps(changed).encode()))
    assert answer.status_code < 500, answer.text[:500]
    for path in ("/v1/agents", "/v1/tools", "/v1/blocks", "/v1/messages"):
        assert (await http.get(path, params={"limit": 5})).status_code == 200
