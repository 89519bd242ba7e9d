"""A key of one agent and a page with a token hear users and agents, and not what the application tells the model: in no
stream, in no list of a way for pages, and nothing that leads to other agents or to the project's own receivers."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from shared.sql.run_tables import runs
from tests.kit.keys import KeyMaker
from tests.kit.model_server import Call, ModelServer, Turn
from tests.kit.product import Product, running_product
from tests.kit.product.callback_receiver import CallbackReceiver
from tests.kit.services.databases import open_database
from tests.kit.services.redis_servers import RedisService
from tests.kit.wait_until import wait_until

CONFIGURED = "a-long-key-of-the-operator"
SECRET, SAID = "PLUM-7", "What does it cost?"
TOLD = [{"role": "system", "content": f"The code is {SECRET}."}, {"role": "user", "content": SAID}]
LOOK = 'def look() -> str:\n    """Looks."""\n    return "seen"\n'


@dataclass(frozen=True)
class Setup:
    """An agent with a conversation; a key that reads the agent, one that writes to it, and a page's token."""

    product: Product
    agent: str
    conversation: str
    read: dict[str, str]
    write: dict[str, str]
    page: dict[str, str]

    @property
    def messages(self) -> str:
        return f"/v1/conversations/{self.conversation}/messages"

    async def post(self, path: str, body: Any, **rest: Any) -> Any:
        answer = await self.product.http.post(path, json=body, **rest)
        assert answer.is_success, answer.text
        return answer

    async def run_ids(self) -> list[str]:
        found = await self.product.http.get("/v1/runs", params={"agent_id": self.agent, "order": "asc"})
        return [run["id"] for run in found.json()]

    async def heard(self) -> dict[str, str]:
        """What strangers are shown of the conversation, by each way."""
        of_run = [f"/v1/runs/{run_id}" for run_id in await self.run_ids()]
        chat = f"/ai-sdk/{self.agent}/chat/{self.conversation}"
        ways = [
            *(("GET", f"/v1/conversations/{self.conversation}/events?{query}") for query in ("follow=false",)),
            *(
                ("GET", f"/ag-ui/{self.agent}/connect?threadId={self.conversation}{more}")
                for more in ("", "&after=0.0.0")
            ),
            *(("GET", f"{chat}?sdk={version}") for version in (5, 6, 7)),
            ("GET", f"{chat}/stream?after=1.1.0"),
        ]
        own = [*(("GET", f"{one}/stream") for one in of_run), *(("POST", f"{one}/stream") for one in of_run)]
        asked = [(self.read, way) for way in (*ways, *own)] + [(self.page, way) for way in ways]
        shown: dict[str, str] = {}
        for number, (key, (method, path)) in enumerate(asked):
            answer = await self.product.http.request(method, path, headers=key)
            assert answer.status_code in (200, 204), f"{path} {answer.text}"
            shown[f"{number} {method} {path}"] = answer.text
        return shown

    def without(self, shown: dict[str, str]) -> list[str]:
        """The ways by which the secret was shown."""
        return [way for way, text in shown.items() if SECRET in text]


@pytest.fixture
async def setup(sqlite_url: str) -> AsyncGenerator[Setup]:
    redis = RedisService(None)
    async with (
        open_database(sqlite_url) as database,
        ModelServer() as models,
        running_product(database, redis.client(), models, settings={"api_keys": f"default={CONFIGURED}"}) as product,
    ):
        http = product.http
        http.headers["Authorization"] = f"Bearer {CONFIGURED}"
        tool = await http.put("/v1/tools", json={"source_code": LOOK, "default_requires_approval": True})
        made = {"model": "openai/gpt-4o-mini", "tool_ids": [tool.json()["id"]], "include_base_tools": False}
        agent = (await http.post("/v1/agents", json=made)).json()["id"]
        conversation = (await http.post(f"/v1/conversations?agent_id={agent}")).json()["id"]
        read, write = [await KeyMaker(database).headers(level, f"agent:{agent}") for level in ("read", "write")]
        token = (await http.post(f"/v1/agents/{agent}/page-token", json={"thread_id": conversation})).json()["token"]
        yield Setup(product, agent, conversation, read, write, {"Authorization": f"Bearer {token}"})
    await redis.close()


