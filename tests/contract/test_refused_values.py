"""Values that were accepted and then were a 500, or a 503 that never ended: each is a 4xx that names its field.

On both databases: Postgres has limits that SQLite has not, and clients must not notice on which one we run.
"""

import gzip
import random
import string
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from shared.domain.ids import MAX_SEQ
from tests.kit.product import api_client
from tests.kit.services.databases import open_database
from tests.kit.tools import ROLL_DICE

IDS = [f"tool-{number}" for number in range(40_000)]


def noise(length: int) -> str:
    """Text that no index can make shorter."""
    return "".join(random.Random(length).choices(string.ascii_letters, k=length))


@pytest.fixture
async def http(database_url: str) -> AsyncGenerator[httpx.AsyncClient]:
    async with open_database(database_url) as database, api_client(database) as client:
        yield client


@pytest.fixture
async def agent(http: httpx.AsyncClient) -> str:
    """The path of an agent."""
    made = await http.post("/v1/agents", json={"model": "builtin/echo"})
    return f"/v1/agents/{made.json()['id']}"


FIELDS: list[tuple[str, Any]] = [
    ("tags", [noise(9_000)]),
    ("tags", IDS),
    ("tool_ids", IDS),
    ("block_ids", IDS),
    ("tools", IDS),
    ("approval_expires_s", 1e300),
    ("tool_rules", [{"type": "constrain_child_tools", "tool_name": "x", "children": 5}]),
    ("tool_rules", [{"type": "constrain_child_tools", "tool_name": "x", "children": [{}]}]),
    ("tool_rules", [{"type": "max_count_per_step", "tool_name": "x", "max_count_limit": "many"}]),
    ("response_format", {"type": "grammar"}),
    ("response_format", {"type": "json_schema"}),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "x"}}),
    ("model_settings", {"provider_type": "openai", "response_format": {"json_schema": {"schema": {}}}}),
    ("model_settings", {"provider_type": "google_ai", "response_schema": {"type": ["text"]}}),
    ("llm_config", {"response_format": {}}),
]


@pytest.mark.parametrize(("field", "value"), FIELDS)
async def test_a_field_of_an_agent_that_cannot_be_kept(http: httpx.AsyncClient, field: str, value: Any) -> None:
    answer = await http.post("/v1/agents", json={"model": "builtin/echo", field: value})
    assert answer.status_code == 422, answer.text
    assert str(answer.json()["field"]).startswith(field)
    assert (await http.get("/v1/agents")).json() == []


async def test_a_tag_that_is_just_short_enough_is_found(http: httpx.AsyncClient) -> None:
    tag = noise(499) + "é"
    made = await http.post("/v1/agents", json={"model": "builtin/echo", "tags": [tag]})
    assert made.status_code == 200, made.text
    assert [one["id"] for one in (await http.get("/v1/agents", params={"tags": tag})).json()] == [made.json()["id"]]


@pytest.mark.parametrize("otids", [200, 1])
async def test_a_submission_with_long_otids_is_stored_and_recognised(
    http: httpx.AsyncClient, agent: str, otids: int
) -> None:
    """Postgres has no room for so long a key in its index: it was a 500."""
    messages = [
        {"role": "user", "content": "Hi", "otid": f"{number}-{noise(9_000 // otids)}"} for number in range(otids)
    ]
    first = await http.post(f"{agent}/messages/async", json={"messages": messages})
    assert first.status_code == 200, first.text
    again = await http.post(f"{agent}/messages/async", json={"messages": messages[::-1]})
    assert again.json()["id"] == first.json()["id"]
    other = await http.post(f"{agent}/messages/async", json={"messages": [*messages, {"content": "So", "otid": "o"}]})
    assert other.json()["id"] != first.json()["id"]


