"""Requests with another project's ids, in every place that the API's own document has for one.

This module must know everything that the document names: a route, a parameter or a field for an id that is not in the
walk is an error, so that no new one is left out.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import Any

from api.access.route_rules import CHAT
from tests.kit.walls.belongings import Belongings

IN_PATHS = {
    "agent_id": "agents",
    "approval_id": "approvals",
    "archive_id": "archives",
    "block_id": "blocks",
    "block_label": "labels",
    "conversation_id": "threads",
    "group_id": "groups",
    "item_id": "messages",
    "key_id": "api_keys",
    "mcp_server_id": "mcp_servers",
    "mcp_server_name": "mcp_server_names",
    "mcp_tool_name": "tool_names",
    "memory_id": "passages",
    "message_id": "messages",
    "model": "agents",
    "passage_id": "passages",
    "call_id": "tool_calls",
    "chat_id": "conversations",
    "response_id": "runs",
    "run_id": "runs",
    "step_id": "steps",
    "thread_id": "conversations",
    "tool_id": "tools",
    "tool_name": "tool_names",
    "webhook_id": "webhooks",
}
CURSOR = ("",)
"""A row of the requested list: the path determines its kind."""
LISTED = {
    "agents": "agents",
    "approvals": "approvals",
    "archival-memory": "passages",
    "archives": "archives",
    "audit": "audit_events",
    "blocks": "blocks",
    "conversations": "conversations",
    "groups": "groups",
    "input_items": "messages",
    "items": "messages",
    "keys": "api_keys",
    "messages": "messages",
    "runs": "runs",
    "steps": "steps",
    "tags": "tags",
    "tools": "tools",
    "webhook_endpoints": "webhooks",
}
"""By the last part of a list's path. Other lists are always empty."""

IN_QUERIES: Mapping[str, tuple[str, ...]] = {
    "after": CURSOR,
    "before": CURSOR,
    "cursor": CURSOR,
    "agent_id": ("agents",),
    "agent_ids": ("agents",),
    "conversation_id": ("threads",),
    "key_id": ("api_keys",),
    "message_id": ("messages",),
    "parent_run_id": ("runs",),
    "object_id": ("agents", "api_keys", "approvals", "runs"),
    "run_id": ("runs",),
    "threadId": ("conversations",),
    "tool_ids": ("tools",),
    "name": ("names", "labels", "tags"),
    "names": ("tool_names",),
    "label": ("labels",),
    "tags": ("tags",),
    "token": ("tokens",),
    **dict.fromkeys(("description_search", "label_search", "query", "query_text", "search"), ("words",)),
    **dict.fromkeys(("summary_search", "value_search"), ("words",)),
    **dict.fromkeys(("base_template_id", "identifier_keys", "identity_id", "template_id"), ("words", "agents")),
}
SAY_NOTHING_OF_ROWS = frozenset(
    {
        "action", "active", "archive_status", "ascending", "background", "connected_to_agents_count_eq",
        "connected_to_agents_count_gt", "connected_to_agents_count_lt", "created_after", "created_before", "decided",
        "dry_run", "end_date", "end_datetime", "exclude_letta_tools", "exclude_tool_types", "feedback", "full",
        "follow", "hang_up", "has_feedback",
        # Of a browser that comes back from a sign-in: it has no key, and its `state` is known to nobody else.
        "code", "error", "iss", "state",
        "hidden", "include", "include_return_message_types", "is_open", "last_stop_reason", "limit", "manager_type",
        "match_all_tags",
        "model", "notes", "order", "order_by", "protocolVersion",
        "provider_category", "provider_name", "provider_type", "requires_approval", "results",
        "return_only_letta_tools", "scrub_messages", "sdk", "show_hidden_agents", "show_hidden_groups", "since",
        "sort_by", "start_date",
        "start_datetime", "starting_after", "statuses", "stop_reason", "stream", "tag_match_mode", "templates_only",
        "tool_types", "top_k", "until", "use_legacy_format",
    }
)  # fmt: skip
"""Parameters that name no row."""

