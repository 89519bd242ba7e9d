"""CompactionService: a summary takes the place of old messages, or nothing changes at all."""

from typing import Any

import httpx
import pytest
from letta_client import APIStatusError, ConflictError

from shared.concurrency import background
from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.provider_rules.request import ONE_OF_EACH_WIRE, broken_rules
from tests.kit.tools import ROLL_DICE
from tests.kit.wait_until import wait_until

pytestmark = pytest.mark.shared_product

Settings = Any


async def talk(product: Product, agent_id: str, *texts: str) -> None:
    for text in texts:
        await product.client.agents.messages.create(agent_id=agent_id, input=text)


async def context_of(product: Product, agent_id: str) -> list[str]:
    """Ids of the messages in the agent's context."""
    return (await product.client.agents.retrieve(agent_id)).message_ids or []


async def test_a_summary_takes_the_place_of_everything(product: Product) -> None:
    agent = await product.agent()
    await talk(product, agent.id, "My name is Ada.", "And yours?")
    product.models.say("Summary: the user is Ada.")

    done = await product.client.agents.messages.compact(agent.id, compaction_settings={"mode": "all"})

    assert (done.summary, done.num_messages_before, done.num_messages_after) == ("Summary: the user is Ada.", 5, 2)
    asked = product.models.requests[-1].body
    assert "tools" not in asked
    [system, transcript] = asked["messages"]
    assert "summar" in system["content"]
    assert "My name is Ada." in transcript["content"]
    assert len(await context_of(product, agent.id)) == 2

    await talk(product, agent.id, "Who am I?")
    told = [message["content"] for message in product.models.requests[-1].body["messages"]]
    assert "Summary: the user is Ada." in str(told)
    assert "My name is Ada." not in str(told)


async def test_the_history_still_lists_what_has_left_the_context(product: Product) -> None:
    agent = await product.agent()
    await talk(product, agent.id, "one", "two")
    before = await product.history(agent.id)

    await product.client.agents.messages.compact(agent.id)

    after = await product.history(agent.id)
    assert [message for message in after if message["message_type"] != "summary_message"] == before
    [summary] = [message for message in after if message["message_type"] == "summary_message"]
    run = await product.run(summary["run_id"])
    assert (run["status"], run["metadata"]["run_type"]) == ("completed", "compaction")
    assert summary["compaction_stats"]["messages_count_before"] == 5


async def test_what_is_kept_of_tool_turns_is_valid_for_every_provider(product: Product) -> None:
    tool = await product.tool(ROLL_DICE)
    for model in ONE_OF_EACH_WIRE:
        agent = await product.agent(model=model, tools=[tool])
        for number in range(3):
            product.models.play(
                Turn(reasoning="hm", calls=[Call("roll_dice", {"num_sides": 6})]), Turn(text=f"Six, {number}.")
            )
            await talk(product, agent.id, f"roll {number}")
        product.models.say("Summary: they rolled.")
        window: Settings = {"mode": "sliding_window", "sliding_window_percentage": 0.5}
        done = await product.client.agents.messages.compact(agent.id, compaction_settings=window)
        await talk(product, agent.id, "and now?")

        summarised, went_on = product.models.requests[-2:]
        assert broken_rules(summarised) == []
        assert broken_rules(went_on) == []
        assert 2 < done.num_messages_after < done.num_messages_before
        assert "Six, 2." in str(went_on.body)
        assert "Six, 0." not in str(went_on.body)


async def test_a_client_chooses_the_prompt_the_model_and_the_length(product: Product) -> None:
    agent = await product.agent()
    await talk(product, agent.id, "hello")
    product.models.say("A long summary.")

    settings: Settings = {"mode": "all", "prompt": "Write a haiku.", "model": "openai/gpt-4.1", "clip_chars": 6}
    done = await product.client.agents.messages.compact(agent.id, compaction_settings=settings)

    assert done.summary == "A long"
    asked = product.models.requests[-1]
    assert asked.model == "gpt-4.1"
    assert asked.body["messages"][0]["content"] == "Write a haiku."


async def test_a_model_that_fails_changes_nothing(product: Product) -> None:
    agent = await product.agent()
    await talk(product, agent.id, "hello")
    before = await context_of(product, agent.id)
    product.models.fail("auth")

    with pytest.raises(APIStatusError) as refused:
        await product.client.agents.messages.compact(agent.id)

    assert refused.value.status_code == 502
    assert await context_of(product, agent.id) == before