async def test_what_the_application_told_the_model_was_in_the_stream_of_its_conversation(setup: Setup) -> None:
    setup.product.models.play(Turn(text="Three crowns."))
    await setup.post(setup.messages, {"messages": TOLD, "streaming": False})

    shown = await setup.heard()

    assert setup.without(shown) == []
    assert [
        way for way, text in shown.items() if SAID not in text and "/v1/runs" not in way and "after" not in way
    ] == []
    own = await setup.product.http.get(f"/v1/conversations/{setup.conversation}/events", params={"follow": "false"})
    assert SECRET in own.text, "the project sees what it has told"


async def test_what_was_injected_for_the_model_was_shown_as_a_users_words(setup: Setup) -> None:
    resume = asyncio.Event()
    setup.product.models.play(Turn(text="One moment.", silent_before_headers=60, resume=resume), Turn(text="Three."))
    sending = asyncio.create_task(setup.product.http.post(setup.messages, json={"input": "Hello", "streaming": False}))
    await wait_until(lambda: setup.product.models.requests, description="the model to be asked")
    [run_id] = await setup.run_ids()
    await setup.post(f"/v1/runs/{run_id}/inject", {"messages": TOLD})
    resume.set()
    assert (await sending).is_success

    shown = await setup.heard()

    assert setup.without(shown) == []
    assert SECRET in str(setup.product.models.requests[-1].body), "the model was told"
    streams = [text for way, text in shown.items() if "/stream" in way or "/events" in way or "/connect" in way]
    assert [text for text in streams if text and SAID not in text] == [], "a user's words are shown"
    listed = (await setup.product.http.get(setup.messages)).json()
    assert [one["message_type"] for one in listed if SECRET in str(one.get("content"))] == ["system_message"]


async def test_what_waits_in_the_queue_for_the_model_was_shown_to_pages(setup: Setup) -> None:
    resume = asyncio.Event()
    setup.product.models.play(Turn(text="First.", silent_before_headers=60, resume=resume), Turn(text="Second."))
    headers = {"X-Holdfast-If-Busy": "enqueue"}
    async with asyncio.TaskGroup() as group:
        for number, body in enumerate(({"input": "Hello"}, {"messages": TOLD})):
            sent = setup.product.http.post(setup.messages, json={**body, "streaming": False}, headers=headers)
            group.create_task(sent)
            await wait_until(lambda wanted=number + 1: _count(setup, wanted), description="the submission to be stored")
        await wait_until(lambda: setup.product.models.requests, description="the model to be asked")
        shown = await _chats(setup)
        resume.set()
    assert [text for text in shown if SECRET in text] == []
    assert [text for text in shown if SAID not in text] == []


async def test_what_was_told_in_a_turn_that_failed_at_once_was_shown_to_pages(setup: Setup) -> None:
    setup.product.models.play(Turn(calls=[Call("look", {})]))
    default = f"/v1/agents/{setup.agent}/messages"
    await setup.post(default, {"input": "Look"})
    refused = await setup.post(f"{default}/async", {"messages": TOLD})
    assert refused.json()["status"] == "failed"
    answers = [
        await setup.product.http.get(f"/ai-sdk/{setup.agent}/chat/default", params={"sdk": sdk}, headers=setup.read)
        for sdk in (5, 6, 7)
    ]
    assert [one.text for one in answers if SECRET in one.text or SAID not in one.text] == []


async def _count(setup: Setup, wanted: int) -> bool:
    return len(await setup.run_ids()) == wanted


async def _chats(setup: Setup) -> list[str]:
    path = f"/ai-sdk/{setup.agent}/chat/{setup.conversation}"
    return [(await setup.product.http.get(path, headers=key)).text for key in (setup.read, setup.page)]


async def test_a_stranger_was_shown_the_address_of_the_projects_receiver(setup: Setup) -> None:
    setup.product.models.play(Turn(text="One."), Turn(text="Two."))
    of_project = {"input": "Hello", "callback_url": f"http://127.0.0.1:9999/hook?token={SECRET}"}
    path = f"/v1/agents/{setup.agent}/messages/async"
    first = (await setup.post(path, of_project)).json()["id"]
    await setup.product.ended(first)
    mine = (
        await setup.post(path, {"input": "Hi", "callback_url": "http://127.0.0.1:9999/mine"}, headers=setup.write)
    ).json()
    await setup.product.ended(mine["id"])

    for key in (setup.read, setup.write):
        for question in (f"/{first}", f"?agent_id={setup.agent}", f"/active?agent_id={setup.agent}"):
            answer = await setup.product.http.get(f"/v1/runs{question}", headers=key)
            assert (answer.status_code, SECRET in answer.text) == (200, False), question
    assert (await setup.product.run(first))["callback_url"] == of_project["callback_url"]
    own = await setup.product.http.get(f"/v1/runs/{mine['id']}", headers=setup.write)
    assert own.json()["callback_url"] == "http://127.0.0.1:9999/mine", "whoever has named it sees it"
    deleted = await setup.product.http.delete(f"/v1/runs/{first}", headers=setup.write)
    assert (deleted.status_code, SECRET in deleted.text) == (200, False)


