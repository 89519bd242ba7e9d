"""What an agent remembers after many turns in a small window, while one worker after the other dies over a write."""

import re
from collections import Counter
from itertools import takewhile

from shared.concurrency import background
from tests.kit.model_server import Call, ModelServer, ReceivedRequest, Turn
from tests.kit.model_server.window import CountingModel, said_to
from tests.kit.product import Product
from tests.kit.product.careful_client import ask, ask_until_answered
from tests.kit.product.processes import Processes
from tests.kit.provider_rules.request import broken_rules
from tests.kit.services.redis_losses import end_leases

TURNS = 10
WINDOW = 3_000
TOOLS = ("core_memory_append", "memory_rethink", "archival_memory_insert")
DEATHS = ("edit_memory:after:2", "intent:before:2", "compact:after", "remember:after")
"""Where each worker dies; the last one lives."""


def question_of(request: ReceivedRequest) -> int:
    """The number of the newest question."""
    return int(re.findall(r"question (\d+) ", said_to(request))[-1])


def answer(request: ReceivedRequest) -> Turn:
    """Two edits in one answer, then a passage, then words: the results at the end of the request say which is next."""
    number = question_of(request)
    results = list(takewhile(lambda message: message["role"] == "tool", reversed(request.body["messages"])))
    if not results:
        adding = Call("core_memory_append", {"label": "list", "content": f"line {number}"})
        rewriting = Call("memory_rethink", {"label": "list", "new_memory": last_lines(number)})
        return Turn(calls=[adding, rewriting])
    if len(results) == 2:
        return Turn(calls=[Call("archival_memory_insert", {"content": f"passage {number}"})])
    return Turn(text=f"Noted {number}. " + "And so on. " * 20)


def last_lines(number: int) -> str:
    """The three newest lines: what the block must be after this turn."""
    return "\n".join(f"line {one}" for one in range(max(number - 2, 0), number + 1))


async def test_each_edit_of_many_turns_is_made_once_while_workers_die(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    model = CountingModel(answer)
    models.answer_with(model)
    tools = [(await product.client.tools.list(name=name)).items[0].id for name in TOOLS]
    agent = await product.agent(
        tools=tools, memory_blocks=[{"label": "list", "value": ""}], context_window_limit=WINDOW
    )

    died: list[str] = []

    async def die_one_after_the_other() -> None:
        for point in DEATHS:
            worker = await processes.worker(crash_at=point, sweep_s=3600.0)
            assert await worker.ended() == -9
            died.append(point)
            await end_leases(product.context.redis)
        await processes.worker()

    async with background(die_one_after_the_other(), name="workers"):
        for number in range(TURNS):
            body = {"input": f"question {number} " + "and so on " * 80}
            run = await ask_until_answered(product.http, f"/v1/agents/{agent.id}/messages/async", body)
            assert (await product.ended(run["id"]))["stop_reason"] == "end_turn"

    assert died == list(DEATHS)
    memory = await product.client.agents.blocks.retrieve("list", agent_id=agent.id)
    assert memory.value == last_lines(TURNS - 1)
    passages = await ask(product.http, "GET", f"/v1/agents/{agent.id}/archival-memory?limit=100&ascending=true")
    assert passages is not None
    assert [one["text"] for one in passages.json()] == [f"passage {number}" for number in range(TURNS)]
    history = await product.history(agent.id)
    asked = [one["content"].split()[1] for one in history if one["message_type"] == "user_message"]
    assert asked == [str(number) for number in range(TURNS)]
    returns = [one for message in history for one in message.get("tool_returns") or ()]
    assert Counter(one["status"] for one in returns) == {"success": 3 * TURNS}
    assert model.longest <= WINDOW
    assert [rule for request in models.requests for rule in broken_rules(request)] == []
