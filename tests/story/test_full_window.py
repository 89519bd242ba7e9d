"""The window of a model never ends a conversation: a summary takes the place of old messages, and the step goes on."""

from itertools import count
from typing import Any

import pytest

from shared.sql.history.messages import MessageStore
from tests.kit.model_server import Call, ReceivedRequest, Turn
from tests.kit.model_server.turn import Failure
from tests.kit.model_server.window import CountingModel, last_of, said_to, tokens_of
from tests.kit.product import Product
from tests.kit.product.frame_reader import read_whole
from tests.kit.product.small_windows import (
    REPORT,
    WINDOW,
    assert_valid,
    chat,
    filled,
    reports,
    small_agent,
    summaries,
    talk,
)
from tests.kit.wait_until import wait_until

pytestmark = pytest.mark.shared_product

Settings = Any


@pytest.mark.parametrize(
    ("backends", "counts"),
    [
        pytest.param("embedded", True, id="embedded-counted"),
        pytest.param("services", False, id="services-estimated", marks=pytest.mark.services),
    ],
    indirect=["backends"],
)
async def test_sixty_turns_in_a_small_window_never_exceed_it(product: Product, counts: bool) -> None:
    def answer(request: ReceivedRequest) -> Turn:
        if last_of(request)["role"] == "user":
            return Turn(text="Looking. ", calls=[Call("report", {"number": 7, "words": 60})])
        return Turn(text="The report says: " + "this and that " * 10)

    model = CountingModel(answer, counts=counts)
    product.models.answer_with(model)
    agent_id = await small_agent(product)

    for number in range(60):
        await talk(product, agent_id, f"question {number} " + "and more " * 15)

    assert model.longest <= WINDOW
    assert len(model.asked) == 120, "no step is repeated"
    assert 3 <= len(model.summarised) <= 25
    assert model.refused == []
    assert_valid(product)
    history = await product.history(agent_id)
    said = [message["content"] for message in history if message["message_type"] == "user_message"]
    assert [text.split()[1] for text in said] == [str(number) for number in range(60)], "what left is listed"
    assert "question 59" in said_to(model.asked[-1])
    assert "This is a summary of them.]\\nSummary: they have talked." in said_to(model.asked[-1])
    overview = (await product.http.get(f"/v1/agents/{agent_id}/context")).json()
    assert overview["context_window_size_current"] < overview["context_window_size_max"] == WINDOW


async def test_a_long_run_goes_on_through_a_full_window(product: Product) -> None:
    """Nobody is there to call for a compaction in the middle of a background run."""
    model = reports(40)
    product.models.answer_with(model)
    agent_id = await small_agent(product)
    question = "Give me forty reports, please, and mind the ninth."

    run = await product.client.agents.messages.create_async(agent_id, input=question)
    ended = await product.ended(run.id)

    assert (ended["status"], ended["stop_reason"]) == ("completed", "end_turn")
    assert model.longest <= WINDOW
    assert all(question in said_to(request) for request in model.asked), "the question stays in its own words"
    assert_valid(product)
    returned = [one for one in await product.history(agent_id) if one["message_type"] == "tool_return_message"]
    assert [one["tool_return"].split(":")[0] for one in returned] == [f"report {number}" for number in range(1, 41)]
    steps = (await product.http.get(f"/v1/runs/{run.id}/steps", params={"limit": 100})).json()
    usage = (await product.http.get(f"/v1/runs/{run.id}/usage")).json()
    assert len(steps) == 41, "a summary is no step"
    assert usage["prompt_tokens"] == sum(map(tokens_of, [*model.asked, *model.summarised])), "its tokens count"


async def test_the_provider_says_that_it_was_too_long_and_the_step_goes_on(product: Product) -> None:
    """A server of one's own whose window is smaller than anybody has told."""
    # Long words: each is a piece of the answer, and the pieces are what takes a model's client its time.
    model = CountingModel(lambda _: Turn(text="So " + ("it-is-" * 20 + " ") * 10), window=WINDOW)
    product.models.answer_with(model)
    agent = await product.agent(model="vllm/local-model")

    await talk(product, agent.id, *(f"message {number} " + "and so on " * 60 for number in range(30)))

    assert 1 <= len(model.refused) <= 12
    assert len(model.asked) == 30
    assert_valid(product)
    [*_, last] = await summaries(product, agent.id)
    assert last["compaction_stats"]["trigger"] == "context_window_exceeded"


