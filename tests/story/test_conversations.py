"""Conversations: histories of one agent that know nothing of each other."""

from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.kit.model_server import Call, Turn
from tests.kit.product import Product, as_text
from tests.kit.provider_rules.request import ONE_OF_EACH_WIRE, broken_rules
from tests.kit.tools import ROLL_DICE
from tests.kit.wait_until import wait_until

pytestmark = pytest.mark.shared_product


async def begin(product: Product, agent_id: str, **fields: Any) -> str:
    return (await product.client.conversations.create(agent_id=agent_id, **fields)).id


async def say(product: Product, conversation: str, text: str, **fields: Any) -> httpx.Response:
    """The whole answer to a message."""
    body = {"messages": [{"role": "user", "content": text}], "streaming": False, **fields}
    return await product.http.post(f"/v1/conversations/{conversation}/messages", json=body)


async def leave(product: Product, conversation: str, text: str, **fields: Any) -> str:
    """Sends a message and leaves when the model has been asked; the id of its run.

    A stream begins before the model is asked: whoever asked next could get the turn that was meant for this run.
    """
    run_id = await _sent(product, conversation, text, **fields)
    await wait_until(
        lambda: any(text in str(request.body) for request in product.models.requests),
        description=f"{text!r} to be asked",
    )
    return run_id


async def _sent(product: Product, conversation: str, text: str, **fields: Any) -> str:
    body = {"messages": [{"role": "user", "content": text, **fields}], "background": True}
    async with product.http.stream("POST", f"/v1/conversations/{conversation}/messages", json=body) as answer:
        async for line in answer.aiter_lines():
            if '"run_id":"' in line:
                return line.partition('"run_id":"')[2].partition('"')[0]
    raise AssertionError("the stream names no run")


async def contents(product: Product, conversation: str) -> list[str]:
    """What was said, oldest first, behind the conversation's system message."""
    listed = await product.http.get(f"/v1/conversations/{conversation}/messages", params={"order": "asc"})
    system, *said = listed.json()
    assert system["message_type"] == "system_message"
    return [message["content"] for message in said if "content" in message]


async def test_a_message_is_answered_with_a_stream(product: Product) -> None:
    agent = await product.agent()
    conversation = await begin(product, agent.id)
    product.models.say("Good morning.")

    stream = await product.client.conversations.messages.create(conversation, input="Hello", stream_tokens=True)

    assert await as_text(stream) == "Good morning."
    assert await contents(product, conversation) == ["Hello", "Good morning."]
    found = await product.client.conversations.retrieve(conversation)
    assert len(found.in_context_message_ids or []) == 3
    assert found.last_message_at is not None


async def test_two_conversations_run_at_once_and_never_see_each_other(product: Product) -> None:
    agent = await product.agent()
    red, blue = await begin(product, agent.id), await begin(product, agent.id)
    product.models.say("red one two three", silent_after=1)
    run_id = await leave(product, red, "I like red.")

    assert (await say(product, blue, "I like blue.")).status_code == 200
    await product.client.agents.messages.create(agent.id, input="I like green.")
    assert (await product.run(run_id))["status"] == "running"

    for request, own in zip(product.models.requests, ("red", "blue", "green"), strict=True):
        told = str(request.body["messages"])
        assert [colour for colour in ("red", "blue", "green") if colour in told] == [own]
    assert await contents(product, blue) == ["I like blue.", "OK."]
    assert [m["content"] for m in (await product.history(agent.id))[1:]] == ["I like green.", "OK."]
    listed = await product.http.get(f"/v1/agents/{agent.id}/messages", params={"conversation_id": blue})
    assert [message["content"] for message in listed.json()][1:] == ["I like blue.", "OK."]
    assert (await product.http.post(f"/v1/conversations/{blue}/cancel")).status_code == 409
    assert (await product.http.post(f"/v1/conversations/{red}/cancel")).json() == {run_id: "cancelled"}