IN_HEADERS = {"idempotency-key": "keys"}
HEADERS_SAY_NOTHING = frozenset(
    {
        "last-event-id", "x-holdfast-if-busy", "x-holdfast-priority", "x-holdfast-status-events",
        "x-override-embedding-model",
        "x-stainless-read-timeout", "x-stainless-retry-count", "x-stainless-timeout",
    }
)  # fmt: skip

ID_FIELDS = frozenset(
    {
        "agent_id", "agent_ids", "approval_request_id", "archive_id", "block_ids", "conversation_id", "id",
        "manager_agent_id", "otid", "previous_response_id", "project_id", "run_id", "run_ids", "thread_id", "tool_ids",
    }
)  # fmt: skip
"""Fields of bodies that `BODIES` puts ids into."""
KEPT_AS_TEXT = frozenset({"base_template_id", "folder_ids", "identity_ids", "sender_id", "source_ids", "template_id"})
"""Ids of nouns that are not ours; they are kept, and lead nowhere."""


TWO = 2
"""Two of most kinds are enough. Of runs there is one in each state."""


class Pick:
    """One of each kind of a project's things: the one with this number, in rotation."""

    def __init__(self, belongings: Belongings, number: int = 0) -> None:
        self._belongings = belongings
        self._number = number
        self.most = 1
        """The number of things of the requested kind that has the most."""

        self.named: set[str] = set()
        """The requested kinds."""

    def __getitem__(self, kind: str) -> str:
        some = self._belongings[kind]
        self.most = max(self.most, len(some) if kind == "runs" else min(len(some), TWO))
        value = some[self._number % len(some)]
        self.named.add(value)
        return value


@dataclass(frozen=True)
class Request:
    """A request, and where in the document it comes from."""

    method: str
    template: str
    path: str
    params: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: Any = None
    form: dict[str, str] | None = None
    file: str | None = None

    @property
    def sent(self) -> dict[str, Any]:
        """The request as httpx takes it."""
        sent: dict[str, Any] = {"params": self.params, "headers": self.headers}
        if self.file is not None:
            return sent | {"files": {"file": ("agent.af", self.file)}, "data": self.form}
        return sent if self.body is None else sent | {"json": self.body}


Build = Callable[[Pick, Pick], Request]
"""Makes a request out of the caller's own things and another project's."""
Body = Callable[[Pick, Pick], dict[str, Any]]

MCP_VERSION = "2026-07-28"
HELLO = json.dumps({"turns": [{"text": "Hello."}]})
RESPONSES = ("/openai/v1/responses", "/v1/responses")
_ITEM = {"type": "message", "role": "user", "content": HELLO}


def _said(**fields: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": HELLO, **fields}]}


_CAPTURED = {
    "provider": "openai",
    "model": "gpt-4o-mini",
    "request_messages": [{"role": "user", "content": HELLO}],
    "response_dict": {"content": HELLO},
}


def _item_reference(other: Pick) -> dict[str, Any]:
    digits = other["messages"].partition("-")[2].replace("-", "")
    return {"type": "item_reference", "id": f"msg_{digits}"}


def _decided(other: Pick) -> dict[str, Any]:
    decision = {"type": "approval", "tool_call_id": other["tool_calls"], "approve": True}
    named = {"approval_request_id": other["approvals"]}
    return {"messages": [{"type": "approval", "approvals": [decision], **named}]}


def _rpc(method: str, **params: Any) -> dict[str, Any]:
    tasks: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": MCP_VERSION,
        # A call is to be over when it is answered.
        "io.modelcontextprotocol/clientCapabilities": tasks if method.startswith("tasks/") else {},
    }
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}


def _headers_of(made: Mapping[str, Any] | None) -> dict[str, str]:
    """What a body of the Model Context Protocol says in headers as well."""
    if made is None or "jsonrpc" not in made:
        return {}
    name = made["params"].get("name")
    named = {} if name is None else {"Mcp-Name": name}
    return {"MCP-Protocol-Version": MCP_VERSION, "Mcp-Method": made["method"], **named}


