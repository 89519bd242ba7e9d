"""Clients that send again what they have sent: what cannot change is asked once, and one message is one run."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from letta_client import APIStatusError, AsyncLetta

from tests.kit.model_server import Failure, Turn
from tests.kit.product import Product
from tests.kit.tools import PLAIN_TOOLS

SOURCE = 'def ping() -> str:\n    """Pings."""\n    return "pong"\n'

COUNTS = '''
def count(log: str) -> str:
    """
    Counts its calls.

    Args:
        log (str): The file that it counts in.
    """
    with open(log, "a") as calls:
        calls.write("x")
    return str(len(open(log).read()))
'''


@pytest.fixture
def settings() -> dict[str, Any]:
    """Tools here leave marks in files of the test, which no walls allow."""
    return PLAIN_TOOLS


class Sent:
    """What a client has sent, and how to lose answers on their way back to it."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.answers_to_lose = 0

    async def note(self, request: httpx.Request) -> None:
        self.paths.append(request.url.path)

    async def lose(self, response: httpx.Response) -> None:
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            await response.aread()
            raise httpx.ReadTimeout("lost", request=response.request)


@asynccontextmanager
async def default_client(product: Product, sent: Sent) -> AsyncGenerator[AsyncLetta]:
    """The SDK with its own ideas about sending again."""
    hooks: dict[str, list[Any]] = {"request": [sent.note], "response": [sent.lose]}
    async with httpx.AsyncClient(base_url=product.base_url, timeout=60, event_hooks=hooks) as http:
        yield AsyncLetta(base_url=product.base_url, api_key="none", http_client=http)


async def runs_of(product: Product, agent_id: str) -> list[dict[str, Any]]:
    return (await product.http.get("/v1/runs/", params={"agent_id": agent_id})).json()


@pytest.mark.parametrize("kind", ["rate_limit", "auth", "bad_request", "context", "server", "overloaded"])
async def test_a_provider_that_is_down_costs_one_run(product: Product, kind: Any) -> None:
    """It was three runs: the SDK took the failed run's status for one that could change."""
    product.models.play(Turn(failure=Failure(kind)))
    agent, sent = await product.agent(), Sent()

    async with default_client(product, sent) as client:
        with pytest.raises(APIStatusError):
            await client.agents.messages.create(agent.id, input="Hello")

    assert len(sent.paths) == 1
    assert [run["status"] for run in await runs_of(product, agent.id)] == ["failed"]


async def test_what_a_server_does_not_have_is_asked_once(product: Product) -> None:
    sent = Sent()
    async with default_client(product, sent) as client:
        with pytest.raises(APIStatusError) as refused:
            await client.post("/v1/folders/", cast_to=object, body={})

    assert (refused.value.status_code, len(sent.paths)) == (501, 1)


async def test_a_conflict_that_waits_for_a_person_is_asked_once(product: Product) -> None:
    tool = await product.tool(SOURCE, default_requires_approval=True)
    agent, sent = await product.agent(tools=[tool]), Sent()
    product.models.call("ping")
    await product.client.agents.messages.create(agent.id, input="Ping")

    async with default_client(product, sent) as client:
        with pytest.raises(APIStatusError) as refused:
            await client.agents.messages.create(agent.id, input="And now?")

    assert (refused.value.status_code, len(sent.paths)) == (409, 1)
    assert len(await runs_of(product, agent.id)) == 1


async def test_a_message_whose_answer_was_lost_is_sent_again_and_is_one_run(product: Product) -> None:
    """A `messages.create` that timed out made three runs."""
    product.models.say("Once.")
    agent, sent = await product.agent(), Sent()
    sent.answers_to_lose = 2

    async with default_client(product, sent) as client:
        answer = await client.agents.messages.create(agent.id, input="Hello")

    assert [message.content for message in answer.messages if message.message_type == "assistant_message"] == ["Once."]
    assert len(sent.paths) == 3
    assert len(await runs_of(product, agent.id)) == len(product.models.requests) == 1


async def test_a_conversation_that_is_busy_with_the_first_try_gives_its_stream(product: Product) -> None:
    product.models.say("Once.")
    agent, sent = await product.agent(), Sent()
    conversation = await product.client.conversations.create(agent_id=agent.id)
    sent.answers_to_lose = 1

    async with default_client(product, sent) as client:
        stream = await client.conversations.messages.create(conversation.id, input="Hello")
        shown = [chunk async for chunk in stream]

    assert shown
    assert len(sent.paths) == 2
    assert len(await runs_of(product, agent.id)) == 1