async def test_a_second_message_is_refused_while_a_run_goes_on(product: Product) -> None:
    agent = await product.agent()
    conversation = await begin(product, agent.id)
    product.models.say("one two three", silent_after=1)
    run_id = await leave(product, conversation, "count", otid="first")

    refused = await say(product, conversation, "and?")
    assert (refused.status_code, refused.json()["run_id"]) == (409, run_id)
    assert "detail" in refused.json()

    assert await leave(product, conversation, "count", otid="first") == run_id
    product.models.say("Stopped.")
    interrupting = await product.http.post(
        f"/v1/conversations/{conversation}/messages",
        json={"input": "stop", "streaming": False},
        headers={"X-Holdfast-If-Busy": "interrupt"},
    )
    assert interrupting.json()["messages"][0]["content"] == "Stopped."
    assert (await product.run(run_id))["status"] == "cancelled"
    assert broken_rules(product.models.requests[-1]) == []


async def test_a_retry_does_not_interrupt_the_run_that_its_first_try_began(product: Product) -> None:
    agent = await product.agent()
    conversation = await begin(product, agent.id)
    product.models.say("one two three", silent_after=1)
    first: Any = {"messages": [{"role": "user", "content": "count", "otid": "o1"}], "background": True}
    path = f"/v1/conversations/{conversation}/messages"
    for _ in range(2):
        async with product.http.stream("POST", path, json={**first, "if_busy": "interrupt"}) as answer:
            assert answer.status_code == 200
    added: Any = {"messages": [{"role": "user", "content": "faster", "otid": "o2"}], "background": True}
    for _ in range(2):
        async with product.http.stream("POST", path, json={**added, "if_busy": "inject"}) as answer:
            assert answer.status_code == 200

    [run] = (await product.http.get("/v1/runs", params={"conversation_id": conversation})).json()
    assert run["status"] in ("created", "running")
    await product.http.post(f"/v1/conversations/{conversation}/cancel")
    await say(product, conversation, "and?")
    told = str(product.models.requests[-1].body["messages"])
    assert (told.count("count"), told.count("faster")) == (1, 1)


async def test_a_queued_message_waits_its_turn(product: Product) -> None:
    agent = await product.agent()
    conversation = await begin(product, agent.id)
    product.models.say("one two three", pace=0.05)
    await leave(product, conversation, "first")

    answer = await say(product, conversation, "second", if_busy="enqueue")

    assert answer.status_code == 200
    assert await contents(product, conversation) == ["first", "one two three", "second", "OK."]


async def test_a_stream_is_resumed_by_conversation_by_run_and_by_otid(product: Product) -> None:
    agent = await product.agent()
    conversation = await begin(product, agent.id)
    path = f"/v1/conversations/{conversation}/stream"
    too_early = await product.http.post(path, json={})
    assert too_early.status_code == 400
    assert "No active runs found" in too_early.json()["detail"]
    otids = [str(uuid4()), str(uuid4())]
    runs = [await leave(product, conversation, "hello", otid=otids[0])]
    await product.ended(runs[0])
    runs.append(await leave(product, conversation, "hello again", otid=otids[1]))
    await product.ended(runs[1])

    async def resumed(**body: Any) -> str:
        answer = await product.http.post(path, json=body)
        assert answer.text.endswith("data: [DONE]\n\n"), answer.text
        return answer.text

    first, second = await resumed(run_id=runs[0]), await resumed(run_id=runs[1])
    assert runs[0] in first
    assert await resumed(otid=otids[0]) == first
    assert await resumed(otid=otids[1]) == await resumed() == second
    assert second.endswith(await resumed(starting_after=2))
    assert (await product.http.post(path, json={"otid": "nobody's"})).status_code == 404
    elsewhere = await begin(product, agent.id)
    other = await product.http.post(f"/v1/conversations/{elsewhere}/stream", json={"run_id": runs[0]})
    assert other.status_code == 404