def _tool_of(some: Pick) -> str:
    return some["agents"].removeprefix("agent-").replace("-", "")[:12]


_MESSAGES: list[Body] = [
    lambda _, __: _said(),
    lambda _, other: _said(otid=other["otids"]),
    lambda _, other: _decided(other),
]
_CHAT: list[Body] = [
    lambda own, _: {"model": own["agents"], "messages": [{"role": "user", "content": HELLO}]},
    lambda _, other: {"model": other["threads"], "messages": [{"role": "user", "content": HELLO}]},
]
_RESPONSES: list[Body] = [
    # The two addresses are one: what the caller sends to both under a key must be the same.
    lambda _, __: {"model": "builtin/scripted", "input": HELLO},
    lambda _, other: {"model": other["agents"], "input": HELLO},
    lambda _, other: {"input": HELLO, "previous_response_id": other["runs"]},
    lambda own, other: {"model": own["agents"], "input": HELLO, "previous_response_id": other["runs"]},
    lambda _, other: {"input": HELLO, "conversation": other["threads"]},
    lambda _, other: {"input": HELLO, "conversation": {"id": other["threads"]}},
    lambda _, other: {"model": "builtin/scripted", "input": [_item_reference(other), _ITEM]},
]
_AG_UI: list[Body] = [
    # The same message again would be the same run, which is shown otherwise.
    lambda _, __: _page("desk"),
    lambda _, other: _page(other["conversations"]),
    lambda _, other: _page("desk", resume=[{"interruptId": other["approvals"], "status": "cancelled"}]),
    lambda _, other: _page(
        "desk", messages=[{"id": "1", "role": "tool", "toolCallId": other["tool_calls"], "content": ""}]
    ),
]
_AI_SDK: list[Body] = [
    lambda _, __: _chat("desk"),
    lambda _, other: _chat(other["conversations"]),
    lambda _, other: _chat("desk", {"toolCallId": other["tool_calls"], "state": "output-available", "output": 1}),
    lambda _, other: _chat(
        "desk",
        {"toolCallId": "c", "state": "approval-responded", "approval": {"id": other["approvals"], "approved": True}},
    ),
]


def _page(thread: str, **fields: Any) -> dict[str, Any]:
    return {"threadId": thread, "messages": [], **fields}


def _chat(name: str, *calls: dict[str, Any]) -> dict[str, Any]:
    said = {"id": "first", "role": "user", "parts": [{"type": "text", "text": HELLO}]}
    parts = [{"type": "dynamic-tool", "toolName": "look", **call} for call in calls]
    return {"id": name, "messages": [said, {"id": "a", "role": "assistant", "parts": parts}] if parts else [said]}


COMPACTIONS = frozenset(f"{path}/compact" for path in RESPONSES)
"""Where a submission's name is one with those of the responses beside it, under which the walk has sent something
else."""

_COMPACTIONS: list[Body] = [
    lambda _, __: {"model": "builtin/scripted", "input": HELLO},
    lambda _, other: {"model": other["agents"], "input": HELLO},
    lambda _, other: {"model": None, "previous_response_id": other["runs"]},
]


def _group(manager: str, sleeper: str) -> dict[str, Any]:
    config = {"manager_type": "sleeptime", "manager_agent_id": manager, "sleeptime_agent_frequency": 0}
    return {"description": "", "agent_ids": [sleeper], "manager_config": config}


_TOOL: list[Body] = [
    lambda _, other: {"source_code": f"def {other['tool_names']}(x: str) -> str:\n    '''Says.'''\n    return x\n"}
]

_HEARS = {"name": "mine", "url": "http://127.0.0.1:60999/", "event_types": ["response.completed"]}

_SERVER = {"server_url": "http://127.0.0.1:60998/mcp"}
"""An address on which no process listens."""

