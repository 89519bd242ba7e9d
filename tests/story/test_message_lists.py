"""Messages as clients read them: of an agent, of a run, of all agents; by id, by type, by words."""

from typing import Any

import pytest
from httpx import Response

from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.tools import ROLL_DICE
from tests.story.test_conversations import begin, say

pytestmark = pytest.mark.shared_product


def texts(answer: Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [message["content"] for message in answer.json() if message["message_type"] != "system_message"]


async def tell(product: Product, agent_id: str, text: str, **fields: Any) -> dict[str, Any]:
    """The whole answer to a message for the agent's default history."""
    answer = await product.http.post(f"/v1/agents/{agent_id}/messages", json={"input": text, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_an_agents_list_lacked_its_conversations(product: Product) -> None:
    agent = await product.agent()
    path = f"/v1/agents/{agent.id}/messages"
    conversation = await begin(product, agent.id)
    await tell(product, agent.id, "one")
    await say(product, conversation, "two")
    await tell(product, agent.id, "three")
    await tell(product, (await product.agent()).id, "somebody else's")

    everything = ["one", "OK.", "two", "OK.", "three", "OK."]
    assert texts(await product.http.get(path)) == everything
    assert texts(await product.http.get(path, params={"order": "asc"})) == everything
    assert texts(await product.http.get(path, params={"limit": 3})) == ["OK.", "three", "OK."]
    newest = (await product.http.get(path)).json()[-2]["id"]
    assert texts(await product.http.get(path, params={"limit": 2, "before": newest})) == ["two", "OK."]
    of_one = await product.http.get(path, params={"conversation_id": conversation})
    assert texts(of_one) == ["two", "OK."]
    assert texts(await product.http.get(path, params={"conversation_id": "default"})) == ["one", "OK.", "three", "OK."]


async def test_a_list_between_two_messages_in_the_other_order_had_all_newer_ones(
    product: Product,
) -> None:
    agent = await product.agent()
    path = f"/v1/agents/{agent.id}/messages"
    for text in ("one", "two", "three"):
        await tell(product, agent.id, text)
    ids = [message["id"] for message in (await product.http.get(path)).json()]

    async def between(after: int, before: int) -> list[str]:
        found = await product.http.get(path, params={"after": ids[after], "before": ids[before]})
        return [message["id"] for message in found.json()]

    assert await between(1, 4) == ids[2:4]
    assert await between(4, 1) == await between(2, 2) == []


async def test_every_list_ignored_include_return_message_types(product: Product) -> None:
    agent = await product.agent(tools=[await product.tool(ROLL_DICE)])
    conversation = await begin(product, agent.id)
    for _ in range(3):
        product.models.play(Turn(reasoning="hm", calls=[Call("roll_dice", {"num_sides": 6})]), Turn(text="Six."))
        await say(product, conversation, "roll")
    types = ["reasoning_message", "assistant_message"]
    for path in (f"/v1/agents/{agent.id}/messages", f"/v1/conversations/{conversation}/messages", "/v1/messages"):
        params = {"limit": 4, "order": "asc", "include_return_message_types": types}
        listed = await product.http.get(path, params=params)
        assert [message["message_type"] for message in listed.json()] == [*types, *types], "the page is filled"
        refused = await product.http.get(path, params={"include_return_message_types": "whatever"})
        assert refused.status_code == 422


async def test_a_runs_messages_ignored_the_types_that_its_submission_asked_for(product: Product) -> None:
    agent = await product.agent()
    product.models.play(Turn(reasoning="hm", text="Yes."))
    sent = await tell(product, agent.id, "well?", include_return_message_types=["assistant_message"])
    [said] = sent["messages"]
    [listed] = (await product.client.runs.messages.list(said["run_id"])).items
    assert listed.to_dict()["content"] == said["content"] == "Yes."


async def test_a_mistyped_type_hid_the_whole_answer_with_a_200(product: Product) -> None:
    agent = await product.agent()
    conversation, types = await begin(product, agent.id), {"include_return_message_types": ["assistant_mesage"]}
    for of in (f"agents/{agent.id}", f"conversations/{conversation}"):
        refused = await product.http.post(f"/v1/{of}/messages", json={"input": "well?", "streaming": False} | types)
        assert (refused.status_code, refused.json()["field"]) == (422, "include_return_message_types[0]")
    assert product.models.requests == []


async def test_a_users_message_belonged_to_no_step(product: Product) -> None:
    agent = await product.agent(tools=[await product.tool(ROLL_DICE)])
    product.models.play(Turn(calls=[Call("roll_dice", {"num_sides": 6})]), Turn(text="Six."))
    sent = await tell(product, agent.id, "roll")
    asked, answered = [sent["messages"][number]["step_id"] for number in (0, -1)]
    assert asked != answered
    run_id = sent["messages"][0]["run_id"]
    alone = {"limit": 1, "order": "asc", "include_return_message_types": "user_message"}
    for path in (f"/v1/agents/{agent.id}/messages", "/v1/messages", f"/v1/runs/{run_id}/messages"):
        [question] = (await product.http.get(path, params=alone)).json()[:1]
        assert (question["message_type"], question["step_id"]) == ("user_message", asked), path
    [shown] = (await product.http.get(f"/v1/messages/{question['id']}")).json()
    assert shown == question
    for step, types in (
        (asked, ["tool_call_message", "tool_return_message", "user_message"]),
        (answered, ["assistant_message"]),
    ):
        of_step = (await product.client.steps.messages.list(step)).items
        assert sorted(str(message.to_dict()["message_type"]) for message in of_step) == types


async def test_the_parts_of_an_answer_were_lost_between_two_pages_of_a_run(product: Product) -> None:
    agent = await product.agent()
    product.models.play(Turn(reasoning="hm", text="Yes."))
    run_id = (await tell(product, agent.id, "well?"))["messages"][0]["run_id"]
    walked = [message async for message in product.client.runs.messages.list(run_id, limit=1)]
    types = ["user_message", "reasoning_message", "assistant_message"]
    assert [message.to_dict()["message_type"] for message in walked] == types


async def test_a_message_could_not_be_read_by_its_id(product: Product) -> None:
    agent = await product.agent(tools=[await product.tool(ROLL_DICE, default_requires_approval=True)])
    product.models.play(Turn(text="I ask.", calls=[Call("roll_dice", {"num_sides": 6})]))
    asked = (await tell(product, agent.id, "roll"))["messages"]

    found = await product.client.messages.retrieve(asked[0]["id"])

    assert [part.to_dict()["message_type"] for part in found] == ["assistant_message", "approval_request_message"]
    assert [part.id for part in found] == [part["id"] for part in asked]
    unknown = await product.http.get("/v1/messages/message-00000000-0000-4000-8000-000000000000")
    assert unknown.status_code == 404
    assert "message-00000000-0000-4000-8000-000000000000" in unknown.json()["detail"]


async def test_the_messages_of_all_agents_are_one_list(product: Product) -> None:
    one, other = await product.agent(), await product.agent()
    conversation = await begin(product, other.id)
    await tell(product, one.id, "first")
    await say(product, conversation, "second")
    await tell(product, other.id, "third")

    assert texts(await product.http.get("/v1/messages")) == ["first", "OK.", "second", "OK.", "third", "OK."]
    assert texts(await product.http.get("/v1/messages", params={"limit": 2})) == ["third", "OK."]
    of_one = await product.client.messages.list(conversation_id=conversation, order="asc")
    assert [message.to_dict()["message_type"] for message in of_one] == [
        "system_message", "user_message", "assistant_message",
    ]  # fmt: skip
    default = await product.http.get("/v1/messages", params={"conversation_id": "default"})
    assert texts(default) == ["first", "OK.", "third", "OK."]


async def test_words_are_found_in_what_users_and_agents_said(product: Product) -> None:
    one, other = await product.agent(), await product.agent()
    conversation = await begin(product, one.id)
    product.models.say('The KEY is "under the mat", said Änne.')
    await tell(product, one.id, "Where is the key?")
    product.models.say("In the drawer.")
    await say(product, conversation, "And the other key, %_?")
    await tell(product, other.id, "No keys here")

    async def found(query: str, **fields: Any) -> list[str]:
        return [str(hit.to_dict()["content"]) for hit in await product.client.messages.search(query=query, **fields)]

    assert await found("key") == [
        "No keys here", "And the other key, %_?", 'The KEY is "under the mat", said Änne.', "Where is the key?",
    ]  # fmt: skip
    assert await found("mat key") == await found('"UNDER änne') == ['The KEY is "under the mat", said Änne.']
    assert await found("%_") == ["And the other key, %_?"]
    assert await found("drawer mat") == []
    assert await found("key", agent_id=other.id) == ["No keys here"]
    assert await found("key", conversation_id=conversation, search_mode="fts") == ["And the other key, %_?"]
    assert await found("key", limit=1) == ["No keys here"]
    [hit] = await product.client.messages.search(query="drawer")
    shown = hit.to_dict()
    assert (shown["message_type"], shown["agent_id"], shown["conversation_id"]) == (
        "assistant_message", one.id, conversation,
    )  # fmt: skip
    assert await found("key", start_date=hit.created_at) == ["No keys here"]
    assert await found("drawer", end_date=hit.created_at) == ["In the drawer."]