async def test_a_cancelled_compaction_changes_nothing_and_leaves_the_model(product: Product) -> None:
    agent = await product.agent()
    await talk(product, agent.id, "hello")
    before = await context_of(product, agent.id)
    product.models.say("Summary: one two three", silent_after=2)
    answers: list[httpx.Response] = []

    async def compact() -> None:
        answers.append(await product.http.post(f"/v1/agents/{agent.id}/summarize", json={}))

    async with background(compact(), name="compact"):
        await wait_until(lambda: len(product.models.requests) == 2, description="the model to be asked for a summary")
        cancelled = await product.client.agents.messages.cancel(agent.id)
        assert list(cancelled.values()) == ["cancelled"]
        await wait_until(lambda: len(answers) == 1, description="the request to be answered")

    assert answers[0].status_code == 409
    assert product.models.requests[-1].client_left
    assert await context_of(product, agent.id) == before
    await talk(product, agent.id, "still there?")
    assert broken_rules(product.models.requests[-1]) == []


async def test_a_history_that_waits_for_a_person_is_not_compacted(product: Product) -> None:
    tool = await product.tool(ROLL_DICE, default_requires_approval=True)
    agent = await product.agent(tools=[tool])
    product.models.call("roll_dice", num_sides=6)
    await talk(product, agent.id, "roll")
    before = await context_of(product, agent.id)

    with pytest.raises(ConflictError, match="PENDING_APPROVAL"):
        await product.client.agents.messages.compact(agent.id)

    assert await context_of(product, agent.id) == before


async def test_an_agent_that_waited_for_a_person_could_not_be_reset(product: Product) -> None:
    tool = await product.tool(ROLL_DICE, default_requires_approval=True)
    agent = await product.agent(tools=[tool])
    product.models.call("roll_dice", num_sides=6)
    await talk(product, agent.id, "roll")
    [run] = (await product.client.runs.list(agent_id=agent.id)).items
    assert run.status == "completed"

    await product.client.agents.messages.reset(agent.id)

    assert (await product.client.runs.retrieve(run.id)).status == "cancelled"
    assert len(await context_of(product, agent.id)) == 1
    product.models.say("Hello again.")
    await talk(product, agent.id, "hello")
    assert broken_rules(product.models.requests[-1]) == []


async def test_a_history_is_not_reset_under_a_run_at_work(product: Product) -> None:
    agent = await product.agent()
    product.models.say("one two three four", silent_after=2)
    run = await product.client.agents.messages.create_async(agent.id, input="count")
    await wait_until(lambda: len(product.models.requests) == 1, description="the model to be asked")

    with pytest.raises(ConflictError, match=run.id):
        await product.client.agents.messages.reset(agent.id)

    assert (await product.client.runs.retrieve(run.id)).status == "running"
    await product.client.agents.messages.cancel(agent.id)


async def test_a_decision_may_be_repeated_after_a_compaction(product: Product) -> None:
    tool = await product.tool(ROLL_DICE, default_requires_approval=True)
    agent = await product.agent(tools=[tool])
    product.models.play(Turn(calls=[Call("roll_dice", {"num_sides": 6}, id="call_1")]), Turn(text="Six."))
    await talk(product, agent.id, "roll")
    approve: Any = {"type": "approval", "approvals": [{"type": "approval", "tool_call_id": "call_1", "approve": True}]}
    await product.client.agents.messages.create(agent.id, messages=[approve])
    await product.client.agents.messages.compact(agent.id, compaction_settings={"mode": "all"})

    again = await product.client.agents.messages.create(agent.id, messages=[approve])

    assert again.stop_reason.stop_reason == "end_turn"
    assert broken_rules(product.models.requests[-1]) == []


async def test_a_compaction_waits_for_the_run_in_front_of_it(product: Product) -> None:
    agent = await product.agent()
    product.models.say("one two three four", pace=0.05)
    run = await product.client.agents.messages.create_async(agent.id, input="count")

    done = await product.client.agents.messages.compact(agent.id, compaction_settings={"mode": "all"})

    assert (await product.run(run.id))["status"] == "completed"
    assert (done.num_messages_before, done.num_messages_after) == (3, 2)


async def test_an_offline_model_cuts_instead_of_summarising(product: Product) -> None:
    agent = await product.agent(model="builtin/echo")
    await talk(product, agent.id, "My name is Ada. " + "x" * 1000)

    done = await product.client.agents.messages.compact(agent.id, compaction_settings={"mode": "all"})

    assert "user: My name is Ada." in done.summary
    assert len(done.summary) < 700
    assert product.models.requests == []


async def test_an_empty_history_has_nothing_to_compact(product: Product) -> None:
    agent = await product.agent()

    done = await product.client.agents.messages.compact(agent.id)

    assert (done.summary, done.num_messages_before, done.num_messages_after) == ("", 1, 1)
    assert product.models.requests == []


async def test_a_context_that_is_full_without_any_history_says_what_helps(product: Product) -> None:
    agent = await product.agent()
    product.models.fail("context")

    with pytest.raises(APIStatusError, match="shorten the agent's instructions, its memory blocks"):
        await talk(product, agent.id, "hello")
    assert len(product.models.requests) == 1, "the same request again would be refused again"
