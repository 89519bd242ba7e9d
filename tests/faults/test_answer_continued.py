"""A deploy or a crash in the middle of an answer, as a client sees it that joins pieces and knows of no workers."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tests.faults.test_worker_lost import submit, words_shown
from tests.kit.model_server import Call, Failure, ModelServer, Turn
from tests.kit.product import Product
from tests.kit.product.frame_reader import FrameReader, read_whole, reading
from tests.kit.product.processes import Processes
from tests.kit.services.redis_losses import end_leases
from tests.kit.wait_until import wait_until

CONTINUES = "anthropic/claude-3-5-haiku-20241022"


def joined(reader: FrameReader) -> list[str]:
    """What a client has on its screen that joins pieces by message, and knows of nothing else."""
    texts: dict[str, str] = {}
    for frame in reader.of_type("assistant_message"):
        texts[frame["id"]] = texts.get(frame["id"], "") + frame["content"]
    return list(texts.values())


async def lost_in_the_middle(
    product: Product, processes: Processes, models: ModelServer, *turns: Turn, **fields: Any
) -> tuple[FrameReader, str]:
    """A run whose worker is killed when it has shown `one two three `; the model then plays `turns`."""
    models.say("one two three four", silent_after=3)
    models.play(*turns)
    first = await processes.worker()
    agent_id, run_id = await submit(product, **{"model": CONTINUES, **fields})
    async with reading(product.http, run_id) as reader:
        await words_shown(reader, 3)
        await first.kill()
        await end_leases(product.context.redis)
        await processes.worker()
        await reader.end()
    reader.assert_complete()
    assert (await read_whole(product.http, run_id)).raw == reader.raw
    return reader, agent_id


async def answers(product: Product, agent_id: str) -> list[str]:
    history = await product.history(agent_id)
    return [message["content"] for message in history if message["message_type"] == "assistant_message"]


def asked_for(models: ModelServer, request: int) -> Sequence[Any]:
    messages: Sequence[Any] = models.requests[request].body["messages"]
    return messages


async def test_an_unmodified_client_saw_the_first_words_twice_after_a_worker_was_lost(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    reader, agent_id = await lost_in_the_middle(product, processes, models, Turn(text=" four five"))

    assert joined(reader) == ["one two three four five"]
    assert not reader.notes("step_restarted")
    assert len(reader.notes("log_continued")) == 1
    assert asked_for(models, 1)[-1]["role"] == "assistant"
    assert await answers(product, agent_id) == ["one two three four five"]
    (usage,) = reader.of_type("usage_statistics")
    assert usage["estimated"], "the call that was lost with its worker is counted"
    assert usage["step_count"] == 1


async def test_a_model_that_repeats_the_beginning_is_not_heard_twice(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    words = "seventy-one seventy-two seventy-three"
    models.say(f"{words} four", silent_after=3)
    models.say(f"{words} four five")
    first = await processes.worker()
    agent_id, run_id = await submit(product, model=CONTINUES)
    async with reading(product.http, run_id) as reader:
        await words_shown(reader, 3)
        await first.kill()
        await end_leases(product.context.redis)
        await processes.worker()
        await reader.end()

    assert joined(reader) == [f"{words} four five"]
    assert await answers(product, agent_id) == [f"{words} four five"]


async def test_a_model_that_refuses_to_go_on_is_asked_anew_and_the_stream_says_so(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    refusal = Turn(failure=Failure("bad_request", "This model does not support assistant message prefill."))
    reader, agent_id = await lost_in_the_middle(product, processes, models, refusal, Turn(text="All of it."))

    (restarted,) = reader.notes("step_restarted")
    assert restarted["void_message_ids"] == [reader.of_type("assistant_message")[0]["id"]]
    assert joined(reader) == ["one two three", "All of it."]
    assert asked_for(models, 2)[-1]["role"] == "user"
    assert await answers(product, agent_id) == ["All of it."]


async def test_an_answer_goes_on_when_two_workers_are_lost_with_it(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    models.say("one two three four", silent_after=3)
    models.say(" four five six", silent_after=2)
    models.say(" six seven")
    worker = await processes.worker()
    agent_id, run_id = await submit(product, model=CONTINUES)
    async with reading(product.http, run_id) as reader:
        for shown in (3, 5):
            await words_shown(reader, shown)
            await worker.kill()
            await end_leases(product.context.redis)
            worker = await processes.worker()
        await reader.end()

    reader.assert_complete()
    assert joined(reader) == ["one two three four five six seven"]
    assert len(reader.notes("log_continued")) == 2
    assert await answers(product, agent_id) == ["one two three four five six seven"]


async def test_an_answer_that_goes_on_may_call_tools(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    source = 'def look() -> str:\n    """Looks."""\n    return "seen"\n'
    calls = Turn(text=" let me look.", calls=[Call("look")])
    reader, agent_id = await lost_in_the_middle(
        product, processes, models, calls, Turn(text="Done."), tools=[await product.tool(source)]
    )

    assert joined(reader) == ["one two three let me look.", "Done."]
    assert await answers(product, agent_id) == ["one two three let me look.", "Done."]
    assert [frame["status"] for frame in reader.of_type("tool_return_message")] == ["success"]


async def test_what_comes_in_meanwhile_is_no_part_of_the_answer(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    """The beginning answered the question alone. With another one behind it, it is no beginning of any answer."""
    models.say("one two three four", silent_after=3)
    models.say("Both.")
    first = await processes.worker()
    agent_id, run_id = await submit(product, model=CONTINUES)
    async with reading(product.http, run_id) as reader:
        await words_shown(reader, 3)
        injected = await product.http.post(f"/v1/runs/{run_id}/inject", json={"input": "And five."})
        injected.raise_for_status()
        await first.kill()
        await end_leases(product.context.redis)
        await processes.worker()
        await reader.end()

    reader.assert_complete()
    assert len(reader.notes("step_restarted")) == 1
    assert asked_for(models, 1)[-1]["role"] == "user"
    assert await answers(product, agent_id) == ["Both."]


async def test_an_answer_does_not_reach_over_a_compaction(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    """The next owner after a compaction looks at the log behind it alone: it would not know what is void."""
    agent = await product.agent(model=CONTINUES)
    path = f"/v1/agents/{agent.id}/messages"
    models.say("so " * 900)
    models.say("one two three four", silent_after=3)
    models.say("They have talked.")
    models.say("All of it.")
    first = await processes.worker()
    (await product.http.post(path, json={"input": "and " * 900})).raise_for_status()
    run_id = (await product.http.post(f"{path}/async", json={"input": "Hello", "stream_tokens": True})).json()["id"]
    async with reading(product.http, run_id) as reader:
        await words_shown(reader, 3)
        narrowed = await product.http.patch(f"/v1/agents/{agent.id}", json={"context_window_limit": 1_000})
        narrowed.raise_for_status()
        await first.kill()
        await end_leases(product.context.redis)
        await processes.worker()
        await reader.end()

    reader.assert_complete()
    (restarted,) = reader.notes("step_restarted")
    assert restarted["void_message_ids"] == [reader.of_type("assistant_message")[0]["id"]]
    assert (await answers(product, agent.id))[-1] == "All of it."
    assert asked_for(models, 3)[-1]["role"] == "user"


async def test_a_run_that_is_cancelled_while_its_answer_goes_on_keeps_all_that_was_shown(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    models.say("one two three four", silent_after=3)
    models.say(" four five", silent_after=1)
    first = await processes.worker()
    agent_id, run_id = await submit(product, model=CONTINUES)
    async with reading(product.http, run_id) as reader:
        await words_shown(reader, 3)
        await first.kill()
        await end_leases(product.context.redis)
        await processes.worker()
        await words_shown(reader, 4)
        await product.http.post(f"/v1/runs/{run_id}/cancel")
        await reader.end()

    assert (await product.ended(run_id))["status"] == "cancelled"
    assert await answers(product, agent_id) == ["".join(joined(reader))]


@pytest.mark.parametrize("model", [CONTINUES, "openai/gpt-4o-mini"])
async def test_a_deploy_showed_plain_clients_the_first_words_twice(
    product: Product, processes: Processes, models: ModelServer, model: str
) -> None:
    """With the usual drain, a step in hand comes to its end, and the run goes on elsewhere behind it."""
    last = msgspec.json.encode({"turn": "last"}).decode()
    stop_signal = asyncio.Event()
    first = Turn(text="word " * 50, calls=[Call("look")], pace=0.02, silent_after=3, resume=stop_signal)
    models.play(first, Turn(text=last))
    source = 'def look() -> str:\n    """Looks."""\n    return "seen"\n'
    leaving = await processes.worker(drain_s=60)
    _, run_id = await submit(product, model=model, tools=[await product.tool(source)])
    async with reading(product.http, run_id) as reader:
        await words_shown(reader, 3)
        await processes.worker()
        leaving.ask_to_end()
        stop_signal.set()
        await wait_until(lambda: len(models.requests) == 2, description="the second step")
        assert await leaving.ended() == 0
        await reader.end()

    reader.assert_complete()
    assert [text.strip() for text in joined(reader)] == [("word " * 50).strip(), last]
    assert len(models.requests) == 2
    (handed_over,) = reader.notes("step_restarted")
    assert handed_over["void_message_ids"] == [], "between two steps nothing is void"