BODIES: Mapping[str, list[Body]] = {
    "POST /v1/agents": [
        lambda _, other: {"model": "builtin/echo", "tool_ids": [other["tools"]]},
        lambda _, other: {"model": "builtin/echo", "block_ids": [other["blocks"]]},
        lambda _, other: {"model": "builtin/echo", "tools": [other["tool_names"]]},
    ],
    "PATCH /v1/agents/{agent_id}": [
        lambda _, __: {"description": "new"},
        lambda own, other: {"tool_ids": [own["tools"], other["tools"]]},
        lambda own, other: {"block_ids": [own["blocks"], other["blocks"]]},
        lambda _, other: {"tool_rules": [{"type": "run_first", "tool_name": other["tool_names"]}]},
    ],
    "POST /v1/agents/{agent_id}/export": [lambda _, __: {}, lambda _, other: {"conversation_id": other["threads"]}],
    "POST /v1/agents/import": [lambda own, other: {"file": own["files"], "project_id": other["projects"]}],
    "POST /v1/agents/{agent_id}/tools/{tool_name}/run": [lambda _, __: {"args": {"target": "moon"}}],
    "PATCH /v1/agents/{agent_id}/tools/approval/{tool_name}": [lambda _, __: {"requires_approval": True}],
    "PATCH /v1/agents/{agent_id}/core-memory/blocks/{block_label}": [lambda _, __: {"value": "new"}],
    "POST /v1/agents/{agent_id}/archival-memory": [lambda _, __: {"text": "one"}],
    "POST /v1/tools": _TOOL,
    "PUT /v1/tools": _TOOL,
    "PATCH /v1/tools/{tool_id}": [lambda _, __: {"description": "new"}],
    "POST /v1/blocks": [lambda _, other: {"label": other["labels"], "value": "mine"}],
    "PATCH /v1/blocks/{block_id}": [lambda _, __: {"value": "new"}],
    "POST /v1/archives": [lambda _, other: {"name": other["names"]}],
    "PATCH /v1/archives/{archive_id}": [lambda _, __: {"name": "new"}],
    "POST /v1/archives/{archive_id}/passages": [lambda _, __: {"text": "one"}],
    "POST /v1/archives/{archive_id}/passages/batch": [lambda _, __: {"passages": [{"text": "one"}]}],
    "POST /v1/passages/search": [
        lambda _, other: {"query": other["words"]},
        lambda _, other: {"tags": [other["tags"]]},
        lambda _, other: {"agent_id": other["agents"]},
        lambda _, other: {"query": other["words"], "archive_id": other["archives"]},
    ],
    "POST /v1/conversations": [lambda _, __: {}],
    "PATCH /v1/conversations/{conversation_id}": [lambda _, __: {"summary": "new"}],
    "POST /v1/conversations/{conversation_id}/messages": _MESSAGES,
    "POST /v1/conversations/{conversation_id}/stream": [
        lambda _, __: {},
        lambda _, other: {"run_id": other["runs"]},
        lambda _, other: {"otid": other["otids"]},
    ],
    "POST /v1/conversations/{conversation_id}/cancel": [lambda _, __: {}, lambda _, o: {"run_ids": [o["runs"]]}],
    "POST /v1/agents/{agent_id}/generate": [lambda _, __: {"prompt": HELLO}],
    "POST /v1/agents/{agent_id}/summarize": [lambda _, __: {}],
    "POST /v1/conversations/{conversation_id}/compact": [lambda _, __: {}],
    "POST /v1/conversations/{conversation_id}/recompile": [lambda _, __: {}],
    "POST /v1/agents/{agent_id}/messages": _MESSAGES,
    "POST /v1/agents/{agent_id}/messages/stream": _MESSAGES,
    "POST /v1/agents/{agent_id}/messages/capture": [lambda _, __: _CAPTURED],
    "POST /v1/agents/{agent_id}/messages/async": _MESSAGES,
    "POST /v1/agents/{agent_id}/messages/cancel": [lambda _, __: {}, lambda _, o: {"run_ids": [o["runs"]]}],
    "POST /v1/messages/search": [
        lambda _, other: {"query": other["words"]},
        lambda own, other: {"query": own["words"], "agent_id": other["agents"]},
        lambda own, other: {"query": own["words"], "conversation_id": other["threads"]},
    ],
    "POST /mcp": [
        lambda own, _: _rpc("tools/call", name=_tool_of(own), arguments={"message": HELLO}),
        lambda _, __: _rpc("tools/list"),
        lambda _, other: _rpc("tools/list", cursor=other["agents"]),
        lambda _, other: _rpc("tools/call", name=_tool_of(other), arguments={"message": HELLO}),
        lambda own, other: _rpc(
            "tools/call", name=_tool_of(own), arguments={"message": HELLO, "conversation": other["threads"]}
        ),
        lambda own, other: _rpc("tools/call", name=_tool_of(own), requestState=other["runs"], inputResponses={}),
        lambda _, other: _rpc("tasks/get", taskId=other["runs"]),
        lambda _, other: _rpc("tasks/cancel", taskId=other["runs"]),
        lambda _, other: _rpc(
            "tasks/update", taskId=other["runs"], inputResponses={other["tool_calls"]: {"action": "decline"}}
        ),
    ],
    **{f"POST {path}": _CHAT for path in CHAT},
    "POST /openai/v1/webhook_endpoints": [lambda _, __: _HEARS],
    "POST /openai/v1/webhook_endpoints/{webhook_id}": [lambda _, __: {"name": "new"}],
    "POST /openai/v1/webhook_endpoints/{webhook_id}/rotate_secret": [
        lambda _, __: {"keep_old_secret_active_for_24_hours": True}
    ],
    "POST /openai/v1/webhook_endpoints/{webhook_id}/test": [lambda _, __: {"event_type": "response.completed"}],
    "POST /v1/groups": [
        lambda own, other: _group(own["agents"], other["agents"]),
        lambda own, other: _group(other["agents"], own["agents"]),
    ],
    "PATCH /v1/groups/{group_id}": [
        lambda _, __: {"description": "new"},
        lambda _, other: {"agent_ids": [other["agents"]]},
        lambda _, other: {"manager_config": {"manager_type": "sleeptime", "manager_agent_id": other["agents"]}},
    ],
    **{f"POST /v1/groups/{{group_id}}/messages{part}": _MESSAGES for part in ("", "/stream")},
    "POST /v1/mcp-servers": [lambda _, __: {"server_name": "mine", "config": _SERVER}],
    "PATCH /v1/mcp-servers/{mcp_server_id}": [
        lambda _, __: {"config": _SERVER},
        lambda _, other: {"server_name": other["mcp_server_names"]},
    ],
    "POST /v1/mcp-servers/{mcp_server_id}/tools/{tool_id}/run": [lambda _, __: {"args": {}}],
    "PUT /v1/tools/mcp/servers": [lambda _, __: _SERVER | {"server_name": "mine"}],
    **{
        f"POST /v1/tools/mcp/servers/{part}": [lambda _, other: _SERVER | {"server_name": other["mcp_server_names"]}]
        for part in ("test", "connect")
    },
    "PATCH /v1/tools/mcp/servers/{mcp_server_name}": [lambda _, __: _SERVER],
    "POST /v1/tools/mcp/servers/{mcp_server_name}/tools/{mcp_tool_name}/execute": [lambda _, __: {"args": {}}],
    **{f"POST {path}{part}": _RESPONSES for path in RESPONSES for part in ("", "/input_tokens")},
    **{f"POST {path}/compact": _COMPACTIONS for path in RESPONSES},
    **{f"POST /ag-ui/{path}": _AG_UI for path in ("{agent_id}", "agent/{agent_id}/run", "agent/{agent_id}/connect")},
    "POST /ag-ui/{agent_id}/stop": [
        lambda _, __: {"threadId": "desk"},
        lambda _, other: {"threadId": other["conversations"]},
        lambda own, other: {"threadId": own["conversations"], "runId": other["runs"]},
    ],
    "POST /ag-ui/agent/{agent_id}/stop/{thread_id}": [lambda _, __: {}, lambda _, other: {"runId": other["runs"]}],
    "POST /ai-sdk/{agent_id}/chat": _AI_SDK,
    "POST /ai-sdk/{agent_id}/chat/{chat_id}/stop": [lambda _, __: {}],
    "POST /openai/v1/conversations": [
        lambda _, __: {"items": [_ITEM]},
        lambda _, other: {"metadata": {"agent_id": other["agents"]}},
    ],
    "POST /openai/v1/conversations/{conversation_id}": [lambda _, __: {"metadata": {"about": "new"}}],
    "POST /openai/v1/conversations/{conversation_id}/items": [lambda _, __: {"items": [_ITEM]}],
    "POST /v1/runs/{run_id}/stream": [lambda _, __: {}],
    "POST /v1/runs/{run_id}/stream-token": [lambda _, __: {}],
    "POST /v1/agents/{agent_id}/page-token": [
        lambda _, __: {"thread_id": "default"},
        lambda _, other: {"thread_id": other["conversations"]},
    ],
    "POST /v1/runs/{run_id}/cancel": [lambda _, __: {}],
    "POST /v1/runs/{run_id}/effects/{call_id}": [lambda _, __: {"outcome": "happened"}],
    "POST /v1/runs/{run_id}/inject": [lambda _, __: _said(), lambda _, other: _said(otid=other["otids"])],
    "POST /v1/admin/keys": [lambda _, other: {"name": "mine", "scopes": ["write", f"agent:{other['agents']}"]}],
    "POST /v1/admin/keys/{key_id}/rotate": [lambda _, __: {}],
    "POST /v1/approvals/{approval_id}": [lambda _, __: {"decision": "approve"}],
    "PATCH /v1/steps/{step_id}/feedback": [lambda _, __: {"feedback": "positive", "tags": ["mine"]}],
}
"""The bodies for each route. The first of a list is sent with foreign ids in the path, and each with own ones."""

