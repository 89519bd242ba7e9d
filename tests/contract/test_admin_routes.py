"""Keys over HTTP, and the audit log: who did what, when and from where."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from shared.sql.engine import Database
from shared.sql.tables import audit_events
from tests.kit.keys import KeyMaker
from tests.kit.model_server import ModelServer
from tests.kit.product.in_process import api_client, running_product
from tests.kit.services.databases import open_database
from tests.kit.services.redis_servers import RedisService

CONFIGURED = "a-long-key-of-the-operator"
OTHER = "the-long-key-of-another-project"
OPERATOR = {"Authorization": f"Bearer {CONFIGURED}"}
STRANGER = {"Authorization": f"Bearer {OTHER}"}
KEYS = f"one={CONFIGURED},two={OTHER}"
UNKNOWN = "key-11111111-1111-4111-8111-111111111111"
LOOK = 'def look() -> str:\n    """Looks."""\n    return "seen"\n'
ASKS = '{"turns": [{"calls": [{"name": "look"}]}, {"text": "The word is sesame."}]}'


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    async with open_database(database_url) as database:
        yield database


@pytest.fixture
async def http(database: Database) -> AsyncGenerator[httpx.AsyncClient]:
    async with api_client(database, api_keys=KEYS, trusted_proxies="127.0.0.1", docs="on") as http:
        http.headers.update(OPERATOR)
        yield http


async def created(http: httpx.AsyncClient, *scopes: str, **fields: Any) -> dict[str, Any]:
    answer = await http.post("/v1/admin/keys", json={"name": "a page", "scopes": scopes, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def with_key(made: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {made['key']}"}


async def acts(http: httpx.AsyncClient, **params: str) -> list[tuple[str, str]]:
    """What the audit log has, newest first."""
    answer = await http.get("/v1/admin/audit", params=params)
    assert answer.status_code == 200, answer.text
    return [(event["action"], event["object_id"]) for event in answer.json()]


async def test_a_key_is_shown_once(http: httpx.AsyncClient) -> None:
    expires_at = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    made = await created(http, "write", expires_at=expires_at)
    shown = (await http.get(f"/v1/admin/keys/{made['id']}")).json()

    assert shown == {name: value for name, value in made.items() if name != "key"}
    assert shown == (await http.get("/v1/admin/keys")).json()[0]
    assert made["key"].startswith(shown["prefix"])
    assert (shown["project"], shown["scopes"], shown["status"]) == ("one", ["write"], "active")
    assert shown["created_by"].startswith("configured-")
    assert (await http.get("/v1/agents", headers=with_key(made))).status_code == 200
    used = (await http.get(f"/v1/admin/keys/{made['id']}")).json()
    assert used["last_used_at"] is not None


async def test_a_key_is_revoked_at_once(http: httpx.AsyncClient) -> None:
    made = await created(http, "admin")
    assert (await http.get("/v1/agents", headers=with_key(made))).status_code == 200

    revoked = await http.delete(f"/v1/admin/keys/{made['id']}")

    assert revoked.json()["status"] == "revoked"
    refused = await http.get("/v1/agents", headers=with_key(made))
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert (await http.post(f"/v1/admin/keys/{made['id']}/rotate")).status_code == 409


async def test_a_key_is_rotated_with_a_grace_or_without(http: httpx.AsyncClient) -> None:
    made = await created(http, "read")
    second = (await http.post(f"/v1/admin/keys/{made['id']}/rotate")).json()
    assert [(await http.get("/v1/agents", headers=with_key(one))).status_code for one in (made, second)] == [200, 200]
    third = (await http.post(f"/v1/admin/keys/{made['id']}/rotate", json={"grace_s": 0})).json()
    statuses = [(await http.get("/v1/agents", headers=with_key(one))).status_code for one in (made, second, third)]
    assert statuses == [401, 401, 200]
    assert (await http.post(f"/v1/admin/keys/{made['id']}/rotate", json={"grace_s": 10**9})).status_code == 400


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"scopes": ["read"]}, 422),
        ({"name": "x", "scopes": []}, 422),
        ({"name": "x", "scopes": ["root"]}, 400),
        ({"name": "x", "scopes": ["read"], "expires_at": "2020-01-01T00:00:00Z"}, 400),
        ({"name": "x", "scopes": ["read"], "expires_at": "2999-01-01T00:00:00"}, 422),
        ({"name": "x", "scopes": ["read"], "expires": "2999-01-01T00:00:00Z"}, 422),
        ({"name": "x", "scopes": ["read"], "project": "two"}, 422),
        ({"name": "x\u0007", "scopes": ["read"]}, 400),
        ({"name": "x", "scopes": ["read", "agent:agent-11111111-1111-4111-8111-111111111111"]}, 404),
    ],
)
async def test_a_key_that_cannot_be_meant_is_refused(http: httpx.AsyncClient, body: Any, status: int) -> None:
    assert (await http.post("/v1/admin/keys", json=body)).status_code == status
    assert (await http.get("/v1/admin/keys")).json() == []


async def test_an_admins_key_is_of_its_own_project(http: httpx.AsyncClient) -> None:
    made = await created(http, "read")
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/rotate")):
        foreign, unknown = [
            await http.request(method, f"/v1/admin/keys/{key_id}{path}", headers=STRANGER)
            for key_id in (made["id"], UNKNOWN)
        ]
        assert foreign.status_code == unknown.status_code == 404
        assert foreign.text.replace(made["id"], UNKNOWN) == unknown.text
    for path in ("keys", "audit"):
        assert (await http.get(f"/v1/admin/{path}", headers=STRANGER)).json() == []
    assert (await http.get("/v1/agents", headers=with_key(made))).status_code == 200


async def test_acts_on_keys_are_recorded_with_who_and_from_where(http: httpx.AsyncClient) -> None:
    said = {"User-Agent": "x" * 500, "X-Request-Id": "request-7", "X-Forwarded-For": "6.6.6.6, 198.51.100.7"}
    made = (await http.post("/v1/admin/keys", json={"name": "a page", "scopes": ["read"]}, headers=said)).json()
    await http.post(f"/v1/admin/keys/{made['id']}/rotate")
    await http.delete(f"/v1/admin/keys/{made['id']}")
    await http.delete(f"/v1/admin/keys/{made['id']}")
    refused = await http.get("/v1/admin/keys", headers=with_key(await created(http, "write")))

    events = (await http.get("/v1/admin/audit", params={"order": "asc"})).json()

    assert refused.status_code == 403
    assert [event["action"] for event in events] == [
        "key.created", "key.rotated", "key.revoked", "key.created", "admin.asked"
    ]  # fmt: skip
    first, last = events[0], events[-1]
    assert (first["address"], first["request_id"], first["user_agent"]) == ("198.51.100.7", "request-7", "x" * 200)
    assert (first["object_id"], first["outcome"], first["project"]) == (made["id"], "done", "one")
    assert first["key_id"].startswith("configured-")
    assert first["key_name"] == "HOLDFAST_API_KEYS, entry 1"
    assert (last["outcome"], last["object_id"], last["key_name"]) == ("refused", "GET /v1/admin/keys", "a page")
    assert CONFIGURED not in str(events)


async def test_the_log_is_read_by_pages_and_filters(http: httpx.AsyncClient) -> None:
    ids = [(await created(http, "read"))["id"] for _ in range(3)]
    await http.delete(f"/v1/admin/keys/{ids[0]}")

    assert await acts(http, action="key.revoked") == [("key.revoked", ids[0])]
    assert await acts(http, object_id=ids[1]) == [("key.created", ids[1])]
    assert await acts(http, key_id="nobody") == []
    assert len(await acts(http, since="2020-01-01T00:00:00Z", until="2999-01-01T00:00:00Z")) == 4
    assert await acts(http, until="2020-01-01T00:00:00Z") == []
    newest = (await http.get("/v1/admin/audit", params={"limit": 1})).json()[0]
    assert len(await acts(http, after=newest["id"])) == 3


async def test_deletions_and_changes_of_tools_are_recorded(http: httpx.AsyncClient) -> None:
    agent = (await http.post("/v1/agents", json={"model": "builtin/echo", "include_base_tools": False})).json()["id"]
    block = (await http.post("/v1/blocks", json={"label": "human", "value": "sesame"})).json()["id"]
    archive = (await http.post("/v1/archives", json={"name": "papers"})).json()["id"]
    conversation = (await http.post("/v1/conversations", params={"agent_id": agent})).json()["id"]
    tool = (await http.put("/v1/tools", json={"source_code": LOOK})).json()["id"]
    await http.put("/v1/tools", json={"source_code": LOOK})
    await http.patch(f"/v1/tools/{tool}", json={"source_code": LOOK.replace("seen", "sesame")})
    for path in (f"tools/{tool}", f"conversations/{conversation}", f"agents/{agent}", f"blocks/{block}"):
        assert (await http.delete(f"/v1/{path}")).status_code == 200
    deleted = await http.delete(f"/v1/archives/{archive}")
    assert (deleted.status_code, deleted.headers.get("content-type")) == (204, None), (
        "SDK 1.0.0 parses content with a type"
    )
    assert (await http.delete(f"/v1/blocks/{block}")).status_code == 404

    assert await acts(http, order="asc") == [
        ("tool.created", tool),
        ("tool.changed", tool),
        ("tool.deleted", tool),
        ("conversation.deleted", conversation),
        ("agent.deleted", agent),
        ("block.deleted", block),
        ("archive.deleted", archive),
    ]
    assert "sesame" not in (await http.get("/v1/admin/audit")).text


async def test_nobody_could_tell_who_was_shown_the_values_of_secrets(http: httpx.AsyncClient) -> None:
    made: list[str] = []
    for secrets in ({"TOKEN": "sesame"}, {"TOKEN": "sesame"}, {}):
        body = {"model": "builtin/echo", "include_base_tools": False, "secrets": secrets}
        made.append((await http.post("/v1/agents", json=body)).json()["id"])
    one, two, _ = made
    writer, asked = with_key(await created(http, "write")), {"include": "agent.secrets"}
    assert "sesame" not in (await http.get(f"/v1/agents/{one}", params=asked, headers=writer)).text
    assert "sesame" not in (await http.get(f"/v1/agents/{one}")).text
    assert await acts(http, action="secrets.shown") == []

    assert "sesame" in (await http.get(f"/v1/agents/{one}/secrets")).text
    assert "sesame" in (await http.get("/v1/agents", params=asked)).text
    assert "sesame" in (await http.patch(f"/v1/agents/{two}", params=asked, json={"name": "renamed"})).text

    shown = [object_id for _, object_id in await acts(http, action="secrets.shown")]
    assert sorted(shown) == sorted([one, one, two, two])
    assert "sesame" not in (await http.get("/v1/admin/audit")).text


@dataclass(frozen=True)
class Waiting:
    """A call that waits for a person."""

    agent_id: str
    run_id: str
    approval_id: str
    tool_call_id: str


async def waiting_call(http: httpx.AsyncClient, tool: str) -> Waiting:
    body = {"model": "builtin/scripted", "tool_ids": [tool], "include_base_tools": False}
    agent = (await http.post("/v1/agents", json=body)).json()["id"]
    await http.post(f"/v1/agents/{agent}/messages", json={"input": ASKS})
    [approval] = (await http.get("/v1/approvals", params={"agent_id": agent})).json()
    return Waiting(agent, approval["run_id"], approval["id"], approval["tool_call_id"])


async def test_who_decided_which_call_is_recorded(database: Database) -> None:
    redis = RedisService(None)
    settings = {"api_keys": KEYS}
    async with (
        ModelServer() as models,
        running_product(database, redis.client(), models, settings=settings) as product,
    ):
        http = product.http
        http.headers.update(OPERATOR)
        source = {"source_code": LOOK, "default_requires_approval": True}
        tool = (await http.put("/v1/tools", json=source)).json()["id"]
        one, two, three = [await waiting_call(http, tool) for _ in range(3)]
        person = with_key(await created(http, "write"))
        denial = {"decision": "deny", "reason": "The word is sesame."}
        await http.post(f"/v1/approvals/{one.approval_id}", json=denial, headers=person)
        await http.post(f"/v1/approvals/{one.approval_id}", json=denial, headers=person)
        approvals = [{"type": "approval", "tool_call_id": two.tool_call_id, "approve": True}]
        await http.post(
            f"/v1/agents/{two.agent_id}/messages", json={"messages": [{"type": "approval", "approvals": approvals}]}
        )
        await http.post(f"/v1/runs/{three.run_id}/cancel")
        await http.delete(f"/v1/runs/{three.run_id}")

        events = (await http.get("/v1/admin/audit", params={"order": "asc"})).json()

        assert [(event["action"], event["object_id"]) for event in events[2:]] == [
            ("approval.denied", one.approval_id),
            ("approval.approved", two.approval_id),
            ("run.cancelled", three.run_id),
            ("run.deleted", three.run_id),
        ]
        assert (events[2]["key_name"], events[3]["key_name"]) == ("a page", "HOLDFAST_API_KEYS, entry 1")
        assert "sesame" not in str(events)
    await redis.close()


async def test_an_act_that_does_not_happen_is_not_recorded(database: Database) -> None:
    """The event is stored in the transaction of its act."""
    made = await KeyMaker(database)("read")
    async with api_client(database, api_keys=KEYS) as http:
        http.headers.update(OPERATOR)
        assert (await http.delete(f"/v1/admin/keys/{made.key.id}")).status_code == 404, "of another project"
        assert (await http.post("/v1/admin/keys", json={"name": "\u0001", "scopes": ["read"]})).status_code == 400
    async with database.read() as connection:
        assert (await connection.execute(sa.select(sa.func.count()).select_from(audit_events))).scalar_one() == 0


async def test_the_openapi_document_says_how_a_key_is_sent(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    assert document["paths"]["/v1/agents"]["get"]["security"] == [{"key": []}]
    assert "security" not in document["paths"]["/healthz"]["get"]
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