async def test_a_run_learns_from_a_refusal(product: Product) -> None:
    model = reports(30)
    model.window = WINDOW
    product.models.answer_with(model)
    agent_id = await small_agent(product, model="vllm/local-model", context_window_limit=60_000)

    run = await product.client.agents.messages.create_async(agent_id, input="Thirty reports, please.")

    assert (await product.ended(run.id))["stop_reason"] == "end_turn"
    assert len(model.refused) <= 2, "it is not refused step after step"
    assert_valid(product)


async def test_a_giant_result_is_cut_for_the_model_and_kept_in_the_history(product: Product) -> None:
    model = reports(1, words=100_000)
    product.models.answer_with(model)
    agent_id = await small_agent(product)
    await product.client.tools.update(
        (await product.client.tools.list(name="report")).items[0].id, return_char_limit=1_000_000
    )

    answer = await product.client.agents.messages.create(agent_id, input="A long one, please.")

    assert answer.stop_reason.stop_reason == "end_turn"
    assert model.longest <= WINDOW
    assert "characters are left out here" in said_to(model.asked[-1])
    assert "report 1: word" in said_to(model.asked[-1])
    [returned] = [one for one in await product.history(agent_id) if one["message_type"] == "tool_return_message"]
    assert len(returned["tool_return"]) > 400_000


async def test_a_giant_message_and_a_provider_that_counts_more_than_we_think(product: Product) -> None:
    model = CountingModel(lambda _: Turn(text="I have seen the beginning and the end."), window=WINDOW)
    product.models.answer_with(model)
    agent = await product.agent(model="vllm/local-model")
    text = "The beginning. " + "文字 " * 20_000 + "The end."

    answer = await product.client.agents.messages.create(agent.id, input=text)

    assert answer.stop_reason.stop_reason == "end_turn"
    assert model.refused
    shown = said_to(model.asked[-1])
    assert "The beginning." in shown
    assert "The end." in shown
    said = [one for one in await product.history(agent.id) if one["message_type"] == "user_message"]
    assert [one["content"] for one in said] == [text]


async def test_a_summary_that_cannot_be_written_does_not_end_the_run(product: Product) -> None:
    model = chat()
    model.summary = Turn(failure=Failure("server"))
    agent_id = await small_agent(product)
    await filled(product, agent_id, model)

    await talk(product, agent_id, *["and so on " * 100] * 4)

    assert model.summarised, "it was asked"
    assert model.longest <= WINDOW
    [*_, told] = await summaries(product, agent_id)
    assert "No summary of them could be written" in told["summary"]
    assert "message 0" in told["summary"]
    assert_valid(product)


async def test_a_transcript_that_is_too_long_for_the_summariser_is_cut(product: Product) -> None:
    """An agent's window may be wider than that of the model which writes its summaries."""
    model = reports(60, words=400)
    model.window = 12_000
    product.models.answer_with(model)
    agent_id = await small_agent(product, context_window_limit=None, model="vllm/local-model")

    run = await product.client.agents.messages.create_async(agent_id, input="Sixty reports, please.", max_steps=100)

    assert (await product.ended(run.id))["stop_reason"] == "end_turn"
    assert model.summarised
    assert_valid(product)


async def test_a_cancel_during_the_compaction_changes_nothing(product: Product) -> None:
    model = chat()
    agent_id = await small_agent(product)
    await filled(product, agent_id, model)
    before = (await product.client.agents.retrieve(agent_id)).message_ids or []
    model.summary = Turn(text="Summary: one two three", silent_after=2)
    run = await product.client.agents.messages.create_async(agent_id, input="and so on " * 400)
    await wait_until(lambda: model.summarised, description="the model to be asked for a summary")

    assert await product.client.agents.messages.cancel(agent_id) == {run.id: "cancelled"}

    after = (await product.client.agents.retrieve(agent_id)).message_ids or []
    assert after[: len(before)] == before
    assert await summaries(product, agent_id) == []
    whole = await read_whole(product.http, run.id)
    whole.assert_complete()
    model.summary = Turn(text="Summary: again.")
    await talk(product, agent_id, "still there?")
    assert_valid(product)


async def test_a_rollback_takes_the_compaction_back(product: Product) -> None:
    model = chat()
    agent_id = await small_agent(product)
    await filled(product, agent_id, model)
    before = (await product.client.agents.retrieve(agent_id)).message_ids
    model.answer = lambda _: Turn(text="one two three", silent_after=1)
    run = await product.client.agents.messages.create_async(agent_id, input="and so on " * 400)
    await wait_until(lambda: "Summary: they" in said_to(product.models.requests[-1]), description="the step to go on")

    await product.http.post(f"/v1/runs/{run.id}/cancel", json={"mode": "rollback"})

    await product.ended(run.id)
    assert (await product.client.agents.retrieve(agent_id)).message_ids == before
    assert await summaries(product, agent_id) == []