async def test_otids_with_commas_are_not_the_otids_of_others(http: httpx.AsyncClient, agent: str) -> None:
    """`["a", "b"]` and `["a,b"]` were one key: the second message was dropped."""

    async def run_of(*otids: str) -> str:
        messages = [{"role": "user", "content": "Hi", "otid": otid} for otid in otids]
        return (await http.post(f"{agent}/messages/async", json={"messages": messages})).json()["id"]

    assert len({await run_of("a", "b"), await run_of("a,b"), await run_of("a%2Cb"), await run_of("#", "a")}) == 4
    assert await run_of("b", "a") == await run_of("a", "b")


@pytest.mark.parametrize("said", ["9" * 5_000, str(MAX_SEQ + 1), "-1", "1.5", "²", "x"])
async def test_a_last_event_id_that_is_no_number_of_a_frame(http: httpx.AsyncClient, agent: str, said: str) -> None:
    run = (await http.post(f"{agent}/messages/async", json={"input": "Hi"})).json()
    headers = {b"Last-Event-ID": said.encode()}
    for answer in (
        await http.get(f"/v1/runs/{run['id']}/stream", headers=headers),
        await http.post(f"/v1/runs/{run['id']}/stream", headers=headers),
    ):
        assert answer.status_code == 400
        assert "Last-Event-ID" in answer.json()["detail"]
        assert len(answer.content) < 500


@pytest.mark.parametrize("after", [MAX_SEQ + 1, 2**63, 10**400, -1])
async def test_a_cursor_that_is_no_number_of_a_frame(http: httpx.AsyncClient, agent: str, after: int) -> None:
    run = (await http.post(f"{agent}/messages/async", json={"input": "Hi"})).json()
    path = f"/v1/runs/{run['id']}/stream"
    assert (await http.get(path, params={"starting_after": str(after)})).status_code == 422
    assert (await http.post(path, json={"starting_after": after})).status_code == 422


async def test_an_injection_of_messages_and_of_an_input_lost_the_input(http: httpx.AsyncClient, agent: str) -> None:
    run = (await http.post(f"{agent}/messages/async", json={"input": "Hi"})).json()
    both = {"messages": [{"role": "user", "content": "one"}], "input": "two"}
    refused = await http.post(f"/v1/runs/{run['id']}/inject", json=both)
    assert refused.status_code == 422
    assert "not both" in refused.json()["detail"]
    assert (await http.post(f"/v1/runs/{run['id']}/inject", json={"messages": []})).status_code == 400


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
async def test_a_moment_outside_of_time(http: httpx.AsyncClient, agent: str, moment: str) -> None:
    agent_id = agent.rpartition("/")[2]
    made = (await http.post("/v1/conversations", params={"agent_id": agent_id}, json={})).json()
    answer = await http.patch(f"/v1/conversations/{made['id']}", json={"last_message_at": moment})
    assert answer.status_code == 422
    assert answer.json()["field"] == "last_message_at"


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
async def test_a_moment_outside_of_time_was_a_500_for_passages_and_for_keys(
    http: httpx.AsyncClient, agent: str, moment: str
) -> None:
    """The key was stored all the same, and its secret was lost."""
    archive = (await http.post("/v1/archives", json={"name": "a"})).json()["id"]
    for path, field, rest in (
        (f"{agent}/archival-memory", "created_at", {"text": "Hi"}),
        (f"/v1/archives/{archive}/passages", "created_at", {"text": "Hi"}),
        ("/v1/passages/search", "start_date", {"archive_id": archive}),
        ("/v1/passages/search", "end_date", {"archive_id": archive}),
        ("/v1/admin/keys", "expires_at", {"name": "k", "scopes": ["read"]}),
    ):
        answer = await http.post(path, json={**rest, field: moment})
        assert (answer.status_code, answer.json().get("field")) == (422, field), answer.text
    for name in ("since", "until"):
        assert (await http.get("/v1/admin/audit", params={name: moment})).status_code == 422
    assert (await http.get("/v1/admin/keys")).json() == []


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
async def test_a_passage_from_the_end_of_time_broke_the_searches_of_agents_in_other_time_zones(
    http: httpx.AsyncClient, agent: str, moment: str
) -> None:
    answer = await http.post(f"{agent}/archival-memory", json={"text": "Hi", "created_at": moment})
    assert (answer.status_code, answer.json()["field"]) == (422, "created_at")


