"""What changes something by the API is in the audit log, or somebody has said why it is not."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.access.route_rules import CHAT, RULES
from shared.domain.api_keys import Level
from tests.kit.mcp.official import official_server
from tests.kit.model_server import ModelServer
from tests.kit.product.in_process import running_product
from tests.kit.services.databases import open_database
from tests.kit.services.redis_servers import RedisService
from tests.kit.walls.requests import RESPONSES

KEYS_PAGE = Path(__file__).parents[2] / "docs/operations/keys.md"
CONFIGURED = "a-long-key-of-the-operator"
LOOK = 'def look() -> str:\n    """Looks."""\n    return "seen"\n'

_A = "/v1/agents/{agent_id}"
_C = "/v1/conversations/{conversation_id}"
_W = "/openai/v1/webhook_endpoints"
_MS = "/v1/mcp-servers/{mcp_server_id}"
_OLDER_M = "/v1/tools/mcp/servers"
_OPENAI_C = "/openai/v1/conversations"
ACTS = {
    f"PATCH {_A}": "approvals.changed",
    f"DELETE {_A}": "agent.deleted",
    f"PATCH {_A}/tools/attach/{{tool_id}}": "tool.attached",
    f"PATCH {_A}/tools/detach/{{tool_id}}": "tool.detached",
    f"PATCH {_A}/tools/approval/{{tool_name}}": "approvals.changed",
    f"POST {_A}/tools/{{tool_name}}/run": "tool.called",
    f"PATCH {_A}/reset-messages": "messages.reset",
    f"DELETE {_A}/archival-memory/{{memory_id}}": "passage.deleted",
    "DELETE /v1/archives/{archive_id}/passages/{passage_id}": "passage.deleted",
    f"POST {_A}/export": "agent.exported",
    "POST /v1/agents/import": "tool.created",
    **dict.fromkeys(("POST /v1/tools", "PUT /v1/tools"), "tool.created"),
    "PATCH /v1/tools/{tool_id}": "tool.changed",
    **{f"DELETE /v1/{noun}s/{{{noun}_id}}": f"{noun}.deleted" for noun in ("tool", "block", "archive")},
    f"DELETE {_C}": "conversation.deleted",
    "DELETE /openai/v1/conversations/{conversation_id}": "conversation.deleted",
    "DELETE /v1/runs/{run_id}": "run.deleted",
    **{f"DELETE {path}/{{response_id}}": "run.deleted" for path in RESPONSES},
    **{f"POST {path}/{{response_id}}/cancel": "run.cancelled" for path in RESPONSES},
    **dict.fromkeys(
        (f"POST {_A}/messages/cancel", f"POST {_C}/cancel", "POST /v1/runs/{run_id}/cancel"), "run.cancelled"
    ),
    **dict.fromkeys(
        ("POST /ag-ui/{agent_id}/stop", "POST /ag-ui/agent/{agent_id}/stop/{thread_id:path}"), "run.cancelled"
    ),
    "POST /ai-sdk/{agent_id}/chat/{chat_id:path}/stop": "run.cancelled",
    "POST /v1/approvals/{approval_id}": "approval.approved",
    "POST /v1/runs/{run_id}/effects/{call_id}": "effect.settled",
    "POST /v1/admin/keys": "key.created",
    "DELETE /v1/admin/keys/{key_id}": "key.revoked",
    "POST /v1/admin/keys/{key_id}/rotate": "key.rotated",
    "POST /v1/admin/callbacks/{run_id}/retry": "callback.retried",
    "POST /v1/admin/webhooks/{run_id}/{webhook_id}/retry": "webhook.retried",
    **dict.fromkeys(("POST /v1/mcp-servers", f"PUT {_OLDER_M}"), "mcp_server.created"),
    **dict.fromkeys((f"PATCH {_MS}", f"PATCH {_OLDER_M}/{{mcp_server_name}}"), "mcp_server.changed"),
    **dict.fromkeys((f"DELETE {_MS}", f"DELETE {_OLDER_M}/{{mcp_server_name}}"), "mcp_server.deleted"),
    **dict.fromkeys((f"PATCH {_MS}/refresh", f"POST {_OLDER_M}/{{mcp_server_name}}/resync"), "tool.created"),
    f"POST {_OLDER_M}/{{mcp_server_name}}/{{mcp_tool_name}}": "tool.created",
    f"POST {_MS}/tools/{{tool_id}}/run": "tool.called",
    f"POST {_OLDER_M}/{{mcp_server_name}}/tools/{{mcp_tool_name}}/execute": "tool.called",
    "POST /v1/groups": "group.created",
    "PATCH /v1/groups/{group_id}": "group.changed",
    "DELETE /v1/groups/{group_id}": "group.deleted",
    f"POST {_W}": "webhook.created",
    f"POST {_W}/{{webhook_id}}": "webhook.changed",
    f"POST {_W}/{{webhook_id}}/rotate_secret": "webhook.rotated",
    f"DELETE {_W}/{{webhook_id}}": "webhook.deleted",
}

_RUN = "the run is the record: it has the key that submitted it"
_MADE = "takes nothing away, and lets nothing run: it is in its own answer, with its time"
_CONTEXT = "changes what the agent remembers, not what it may do"
REASONS = {
    **dict.fromkeys((f"POST {_A}/messages{part}" for part in ("", "/stream", "/async")), _RUN),
    **dict.fromkeys((f"POST {_C}/messages", f"POST {_C}/compact", f"POST {_A}/summarize", f"POST {_A}/generate"), _RUN),
    **dict.fromkeys((f"POST {path}" for path in CHAT), _RUN),
    **dict.fromkeys((f"POST {path}{part}" for path in RESPONSES for part in ("", "/compact")), _RUN),
    **dict.fromkeys(("POST /ag-ui/{agent_id}", "POST /ag-ui/agent/{agent_id}/run"), _RUN),
    **dict.fromkeys((f"POST /v1/groups/{{group_id}}/messages{part}" for part in ("", "/stream")), _RUN),
    "POST /ai-sdk/{agent_id}/chat": _RUN,
    f"POST {_A}/messages/capture": _CONTEXT,
    "POST /v1/runs/{run_id}/inject": "the message is in the run's history",
    **dict.fromkeys((f"POST /v1/{noun}" for noun in ("agents", "blocks", "archives", "conversations")), _MADE),
    **dict.fromkeys((f"POST {_OPENAI_C}", f"POST {_OPENAI_C}/{{conversation_id}}/items"), _MADE),
    f"POST {_OPENAI_C}/{{conversation_id}}": _CONTEXT,
    f"DELETE {_OPENAI_C}/{{conversation_id}}/items/{{item_id}}": _CONTEXT,
    **dict.fromkeys((f"POST {_C}/fork", "POST /v1/tools/add-base-tools", f"POST {_A}/archival-memory"), _MADE),
    **dict.fromkeys((f"POST /v1/archives/{{archive_id}}/passages{part}" for part in ("", "/batch")), _MADE),
    **dict.fromkeys((f"PATCH {_A}/core-memory/blocks/{part}/{{block_id}}" for part in ("attach", "detach")), _CONTEXT),
    **dict.fromkeys((f"PATCH {_A}/archives/{part}/{{archive_id}}" for part in ("attach", "detach")), _CONTEXT),
    **dict.fromkeys((f"PATCH {_A}/core-memory/blocks/{{block_label}}", f"PATCH {_C}"), _CONTEXT),
    **dict.fromkeys(("PATCH /v1/blocks/{block_id}", "PATCH /v1/archives/{archive_id}"), _CONTEXT),
    **dict.fromkeys((f"POST {_A}/recompile", f"POST {_C}/recompile"), "renders what is stored"),
    "PATCH /v1/steps/{step_id}/feedback": "an opinion",
    f"POST {_W}/{{webhook_id}}/test": "sends a sample, and changes nothing here",
    f"POST {_OLDER_M}/test": "asks a server for its tools, and changes nothing here",
    f"POST {_OLDER_M}/connect": "is refused",
}


def test_every_route_that_changes_something_has_its_act_or_a_reason() -> None:
    changing = {
        route for route, rule in RULES.items() if rule.level is not Level.READ and not route.startswith("GET ")
    } | {route for route in RULES if route.endswith("/export") and route.startswith("POST ")}
    assert set(ACTS) | set(REASONS) == changing
    assert not set(ACTS) & set(REASONS)


def test_every_act_is_on_the_page_about_keys() -> None:
    page = KEYS_PAGE.read_text()
    assert [act for act in sorted({*ACTS.values(), "secrets.changed"}) if f"`{act}`" not in page] == []


SETTINGS = {"api_keys": f"default={CONFIGURED}", "reachable_networks": "127.0.0.0/8"}


@pytest.fixture
async def http(sqlite_url: str) -> AsyncGenerator[httpx.AsyncClient]:
    redis = RedisService(None)
    async with (
        open_database(sqlite_url) as database,
        ModelServer() as models,
        running_product(database, redis.client(), models, settings=SETTINGS) as product,
    ):
        product.http.headers["Authorization"] = f"Bearer {CONFIGURED}"
        yield product.http
    await redis.close()


async def test_who_changed_what_an_agent_may_do_was_not_recorded(http: httpx.AsyncClient) -> None:
    async def ask(method: str, path: str, body: Any = None) -> Any:
        answer = await http.request(method, path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    tool = (await ask("PUT", "/v1/tools", {"source_code": LOOK, "default_requires_approval": True}))["id"]
    agent = (await ask("POST", "/v1/agents", {"model": "builtin/echo", "include_base_tools": False}))["id"]
    path = f"/v1/agents/{agent}"
    await ask("PATCH", f"{path}/tools/attach/{tool}")
    await ask("PATCH", f"{path}/tools/attach/{tool}")
    await ask("PATCH", f"{path}/tools/approval/look", {"requires_approval": False})
    await ask("POST", f"{path}/tools/look/run", {"args": {}})
    await ask("PATCH", path, {"secrets": {"TOKEN": "sesame"}})
    await ask("PATCH", path, {"name": "another name"})
    [memory] = await ask("POST", f"{path}/archival-memory", {"text": "a passage"})
    await ask("GET", f"{path}/export")
    await ask("POST", f"{path}/export", {})
    await ask("PATCH", f"{path}/reset-messages")
    await ask("PATCH", f"{path}/tools/detach/{tool}")
    assert (await http.delete(f"{path}/archival-memory/{memory['id']}")).is_success
    archive = (await ask("POST", "/v1/archives", {"name": "papers"}))["id"]
    passage = (await ask("POST", f"/v1/archives/{archive}/passages", {"text": "another"}))["id"]
    assert (await http.delete(f"/v1/archives/{archive}/passages/{passage}")).is_success

    events = (await http.get("/v1/admin/audit", params={"order": "asc"})).json()
    assert [(event["action"], event["object_id"]) for event in events] == [
        ("tool.created", tool),
        ("tool.attached", tool),
        ("approvals.changed", agent),  # the tool has brought its default rule
        ("approvals.changed", agent),
        ("tool.called", tool),
        ("secrets.changed", agent),
        ("agent.exported", agent),
        ("agent.exported", agent),
        ("messages.reset", agent),
        ("tool.detached", tool),
        ("passage.deleted", memory["id"]),
        ("passage.deleted", passage),
    ]
    assert "sesame" not in str(events)


async def test_who_changed_a_webhook_endpoint_is_recorded(http: httpx.AsyncClient) -> None:
    path, body = _W, {"name": "mine", "url": "https://example.com/", "event_types": ["response.completed"]}
    made = (await http.post(path, json=body)).json()
    for sent in ({"name": "new"}, {"name": "new"}):
        assert (await http.post(f"{path}/{made['id']}", json=sent)).is_success
    assert (await http.post(f"{path}/{made['id']}/rotate_secret")).is_success
    assert (await http.delete(f"{path}/{made['id']}")).is_success

    events = (await http.get("/v1/admin/audit", params={"order": "asc"})).json()

    assert [(event["action"], event["object_id"]) for event in events] == [
        (act, made["id"]) for act in ("webhook.created", "webhook.changed", "webhook.rotated", "webhook.deleted")
    ]
    assert made["signing_secret"] not in str(events)


async def test_who_lets_an_agent_work_in_the_background_is_recorded(http: httpx.AsyncClient) -> None:
    made = (await http.post("/v1/agents", json={"model": "builtin/echo"})).json()["id"]
    sleeper = (await http.post("/v1/agents", json={"model": "builtin/echo"})).json()["id"]
    config = {"manager_type": "sleeptime", "manager_agent_id": made}
    body = {"description": "", "agent_ids": [sleeper], "manager_config": config}
    group = (await http.post("/v1/groups", json=body)).json()["id"]
    for _ in range(2):
        assert (await http.patch(f"/v1/groups/{group}", json={"description": "new"})).is_success
    assert (await http.delete(f"/v1/groups/{group}")).is_success
    for enabled in (True, True, False):
        assert (await http.patch(f"/v1/agents/{made}", json={"enable_sleeptime": enabled})).is_success
    second = (await http.get(f"/v1/agents/{made}")).json()["managed_group"]["id"]

    events = (await http.get("/v1/admin/audit", params={"order": "asc"})).json()

    assert [(event["action"], event["object_id"]) for event in events] == [
        ("group.created", group),
        ("group.changed", group),
        ("group.deleted", group),
        ("group.created", second),
        ("group.changed", second),
    ]


async def test_who_made_an_mcp_server_and_what_became_of_its_tools_is_recorded(http: httpx.AsyncClient) -> None:
    async with official_server("stateless") as official:
        config = {"server_url": official.target.url, "auth_token": "token-of-the-server"}
        made = (await http.post("/v1/mcp-servers", json={"server_name": "tools", "config": config})).json()
        path = f"/v1/mcp-servers/{made['id']}"
        tools = {tool["name"]: tool["id"] for tool in (await http.get(f"{path}/tools")).json()}
        official.mcp.remove_tool("wait")
        for _ in range(2):
            assert (await http.patch(f"{path}/refresh")).is_success
        args = {"args": {"a": 1, "b": 1}}
        assert (await http.post(f"{path}/tools/{tools['add']}/run", json=args)).is_success
        for _ in range(2):
            assert (await http.patch(path, json={"server_name": "new"})).is_success
        assert (await http.delete(path)).is_success

    events = (await http.get("/v1/admin/audit", params={"order": "asc", "limit": 100})).json()

    acts = [(event["action"], event["object_id"]) for event in events]
    created = [("tool.created", tools[name]) for name in sorted(tools)]
    left = [("tool.deleted", tools[name]) for name in sorted(tools) if name != "wait"]
    assert acts == [
        ("mcp_server.created", made["id"]),
        *created,
        ("tool.deleted", tools["wait"]),
        ("tool.called", tools["add"]),
        ("mcp_server.changed", made["id"]),
        *left,
        ("mcp_server.deleted", made["id"]),
    ]
    assert "token-of-the-server" not in str(events)