async def test_a_key_of_one_agent_learned_of_others_by_the_groups_of_its_own(setup: Setup) -> None:
    other = (await setup.post("/v1/agents", {"model": "openai/gpt-4o-mini"})).json()["id"]
    manager = {"manager_type": "sleeptime", "manager_agent_id": setup.agent}
    group = {"agent_ids": [other], "description": "thinks", "manager_config": manager}
    await setup.post("/v1/groups", group)
    of_agent = f"/v1/agents/{setup.agent}/groups"
    assert other in (await setup.product.http.get(of_agent)).text
    for key in (setup.read, setup.write):
        assert (await setup.product.http.get(of_agent, headers=key)).json() == []


async def test_a_key_of_one_agent_could_tell_whether_a_run_of_another_had_been_pruned(setup: Setup) -> None:
    setup.product.models.play(Turn(text="One."), Turn(text="Two."))
    other = (await setup.post("/v1/agents", {"model": "openai/gpt-4o-mini"})).json()["id"]
    sent = [await setup.post(f"/v1/agents/{one}/messages/async", {"input": "Hello"}) for one in (setup.agent, other)]
    own, foreign = [one.json()["id"] for one in sent]
    for run_id in (own, foreign):
        await setup.product.ended(run_id)
    async with setup.product.context.database.write() as connection:
        await connection.execute(sa.update(runs).values(pruned_at=datetime.now(UTC)))
        await connection.execute(sa.text("DELETE FROM steps"))

    async def warning(run_id: str, **headers: str) -> str | None:
        question: dict[str, Any] = {"agent_id": setup.agent, "run_id": run_id}
        answer: httpx.Response = await setup.product.http.get("/v1/steps", params=question, headers=headers)
        assert answer.json() == []
        return answer.headers.get("warning")

    assert "pruned" in (await warning(own, **setup.read) or "")
    assert await warning(foreign, **setup.read) is None


async def test_the_receiver_of_a_stranger_was_told_what_the_application_told_the_model(setup: Setup) -> None:
    resume = asyncio.Event()
    for types in (None, ["system_message", "user_message", "assistant_message"]):
        resume.clear()
        setup.product.models.play(Turn(text="One.", silent_before_headers=60, resume=resume), Turn(text="Three."))
        async with CallbackReceiver() as receiver:
            asked = {"input": "Hello", "callback_url": receiver.url, "include_return_message_types": types}
            path = f"/v1/agents/{setup.agent}/messages/async"
            before = len(setup.product.models.requests)
            run_id = (await setup.post(path, asked, headers=setup.write)).json()["id"]
            await wait_until(
                lambda many=before: len(setup.product.models.requests) > many, description="the model to be asked"
            )
            await setup.post(f"/v1/runs/{run_id}/inject", {"messages": TOLD})
            resume.set()
            await wait_until(lambda got=receiver: got.received, description="the callback")
            told = str(receiver.received[0].body)
        assert (SAID in told, SECRET in told) == (True, False)


async def test_a_stranger_who_compacted_a_response_was_shown_what_the_application_told_the_model(setup: Setup) -> None:
    setup.product.models.play(Turn(text="Three."), Turn(text="They asked."), Turn(text="They asked."))
    told = await setup.post("/openai/v1/responses", {"model": setup.agent, "input": TOLD})
    asked = {"model": setup.agent, "previous_response_id": told.json()["id"]}
    strangers = await setup.post("/openai/v1/responses/compact", asked, headers=setup.write)
    own = await setup.post("/openai/v1/responses/compact", asked)
    assert [(SAID in one.text, SECRET in one.text) for one in (strangers, own)] == [(True, False), (True, True)]