async def test_a_run_that_fails_behind_a_compaction_leaves_the_summary(product: Product) -> None:
    model = chat()
    agent_id = await small_agent(product)
    await filled(product, agent_id, model)
    model.answer = lambda _: Turn(failure=Failure("auth"))
    run = await product.client.agents.messages.create_async(agent_id, input="and so on " * 400)
    assert (await product.ended(run.id))["status"] == "failed"

    model.answer = lambda _: Turn(text="Here I am.")
    await talk(product, agent_id, "hello again")

    told = said_to(model.asked[-1])
    assert "Summary: they have talked." in told
    assert "and so on and so on and so on and so on" not in told.rpartition("Summary:")[2]
    assert_valid(product)


async def test_the_run_that_goes_on_after_a_decision_fits_too(product: Product) -> None:
    """A continuation has the turn of the run that asked: the call and its results stay together."""
    model = chat()
    tool = await product.tool(REPORT, default_requires_approval=True)
    agent = await product.agent(tools=[tool], context_window_limit=WINDOW)
    await filled(product, agent.id, model)
    model.answer = lambda _: Turn(calls=[Call("report", {"number": 1, "words": 500}, id="call_1")])
    await talk(product, agent.id, "A report, please.")
    model.answer = lambda _: Turn(text="It is long.")
    approve: Any = {"type": "approval", "approvals": [{"type": "approval", "tool_call_id": "call_1", "approve": True}]}

    answer = await product.client.agents.messages.create(agent.id, messages=[approve])

    assert answer.stop_reason.stop_reason == "end_turn"
    assert len(model.summarised) == 1
    assert "A report, please." in said_to(model.asked[-1])
    assert "report 1: word" in said_to(model.asked[-1])
    assert model.longest <= WINDOW
    assert_valid(product)


async def test_tools_of_the_client_and_injected_messages_fit_too(product: Product) -> None:
    numbers = count(1)

    def answer(request: ReceivedRequest) -> Turn:
        last = last_of(request)
        if last["role"] == "user":
            return Turn(calls=[Call("ask_client", {}, id=f"call_{next(numbers)}")])
        return Turn(text="Seen.")

    model = CountingModel(answer)
    product.models.answer_with(model)
    agent = await product.agent(context_window_limit=WINDOW)
    tools: Settings = [
        {"name": "ask_client", "description": "Asks.", "parameters": {"type": "object", "properties": {}}}
    ]
    path = f"/v1/agents/{agent.id}/messages"
    for number in range(1, 13):
        await product.http.post(path, json={"input": f"question {number}", "client_tools": tools})
        returned = {"type": "tool", "tool_call_id": f"call_{number}", "tool_return": "word " * 300, "status": "success"}
        message = {"type": "approval", "approvals": [returned]}
        done = await product.http.post(path, json={"messages": [message], "client_tools": tools})
        assert done.json()["stop_reason"]["stop_reason"] == "end_turn"

    assert model.summarised
    assert model.longest <= WINDOW
    assert_valid(product)


async def test_a_summary_counts_against_the_budget(product: Product) -> None:
    model = chat()
    agent_id = await small_agent(product)
    await filled(product, agent_id, model)
    before = len(model.asked)

    answer = await product.client.agents.messages.create(agent_id, input="and so on " * 400)

    assert len(model.asked) == before + 1
    assert answer.usage.prompt_tokens == tokens_of(model.summarised[-1]) + tokens_of(model.asked[-1])
    assert answer.usage.step_count == 1


async def test_a_conversation_of_its_own_is_compacted_alone(product: Product) -> None:
    model = chat()
    agent_id = await small_agent(product)
    await talk(product, agent_id, "this stays")
    conversation = (await product.http.post("/v1/conversations/", params={"agent_id": agent_id}, json={})).json()
    product.models.answer_with(model)
    path = f"/v1/conversations/{conversation['id']}/messages"
    while not model.summarised:
        await product.http.post(path, json={"input": "and so on " * 150, "streaming": False})

    assert model.longest <= WINDOW
    context = await MessageStore(product.context.database).context(product.project_id, conversation["id"])
    assert [message.body.__class__.__name__ for message in context[:2]] == ["SystemMessage", "Summary"]
    assert len((await product.client.agents.retrieve(agent_id)).message_ids or []) == 3