@pytest.mark.parametrize(
    "fields",
    [
        {"json_schema": {"description": 5}},
        {"json_schema": {"name": ["x"]}},
        {"json_schema": {"parameters": "x"}},
        {"approval_expires_s": 1e300},
    ],
)
async def test_a_field_of_a_tool_that_means_nothing(http: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    answer = await http.post("/v1/tools", json={"source_code": ROLL_DICE, **fields})
    assert answer.status_code in (400, 422)
    assert next(iter(fields)) in answer.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"type": "approval", "approvals": [{"tool_call_id": "c", "approve": False, "reason": 5}]}]},
        {"messages": [{"content": [{"type": "image", "source": {"type": "base64", "data": "aa", "media_type": 5}}]}]},
        {"messages": [{"type": "approval", "approvals": [{"tool_call_id": "c", "approve": True}] * 1_001}]},
        {"messages": [{"content": "x"}] * 10_001},
    ],
)
async def test_a_message_that_could_not_be_read_again(http: httpx.AsyncClient, agent: str, body: Any) -> None:
    assert (await http.post(f"{agent}/messages/async", json=body)).status_code in (400, 422)
    assert (await http.get(f"{agent}/messages")).status_code == 200


async def test_thousands_of_runs_to_cancel_at_once(http: httpx.AsyncClient, agent: str) -> None:
    answer = await http.post(f"{agent}/messages/cancel", json={"run_ids": [f"run-{number}" for number in range(1_001)]})
    assert answer.status_code == 422
    assert answer.json()["field"] == "run_ids"


PATHS = ("/v1/agents/{agent}/messages", "/openai/v1/responses", "/ag-ui/{agent}", "/ai-sdk/{agent}/chat")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("body", "kind", "because"),
    [
        (b'{"input":', "application/json", "The body is not valid JSON: Expecting value at character 9"),
        (b'{"input": "\xff"}', "application/json", "The body is not valid UTF-8"),
        (b'{"input": "Hi"}', "application/x-www-form-urlencoded", "send the header Content-Type: application/json"),
    ],
)
async def test_a_body_that_could_not_be_read_was_refused_for_a_field_that_it_has_not(
    http: httpx.AsyncClient, agent: str, path: str, body: bytes, kind: str, because: str
) -> None:
    path = path.format(agent=agent.rpartition("/")[2])
    answer = await http.post(path, content=body, headers={"Content-Type": kind})
    assert answer.status_code in (400, 422)
    assert because in answer.text
    if answer.headers["content-type"] == "application/json":
        error = answer.json().get("error", answer.json())
        assert error.get("field", error.get("param")) is None


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [gzip.compress(b'{"input": "Hi"}'), b"compressed"])
async def test_a_compressed_body_was_refused_as_bad_text(
    http: httpx.AsyncClient, agent: str, path: str, body: bytes
) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = await http.post(path.format(agent=agent.rpartition("/")[2]), content=body, headers=headers)
    assert answer.status_code == 415
    assert "Content-Encoding 'gzip': send it without compression" in answer.text
    assert (await http.post(f"{agent}/messages", json={}, headers={"Content-Encoding": "identity"})).status_code == 422


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"input": 5}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, 5]}]}, "messages[0].content[1]"),
    ],
)
async def test_a_kind_of_value_was_named_as_if_it_were_a_field(
    http: httpx.AsyncClient, agent: str, fields: dict[str, Any], field: str
) -> None:
    refused = (await http.post(f"{agent}/messages", json=fields)).json()
    assert (refused["field"], refused["errors"][0]["field"]) == (field, field)
    if "input" in fields:
        of_openai = (await http.post("/openai/v1/responses", json={"model": "builtin/echo", **fields})).json()
        assert of_openai["error"]["param"] == field