OF_DEFAULT_HISTORIES: list[tuple[str, str, Body]] = [
    ("POST", "messages", lambda _, other: _said() | {"agent_id": other["agents"]}),
    ("POST", "stream", lambda _, other: {"agent_id": other["agents"]}),
    ("POST", "compact", lambda _, other: {"agent_id": other["agents"]}),
    ("POST", "recompile", lambda _, other: {"agent_id": other["agents"]}),
]
"""Routes of `/v1/conversations/default`, whose agent the body names."""


def builders(document: Mapping[str, Any]) -> Iterator[Build]:
    """Every way to put foreign ids into the routes of the document."""
    _refuse_unknown_fields(document)
    for template, operations in document["paths"].items():
        for method, operation in operations.items():
            parameters = operation.get("parameters", [])
            kinds = _kinds_in_path(template)
            queries = _known(template, _names(parameters, "query"), IN_QUERIES, SAY_NOTHING_OF_ROWS)
            headers = _known(template, _names(parameters, "header"), IN_HEADERS, HEADERS_SAY_NOTHING)
            bodies = _bodies(f"{method.upper()} {template}", operation)
            needed = [one["name"] for one in parameters if one["in"] == "query" and one.get("required")]
            route = _Route(method.upper(), template, kinds, needed)
            for foreign in _some_of(kinds):
                yield route.with_path(foreign, bodies[0])
            if method == "get" or (not kinds and bodies[0] is None):
                yield route.with_path((), bodies[0])
            for name in queries:
                yield from (route.with_query(name, kind, bodies[0]) for kind in IN_QUERIES[name])
            for name in headers if route.template not in COMPACTIONS else ():
                yield route.with_header(name, IN_HEADERS[name], bodies[0])
            yield from (route.with_body(body) for body in bodies if body is not None)
    for method, what, body in OF_DEFAULT_HISTORIES:
        yield _Route(method, f"/v1/conversations/default/{what}", {}, []).with_body(body)
    for method, what in (("GET", "messages"), ("GET", "events"), ("POST", "cancel"), ("POST", "fork")):
        yield _Route(method, f"/v1/conversations/default/{what}", {}, []).with_query("agent_id", "agents", None)