async def test_default_is_the_agents_own_history(product: Product) -> None:
    agent = await product.agent()

    assert (await say(product, "default", "hello", agent_id=agent.id)).status_code == 200
    assert (await say(product, agent.id, "again")).status_code == 200

    own = [message["content"] for message in (await product.history(agent.id))[1:]]
    assert own == ["hello", "OK.", "again", "OK."]
    listed = await product.http.get("/v1/conversations/default/messages", params={"agent_id": agent.id})
    assert listed.json() == await product.history(agent.id)
    assert (await say(product, "default", "who?")).status_code == 400
    done = await product.client.conversations.messages.compact("default", agent_id=agent.id)
    assert done.num_messages_before == 5


async def test_runs_of_an_agents_own_history_could_be_listed_only_among_those_of_its_conversations(
    product: Product,
) -> None:
    agent, other = await product.agent(), await product.agent()
    conversation = await begin(product, agent.id)
    await say(product, conversation, "beside it")
    for owner in (agent, other):
        assert (await say(product, "default", "its own", agent_id=owner.id)).status_code == 200

    async def threads(**query: str) -> list[tuple[str, str | None]]:
        found = (await product.http.get("/v1/runs", params=query)).json()
        return [(run["agent_id"], run["conversation_id"]) for run in found]

    assert await threads(conversation_id="default", agent_id=agent.id) == [(agent.id, None)]
    assert await threads(conversation_id=conversation, agent_id=agent.id) == [(agent.id, conversation)]
    assert await threads(conversation_id=conversation, agent_id=other.id) == []
    unnamed = await product.http.get("/v1/runs", params={"conversation_id": "default"})
    assert (unnamed.status_code, "agent_id is missing" in unnamed.text) == (400, True)


async def test_a_conversation_may_have_a_model_of_its_own(product: Product) -> None:
    agent = await product.agent()
    conversation = await begin(product, agent.id, model="openai/gpt-4.1", model_settings={"temperature": 0.25})

    await say(product, conversation, "hello")

    request = product.models.requests[-1]
    assert (request.model, request.body["temperature"]) == ("gpt-4.1", 0.25)


async def test_a_fork_goes_its_own_way_and_is_valid_for_every_provider(product: Product) -> None:
    tool = await product.tool(ROLL_DICE)
    for model in ONE_OF_EACH_WIRE:
        agent = await product.agent(model=model, tools=[tool])
        conversation = await begin(product, agent.id, summary="Dice")
        for number in range(2):
            product.models.play(Turn(reasoning="hm", calls=[Call("roll_dice", {"num_sides": 6})]), Turn(text="Six."))
            await say(product, conversation, f"roll {number}")
        fork = await product.client.conversations.fork(conversation)
        await say(product, fork.id, "go left")
        left = product.models.requests[-1]
        await say(product, conversation, "go right")

        assert broken_rules(left) == []
        assert "roll 0" in str(left.body)
        assert (fork.summary, len(fork.in_context_message_ids or [])) == ("Dice", 9)
        assert (await contents(product, fork.id))[-2:] == ["go left", "OK."]
        assert "go left" not in str(product.models.requests[-1].body)
        window: Any = {"sliding_window_percentage": 0.6}
        done = await product.client.conversations.messages.compact(fork.id, compaction_settings=window)
        await say(product, fork.id, "go on")
        assert 2 < done.num_messages_after < done.num_messages_before
        assert broken_rules(product.models.requests[-1]) == []


async def test_a_fork_leaves_out_what_nobody_has_answered_yet(product: Product) -> None:
    tool = await product.tool(ROLL_DICE, default_requires_approval=True)
    agent = await product.agent(tools=[tool])
    product.models.say("Ready.")
    await product.client.agents.messages.create(agent.id, input="ready?")
    product.models.call("roll_dice", num_sides=6)
    await product.client.agents.messages.create(agent.id, input="roll")

    fork = await product.client.conversations.fork("default", agent_id=agent.id)
    assert await contents(product, fork.id) == ["ready?", "Ready.", "roll"]
    listed = await product.http.get(f"/v1/conversations/{fork.id}/messages", params={"order": "asc"})
    first = listed.json()[1]["id"]
    early = await product.client.conversations.fork(fork.id, message_id=first, hidden=True)
    assert await contents(product, early.id) == ["ready?"]

    assert (await say(product, fork.id, "well?")).status_code == 200
    assert broken_rules(product.models.requests[-1]) == []