@pytest.mark.parametrize("named", [5, {}, {"id": 5}])
async def test_a_conversation_that_is_no_name_is_refused_by_its_field(http: httpx.AsyncClient, named: Any) -> None:
    fields = {"model": "builtin/echo", "input": "Hi", "conversation": named}
    error = (await http.post("/openai/v1/responses", json=fields)).json()["error"]
    assert (error["param"], "conv_…" in error["message"]) == ("conversation", True)


DATA = "data:image/png;base64,A"
IN_PARTS: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/agents/{agent}/messages",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A"}}
                    ],
                }
            ]
        },
    ),
    (
        "/v1/agents/{agent}/messages",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image", "source": {"type": "url", "url": "ftp://127.0.0.1/a.png"}}],
                }
            ]
        },
    ),
    (
        "/v1/chat/completions",
        {
            "model": "{agent}",
            "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": DATA}}]}],
        },
    ),
    (
        "/openai/v1/responses",
        {"model": "builtin/echo", "input": [{"role": "user", "content": [{"type": "input_image", "image_url": DATA}]}]},
    ),
    (
        "/openai/v1/conversations",
        {"items": [{"role": "user", "content": [{"type": "input_image", "image_url": DATA}]}]},
    ),
    (
        "/ag-ui/{agent}",
        {
            "threadId": "a",
            "messages": [
                {
                    "id": "u1",
                    "role": "user",
                    "content": [{"type": "image", "source": {"type": "data", "value": "A", "mimeType": "image/png"}}],
                }
            ],
        },
    ),
    (
        "/ai-sdk/{agent}/chat",
        {
            "id": "a",
            "messages": [
                {"id": "u1", "role": "user", "parts": [{"type": "file", "mediaType": "image/png", "url": DATA}]}
            ],
        },
    ),
]


@pytest.mark.parametrize(("path", "body"), IN_PARTS)
async def test_an_image_that_no_model_can_read_was_taken(
    http: httpx.AsyncClient, agent: str, path: str, body: dict[str, Any]
) -> None:
    agent_id = agent.rpartition("/")[2]
    named = {name: agent_id if value == "{agent}" else value for name, value in body.items()}
    refused = await http.post(path.format(agent=agent_id), json=named)
    assert refused.status_code in (400, 422), refused.text
    assert "[0]" in refused.text
    assert "base64" in refused.text


async def test_a_function_was_refused_without_its_place(http: httpx.AsyncClient) -> None:
    tools = [{"type": "function", "name": "a"}, {"type": "function", "name": "b", "parameters": 5}]
    refused = await http.post("/openai/v1/responses", json={"model": "builtin/echo", "input": "Hi", "tools": tools})
    assert "tools[1].parameters: Input should be" in refused.json()["error"]["message"]


async def test_an_empty_cursor_of_a_list_of_items_was_one_that_nobody_knows(http: httpx.AsyncClient) -> None:
    made = (await http.post("/openai/v1/conversations", json={"items": [{"role": "user", "content": "Hi"}]})).json()
    listed = await http.get(f"/openai/v1/conversations/{made['id']}/items", params={"after": ""})
    assert [item["role"] for item in listed.json()["data"]] == ["user"]


async def test_two_calls_of_an_answer_with_one_id_got_one_result_twice_and_the_other_was_lost(
    http: httpx.AsyncClient,
) -> None:
    calls = [{"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"} for _ in range(2)]
    outputs = [{"type": "function_call_output", "call_id": "a", "output": found} for found in ("tea", "coffee")]
    asked = {"role": "user", "content": "And?"}
    body = {"model": "builtin/echo", "background": True, "input": [*calls, *outputs, asked]}
    refused = (await http.post("/openai/v1/responses", json=body)).json()
    assert refused["error"] is not None
    assert refused["error"]["param"] == "input[1]"
    of_two_answers = [calls[0], outputs[0], calls[1], outputs[1], asked]
    answer = await http.post("/openai/v1/responses", json={**body, "input": of_two_answers})
    assert answer.status_code == 200