@dataclass(frozen=True)
class _Route:
    method: str
    template: str
    kinds: Mapping[str, str]
    needed: list[str]

    def with_path(self, foreign: Iterable[str], body: Body | None) -> Build:
        names = frozenset(foreign)
        return lambda own, other: self._request(own, dict.fromkeys(names, other), body, own)

    def with_query(self, name: str, kind: str, body: Body | None) -> Build:
        def build(own: Pick, other: Pick) -> Request:
            value = other[kind or LISTED.get(self.template.rpartition("/")[2], "agents")]
            return self._request(own, {}, body, own, query=(name, value))

        return build

    def with_header(self, name: str, kind: str, body: Body | None) -> Build:
        return lambda own, other: self._request(own, {}, body, own, headers={name: other[kind]})

    def with_body(self, body: Body) -> Build:
        return lambda own, other: self._request(own, {}, body, other)

    def _request(
        self,
        own: Pick,
        of_path: Mapping[str, Pick],
        body: Body | None,
        of_body: Pick,
        *,
        query: tuple[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Request:
        named = {name: of_path.get(name, own)[kind] for name, kind in self.kinds.items()}
        params = [(name, own[IN_QUERIES[name][0]]) for name in self.needed if query is None or name != query[0]]
        made = None if body is None else body(own, of_body)
        said = {**_headers_of(made), **(headers or {})}
        request = Request(self.method, self.template, self.template.format(**named), params, said)
        if self.template.endswith("/events"):
            request.params.append(("follow", "false"))  # this stream would not end
        if query is not None:
            request.params.append(query)
        if made is not None and "file" in made:
            form = {name: value for name, value in made.items() if name != "file"}
            return Request(self.method, self.template, request.path, params, request.headers, None, form, made["file"])
        return Request(self.method, self.template, request.path, params, request.headers, made)


def _kinds_in_path(template: str) -> dict[str, str]:
    names = re.findall(r"{(\w+)}", template)
    unknown = [name for name in names if name not in IN_PATHS]
    assert not unknown, f"{template} has {unknown}: say in the walk between projects what they name"
    return {name: IN_PATHS[name] for name in names}


def _names(parameters: Iterable[Mapping[str, Any]], place: str) -> list[str]:
    names = [one["name"] for one in parameters if one["in"] == place]
    return [name.lower() for name in names] if place == "header" else names


def _known(template: str, names: Iterable[str], foreign: Mapping[str, Any], others: frozenset[str]) -> list[str]:
    unknown = [name for name in names if name not in foreign and name not in others]
    assert not unknown, f"{template} has {unknown}: say in the walk between projects whether they name rows"
    return [name for name in names if name in foreign]


def _bodies(route: str, operation: Mapping[str, Any]) -> list[Body] | list[None]:
    if "requestBody" not in operation:
        return [None]
    assert route in BODIES, f"{route} takes a body: say in the walk between projects what to send"
    return BODIES[route]


def _refuse_unknown_fields(document: Mapping[str, Any]) -> None:
    schemas: Mapping[str, Any] = document["components"]["schemas"]
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    to_look_at = _referred([operation.get("requestBody") for operation in operations])
    seen: set[str] = set()
    while to_look_at:
        name = to_look_at.pop()
        seen.add(name)
        ids = {one for one in schemas[name].get("properties", {}) if re.search(r"(^|_)(id|ids|otid)$", one)}
        unknown = ids - ID_FIELDS - KEPT_AS_TEXT
        assert not unknown, f"{name} has {unknown}: put such ids into the bodies of the walk between projects"
        to_look_at |= _referred(schemas[name]) - seen


def _referred(part: object) -> set[str]:
    """The names of the schemas that a part of the document refers to."""
    return set(re.findall(r"#/components/schemas/(\w+)", json.dumps(part)))


def _some_of(kinds: Iterable[str]) -> Iterator[tuple[str, ...]]:
    names = list(kinds)
    return chain.from_iterable(combinations(names, size) for size in range(1, len(names) + 1))