async def test_a_conversation_is_compacted_alone(product: Product) -> None:
    agent = await product.agent()
    one, other = await begin(product, agent.id), await begin(product, agent.id)
    for conversation in (one, other):
        await say(product, conversation, "hello")
    product.models.say("Summary: hello.")

    done = await product.client.conversations.messages.compact(one, compaction_settings={"mode": "all"})

    assert (done.num_messages_before, done.num_messages_after) == (3, 2)
    assert len((await product.client.conversations.retrieve(one)).in_context_message_ids or []) == 2
    assert len((await product.client.conversations.retrieve(other)).in_context_message_ids or []) == 3
    product.models.say("one two", silent_after=1)
    run_id = await leave(product, one, "count")
    await wait_until(lambda: len(product.models.requests) == 4, description="the model to be asked")
    busy = await product.http.post(f"/v1/conversations/{one}/compact", json={})
    assert (busy.status_code, busy.json()["run_id"]) == (409, run_id)


async def test_the_instructions_are_rendered_for_every_call(product: Product) -> None:
    agent = await product.agent(system="Be brief.", memory_blocks=[{"label": "human", "value": "Likes tea."}])
    conversation = await begin(product, agent.id)

    rendered = (await product.http.post(f"/v1/conversations/{conversation}/recompile", json={})).json()
    await say(product, conversation, "hello")

    assert "Likes tea." in rendered
    assert product.models.requests[-1].body["messages"][0]["content"] == rendered


async def system_message(product: Product, conversation: str) -> str:
    listed = await product.http.get(f"/v1/conversations/{conversation}/messages", params={"order": "asc"})
    return listed.json()[0]["content"]


async def test_a_conversation_had_no_system_message_and_recompile_showed_nowhere(product: Product) -> None:
    agent = await product.agent(system="Be brief.", memory_blocks=[{"label": "human", "value": "Likes tea."}])
    conversation = await begin(product, agent.id)
    await product.client.agents.blocks.update("human", agent_id=agent.id, value="Likes coffee.")
    recompile = f"/v1/conversations/{conversation}/recompile"

    assert "Likes tea." in await system_message(product, conversation)
    assert "Likes coffee." in (await product.http.post(recompile, params={"dry_run": True})).json()
    assert "Likes tea." in await system_message(product, conversation)
    await product.http.post(recompile)
    assert "Likes coffee." in await system_message(product, conversation)
    assert "Likes coffee." in await system_message(product, await begin(product, agent.id))


async def test_a_conversation_was_listed_oldest_first(product: Product) -> None:
    agent = await product.agent()
    conversation = await begin(product, agent.id)
    for text in ("one", "two"):
        product.models.play(Turn(reasoning="hm", text=text.upper()))
        await say(product, conversation, text)

    async def listed(**params: Any) -> list[str]:
        found = await product.http.get(f"/v1/conversations/{conversation}/messages", params=params)
        return [message["message_type"].removesuffix("_message") for message in found.json()]

    turn = ["reasoning", "assistant", "user"]
    assert await listed() == [*turn, *turn, "system"], "one message's parts keep their order"
    assert await listed(order="desc", limit=1) == ["reasoning", "assistant"]
    assert await listed(order="asc") == ["system", "user", "reasoning", "assistant", "user", "reasoning", "assistant"]
    newest_first = (await product.http.get(f"/v1/conversations/{conversation}/messages")).json()
    older = {"before": newest_first[2]["id"], "limit": 2}
    assert await listed(**older) == turn
    assert await listed(include_return_message_types="user_message", limit=2) == ["user", "user"]


async def test_an_empty_conversation_was_compacted_without_a_word(product: Product) -> None:
    agent = await product.agent()
    answer = await product.http.post(f"/v1/conversations/{await begin(product, agent.id)}/compact", json={})
    assert answer.status_code == 400
    assert "no messages to compact" in answer.json()["detail"]
    assert product.models.requests == []
