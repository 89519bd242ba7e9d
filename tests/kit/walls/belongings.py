"""One of everything, for a project: made over the API with its key, or in the stores if no worker would leave it."""

import json
import random
import re
import string
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from shared.concurrency import SystemClock
from shared.domain.ids import AgentId, IdMaker, ProjectId, RunId, ThreadId
from shared.domain.messages import NewMessage, UserMessage
from shared.domain.runs import Run
from shared.sql.engine import Database
from shared.sql.runs.run_store import RunStore
from tests.kit.tools import LAUNCH
from tests.kit.wait_until import HANGS_S, wait_until

Belongings = Mapping[str, list[str]]
"""Ids and words by kind."""

SAID_BY_TOKEN = re.compile(r"\d{10}\.[^.]+\.")
ID = re.compile(r"\b[a-z_]+-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\b")

LONG = 1000
"""Characters of a value that its length alone makes unique, so its letters need not be drawn one by one."""


def key_of(project: str) -> str:
    """The key that a project is given here."""
    return f"a-key-of-{project}-that-nobody-guesses"


@asynccontextmanager
async def client_of(base_url: str, project: str) -> AsyncGenerator[httpx.AsyncClient]:
    """A client with the key of a project."""
    headers = {"Authorization": f"Bearer {key_of(project)}"}
    async with httpx.AsyncClient(base_url=base_url, headers=headers, timeout=HANGS_S, verify=False) as client:  # noqa: S501 - no TLS here
        yield client


def unknown_like(belongings: Belongings) -> Belongings:
    """As many of each kind, of the same shape, that no project has."""
    return {kind: [_unknown(value) for value in values] for kind, values in belongings.items()}


def _unknown(value: str) -> str:
    if ID.fullmatch(value):
        return f"{value.partition('-')[0]}-{IdMaker().agent().partition('-')[2]}"
    # The first letter stays: lists of words are in the order of the alphabet. Of a token only the signature is another.
    kept = SAID_BY_TOKEN.match(value)
    begin = value[:1] if kept is None else kept.group()
    rest = value[len(begin) :]
    return begin + (rest.translate(_another_alphabet()) if len(rest) > LONG else "".join(map(_another, rest)))


def _another_alphabet() -> dict[int, int]:
    """Every letter and digit moved by the same number of places."""
    letters, digits = random.randrange(1, 26), random.randrange(1, 10)
    turned = string.ascii_lowercase[letters:] + string.ascii_lowercase[:letters]
    return {
        **str.maketrans(string.ascii_lowercase, turned),
        **str.maketrans(string.ascii_uppercase, turned.upper()),
        **str.maketrans(string.digits, string.digits[digits:] + string.digits[:digits]),
    }


def _another(character: str) -> str:
    if character.isdigit():
        return random.choice(string.digits)
    return random.choice(string.ascii_lowercase) if character.isalpha() else character


def every_value(belongings: Belongings) -> set[str]:
    """All ids and words that only one project has."""
    common = {"files", "projects"}
    return {value for kind, values in belongings.items() if kind not in common for value in values}


async def one_of_everything(client: httpx.AsyncClient, project: str, secret: str) -> Belongings:
    """Makes it; `secret` is in every text and name."""
    made = _Maker(client, project, secret)
    agent, asking = await made.agent(), await made.agent(asks=True)
    conversation = await made.post("/v1/conversations", params={"agent_id": agent}, json={"summary": f"about {secret}"})
    archive = await made.post("/v1/archives", json={"name": f"archive of {secret}"})
    await made.patch(f"/v1/agents/{agent}/archives/attach/{archive}")
    passage = await made.post(f"/v1/archives/{archive}/passages", json={"text": f"{secret} is here", "tags": [secret]})
    runs = [
        await made.run(f"/v1/agents/{agent}", {"turns": [{"text": f"I know {secret}."}]}),
        await made.run(f"/v1/agents/{agent}", {"turns": [{"error": "server"}]}),
        await made.run(f"/v1/agents/{agent}", {"turns": [{"text": "first", "calls": [_call(f"use_{secret}")]}]}),
        await made.run(f"/v1/conversations/{conversation}", {"turns": [{"text": f"Here is {secret}, too."}]}),
        await made.run(f"/v1/agents/{asking}", {"turns": [{"calls": [_call(f"launch_{secret}")]}]}),
    ]
    messages = await made.ids_of("/v1/messages", limit=100)
    hears = {"name": f"for {secret}", "url": f"http://127.0.0.1:60999/{secret}", "event_types": ["response.failed"]}
    webhook = await made.post("/openai/v1/webhook_endpoints", json=hears)
    place = {"mcp_server_type": "streamable_http", "server_url": f"http://127.0.0.1:60999/{secret}"}
    mcp_server = await made.post("/v1/mcp-servers", json={"server_name": f"server_{secret}", "config": place})
    config = {"manager_type": "sleeptime", "manager_agent_id": agent, "sleeptime_agent_frequency": 0}
    group = await made.post(
        "/v1/groups", json={"description": f"for {secret}", "agent_ids": [asking], "manager_config": config}
    )
    approvals = (await client.get("/v1/approvals")).json()
    assert approvals, "no call waits for a person"
    agent_file = (await client.get(f"/v1/agents/{agent}/export")).text
    key = await made.post("/v1/admin/keys", json={"name": f"key of {secret}", "scopes": ["read"]})
    token = (await client.post(f"/v1/runs/{runs[0]}/stream-token")).json()["token"]
    return {
        "agents": [agent, asking],
        "api_keys": [key],
        "audit_events": await made.ids_of("/v1/admin/audit", limit=100),
        "conversations": [conversation],
        "threads": [conversation, agent, asking],
        "blocks": made.blocks,
        "labels": [f"block_{secret}"],
        "tools": made.tools,
        "tool_names": [f"use_{secret}", f"launch_{secret}"],
        "names": [f"agent of {secret}", f"archive of {secret}", f"use_{secret}"],
        "archives": [archive],
        "passages": [passage],
        "runs": runs,
        "steps": await made.ids_of("/v1/steps", limit=100),
        "messages": messages,
        "approvals": [approval["id"] for approval in approvals],
        "tool_calls": [approval["tool_call_id"] for approval in approvals],
        "tags": [secret],
        "words": [secret],
        "otids": made.otids,
        "keys": made.keys,
        "tokens": [token],
        "webhooks": [webhook],
        "groups": [group],
        "mcp_servers": [mcp_server],
        "mcp_server_names": [f"server_{secret}"],
        "files": [agent_file],
        "projects": [project],
    }