async def test_a_call_of_a_tool_whose_answer_was_lost_is_made_once(product: Product, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    agent, sent = await product.agent(tools=[await product.tool(COUNTS)]), Sent()
    sent.answers_to_lose = 2

    async with default_client(product, sent) as client:
        result = await client.agents.tools.run("count", agent_id=agent.id, args={"log": str(log)})

    assert result.func_return == "1"
    assert len(sent.paths) == 3
    [run] = await runs_of(product, agent.id)
    keyed = {"Idempotency-Key": "k1"}
    path = f"/v1/agents/{agent.id}/tools/count/run"
    named = [await product.http.post(path, json={"args": {"log": str(log)}}, headers=keyed) for _ in range(2)]
    assert [answer.json()["func_return"] for answer in named] == ["2", "2"]
    refused = await product.http.post(path, json={"args": {"log": "another"}}, headers=keyed)
    assert (refused.status_code, "the Idempotency-Key 'k1'" in refused.text) == (409, True)
    assert refused.json()["run_id"] != run["id"]


async def test_a_question_whose_answer_was_lost_is_asked_once(product: Product) -> None:
    product.models.play(Turn(text="First."), Turn(text="Second."), Turn(text="Third."))
    agent, sent = await product.agent(), Sent()
    path, keyed = f"/v1/agents/{agent.id}/generate", {"Idempotency-Key": "k1"}
    sent.answers_to_lose = 2

    async with default_client(product, sent) as client:
        result: Any = await client.post(path, body={"prompt": "Say."}, cast_to=object)

    assert (result["content"], len(sent.paths), len(await runs_of(product, agent.id))) == ("First.", 3, 1)
    named = [await product.http.post(path, json={"prompt": "Say."}, headers=keyed) for _ in range(2)]
    assert [answer.json()["content"] for answer in named] == ["Second.", "Second."]
    assert named[0].json() == named[1].json()
    refused = await product.http.post(path, json={"prompt": "Sing."}, headers=keyed)
    assert (refused.status_code, "the Idempotency-Key 'k1'" in refused.text) == (409, True)
    assert len(product.models.requests) == 2


def tried(number: int, timeout_s: float = 60) -> dict[str, str]:
    return {"X-Stainless-Retry-Count": str(number), "X-Stainless-Read-Timeout": str(timeout_s)}


async def test_two_equal_messages_that_are_sent_for_the_first_time_are_two_runs(product: Product) -> None:
    agent = await product.agent(model="builtin/echo")
    path = f"/v1/agents/{agent.id}/messages/async"

    sent = [(await product.http.post(path, json={"input": "Again"}, headers=tried(0))).json()["id"] for _ in range(2)]
    again = (await product.http.post(path, json={"input": "Again"}, headers=tried(1))).json()["id"]

    assert len(set(sent)) == 2
    assert again == sent[-1]


async def test_a_first_try_that_never_arrived_makes_the_second_the_first(product: Product) -> None:
    agent = await product.agent(model="builtin/echo")
    path = f"/v1/agents/{agent.id}/messages/async"

    sent = [
        (await product.http.post(path, json={"input": "Hello"}, headers=tried(number))).json()["id"]
        for number in (1, 2)
    ]
    other = (await product.http.post(path, json={"input": "Hello?"}, headers=tried(2))).json()["id"]

    assert sent[0] == sent[1] != other


async def test_the_same_otid_with_other_content_is_refused(product: Product) -> None:
    """The second message was lost, with a 200 and the first one's answer."""
    product.models.play(Turn(text="A?"), Turn(text="C?"))
    agent = await product.agent()
    path = f"/v1/agents/{agent.id}/messages"

    def body(content: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": content, "otid": "o1"}]}

    first = await product.http.post(path, json=body("A"))
    other = await product.http.post(path, json=body("B"))
    again = await product.http.post(path, json=body("A"))

    assert other.status_code == 409
    assert "the otid 'o1'" in other.json()["detail"]
    assert other.json()["run_id"] == first.json()["messages"][0]["run_id"]
    assert again.json()["messages"] == first.json()["messages"]
    keyed = {"Idempotency-Key": "k1"}
    assert (await product.http.post(path, json={"input": "C"}, headers=keyed)).status_code == 200
    refused = await product.http.post(path, json={"input": "D"}, headers=keyed)
    assert (refused.status_code, "the Idempotency-Key 'k1'" in refused.text) == (409, True)


async def test_a_message_without_an_otid_has_one_that_stays(product: Product) -> None:
    agent = await product.agent(model="builtin/echo")
    await product.client.agents.messages.create(agent.id, input="Hello")

    [otid] = [m["otid"] for m in await product.history(agent.id) if m["message_type"] == "user_message"]
    [run] = await runs_of(product, agent.id)
    messages = (await product.http.get(f"/v1/runs/{run['id']}/messages")).json()

    assert otid
    assert [m["otid"] for m in messages if m["message_type"] == "user_message"] == [otid]
