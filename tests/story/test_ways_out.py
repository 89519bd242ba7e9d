"""What an error names to `resolve` it can be sent as it stands, wherever it is said, and it helps."""

import json
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.product.waiting_calls import waiting
from tests.kit.tools import LAUNCH

pytestmark = pytest.mark.shared_product

SENSOR: dict[str, Any] = {
    "name": "read_sensor", "description": "Reads.", "parameters": {"type": "object", "properties": {}},
}  # fmt: skip
PERSONS, CLIENTS = Call("launch", {"target": "moon"}), Call("read_sensor", {})


class Place(NamedTuple):
    """A history whose calls wait."""

    product: Product
    agent_id: str
    conversation_id: str | None

    @property
    def messages(self) -> str:
        """Where it is written to."""
        return (
            f"/v1/agents/{self.agent_id}/messages"
            if self.conversation_id is None
            else f"/v1/conversations/{self.conversation_id}/messages"
        )

    async def post(self, path: str, body: object) -> Any:
        return (await self.product.http.post(path, json=body)).json()


async def by_a_message(place: Place) -> str:
    return (await place.post(place.messages, {"input": "Well?"}))["detail"]["resolve"]


async def by_a_stream(place: Place) -> str:
    return (await place.post(place.messages, {"input": "Well?", "streaming": True}))["detail"]["resolve"]


async def by_the_route_for_streams(place: Place) -> str:
    return (await place.post(f"/v1/agents/{place.agent_id}/messages/stream", {"input": "Well?"}))["detail"]["resolve"]


async def by_injecting(place: Place) -> str:
    return (await place.post(place.messages, {"input": "Well?", "if_busy": "inject"}))["detail"]["resolve"]


async def refused_run(place: Place) -> dict[str, Any]:
    return await place.post(f"/v1/agents/{place.agent_id}/messages/async", {"input": "Well?"})


async def by_a_run(place: Place) -> str:
    return (await refused_run(place))["metadata"]["error"]["resolve"]


async def by_the_stream_of_a_run(place: Place) -> str:
    run = await refused_run(place)
    replay = await place.product.http.post(f"/v1/runs/{run['id']}/stream", json={})
    [frame] = [json.loads(line[6:]) for line in replay.text.splitlines() if "error_message" in line]
    return frame["resolve"]


async def by_the_default_conversation(place: Place) -> str:
    path = "/v1/conversations/default/messages"
    return (await place.post(path, {"input": "Well?", "agent_id": place.agent_id}))["detail"]["resolve"]


async def by_a_chat_completion(place: Place) -> str:
    body = {"model": place.conversation_id or place.agent_id, "messages": [{"role": "user", "content": "Well?"}]}
    return (await place.post("/v1/chat/completions", body))["error"]["resolve"]


async def by_the_sentence_of_a_chat_completion(place: Place) -> str:
    """For clients that show nothing else. What it says of messages with the role `tool` is another way."""
    body = {"model": place.conversation_id or place.agent_id, "messages": [{"role": "user", "content": "Well?"}]}
    return (await place.post("/v1/chat/completions", body))["error"]["message"].partition("; else ")[2]


async def by_a_summary(place: Place) -> str:
    path = (
        f"/v1/agents/{place.agent_id}/summarize"
        if place.conversation_id is None
        else f"/v1/conversations/{place.conversation_id}/compact"
    )
    return (await place.post(path, {}))["detail"]["resolve"]


async def by_the_parked_run(place: Place) -> str:
    [parked] = {approval["run_id"] for approval in await waiting(place.product, agent_id=place.agent_id)}
    return (await place.product.run(parked))["metadata"]["waiting"]["resolve"]


async def by_the_hint(place: Place) -> str:
    return (await place.post(place.messages, {"input": "Well?"}))["hint"]


ANYWHERE = (
    by_a_message, by_a_stream, by_injecting, by_a_chat_completion, by_the_sentence_of_a_chat_completion, by_a_summary,
    by_the_parked_run, by_the_hint,
)  # fmt: skip
OF_AGENTS = (by_the_route_for_streams, by_a_run, by_the_stream_of_a_run, by_the_default_conversation)
Source = Callable[[Place], Awaitable[str]]


def requests_in(resolve: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each request that a sentence names: paths, and behind them the bodies that go with each of these."""
    paths: list[str] = []
    bodies: list[dict[str, Any]] = []
    at = 0
    while found := re.compile(r"POST (/v1/[^\s;,]+)|\{").search(resolve, at):
        at = found.end()
        if found[1]:
            if bodies:
                yield from ((path, body) for path in paths for body in bodies)
                paths, bodies = [], []
            paths.append(found[1])
            continue
        body, at = json.JSONDecoder().raw_decode(resolve, found.start())
        bodies.append(body)
    yield from ((path, body) for path in paths for body in bodies or [{}])


async def waiting_place(product: Product, *calls: Call, in_conversation: bool) -> Place:
    tool = await product.tool(LAUNCH, default_requires_approval=True)
    agent = await product.agent(tools=[tool])
    conversation: str | None = None
    if in_conversation:
        made = await product.http.post("/v1/conversations/", params={"agent_id": agent.id}, json={})
        conversation = made.json()["id"]
    place = Place(product, agent.id, conversation)
    product.models.play(Turn(calls=list(calls)))
    sent = await product.http.post(place.messages, json={"input": "Go.", "client_tools": [SENSOR]})
    assert sent.status_code == 200, sent.text
    return place


SOURCES = [
    *((source, place) for source in ANYWHERE for place in (False, True)),
    *((source, False) for source in OF_AGENTS),
]
CALLS = ((PERSONS,), (CLIENTS,), (PERSONS, CLIENTS))
# What asks something else by a chat completion lets go of calls that were its own to make.
CASES = [
    pytest.param(
        source,
        in_conversation,
        calls,
        id="-".join([source.__name__, "conversation" if in_conversation else "agent", *(call.name for call in calls)]),
        marks=() if calls == CALLS[0] or source is by_a_message else pytest.mark.exhaustive,
    )
    for source, in_conversation in SOURCES
    for calls in CALLS
    if calls != (CLIENTS,) or "chat" not in source.__name__
]


@pytest.mark.parametrize(("source", "in_conversation", "calls"), CASES)
async def test_what_an_error_named_to_resolve_it_could_not_be_sent_so(
    product: Product, source: Source, in_conversation: bool, calls: tuple[Call, ...]
) -> None:
    """It named approvals of calls that only the client can answer, and an ellipsis in the place of each call's id."""
    number = 0
    while True:
        place = await waiting_place(product, *calls, in_conversation=in_conversation)
        before = await waiting(product, agent_id=place.agent_id)
        ways = list(requests_in(await source(place)))
        assert await waiting(product, agent_id=place.agent_id) == before, "to ask changes nothing"
        assert len(ways) == 2 * len(calls) + 2, ways
        path, body = ways[number]
        product.models.say("Well.")
        answer = await product.http.post(path, json=body)
        assert answer.status_code == 200, (path, body, answer.text)
        left = await waiting(product, agent_id=place.agent_id)
        decides_one = path.startswith("/v1/approvals/")
        assert len(left) == (len(calls) - 1 if decides_one else 0)
        if decides_one and answer.json()["run"] is not None:
            await product.ended(answer.json()["run"]["id"])
        product.models.forget()
        number += 1
        if number == len(ways):
            return