def _call(tool: str) -> dict[str, Any]:
    return {"name": tool, "arguments": {"target": "moon"}}


async def unfinished_runs(database: Database, project: str, belongings: Belongings) -> list[str]:
    """A run that waits in its queue, and one that runs, as far as SQL knows. No worker learns of them."""
    agent_id, thread_id = belongings["agents"][0], belongings["conversations"][0]
    queued, running = _some_run(project, agent_id, agent_id), _some_run(project, thread_id, agent_id)
    store = RunStore(database)
    await store.submit(queued, [_said("I wait.")])
    submitted = await store.submit(running, [_said("I run.")])
    claimed = await store.claim(running.id, submitted.run.dispatch, IdMaker().claim(), SystemClock().now())
    assert claimed is not None
    return [queued.id, running.id]


def _some_run(project: str, thread_id: str, agent_id: str) -> Run:
    return Run(
        id=IdMaker().run(),
        project_id=ProjectId(project),
        agent_id=AgentId(agent_id),
        thread_id=ThreadId(thread_id),
        created_at=SystemClock().now(),
    )


def _said(text: str) -> NewMessage:
    return NewMessage(id=IdMaker().message(), created_at=SystemClock().now(), body=UserMessage(content=text))


class _Maker:
    def __init__(self, client: httpx.AsyncClient, project: str, secret: str) -> None:
        self._client = client
        self._secret = secret
        self.tools: list[str] = []
        self.blocks: list[str] = []
        self.otids: list[str] = []
        self.keys: list[str] = []

    async def post(self, path: str, **sent: Any) -> str:
        return await self._made("POST", path, **sent)

    async def patch(self, path: str, **sent: Any) -> None:
        answer = await self._client.patch(path, **sent)
        assert answer.status_code == 200, answer.text

    async def _made(self, method: str, path: str, **sent: Any) -> str:
        answer = await self._client.request(method, path, **sent)
        assert answer.status_code == 200, answer.text
        return answer.json()["id"]

    async def agent(self, *, asks: bool = False) -> str:
        """An agent with a tool, a block, a tag and a secret of its own; every run of it begins with an empty
        context."""
        verb = "launch" if asks else "use"
        source = LAUNCH.replace("def launch", f"def {verb}_{self._secret}")
        self.tools.append(await self._made("PUT", "/v1/tools", json={"source_code": source, "tags": [self._secret]}))
        if asks:
            await self.patch(f"/v1/tools/{self.tools[-1]}", json={"default_requires_approval": True})
        label = f"block_{self._secret}" if not asks else "human"
        self.blocks.append(await self.post("/v1/blocks", json={"label": label, "value": f"knows {self._secret}"}))
        return await self.post(
            "/v1/agents",
            json={
                "name": f"agent of {self._secret}",
                "model": "builtin/scripted",
                "tool_ids": self.tools[-1:],
                "block_ids": self.blocks[-1:],
                "tags": [self._secret],
                "secrets": {"TOKEN": self._secret},
                "include_base_tools": False,
                "message_buffer_autoclear": not asks,
            },
        )

    async def run(self, of: str, script: dict[str, Any]) -> str:
        """A run that has ended or waits for a person; its names are kept."""
        self.otids.append(f"otid-{len(self.otids)}-{self._secret}")
        self.keys.append(f"key-{len(self.keys)}-{self._secret}")
        message = {"role": "user", "content": json.dumps(script), "otid": self.otids[-1]}
        headers = {"Idempotency-Key": self.keys[-1]}
        answer = await self._client.post(
            f"{of}/messages", json={"messages": [message], "streaming": True, "background": True}, headers=headers
        )
        assert answer.status_code == 200, answer.text
        found = ID.search(answer.text[answer.text.index('"run_id"') :])
        assert found is not None
        return RunId(found.group())

    async def ids_of(self, path: str, **params: Any) -> list[str]:
        listed = (await self._client.get(path, params=params)).json()
        found = list(dict.fromkeys(one["id"] for one in listed))
        assert found, f"nothing at {path}"
        return found


async def is_idle(client: httpx.AsyncClient) -> None:
    """Waits until no run of the project is active."""

    async def is_over() -> bool:
        return (await client.get("/v1/runs/active")).json() == []

    await wait_until(is_over, description="the project's runs to end")
