"""Agents with a small window, models that fill it, and checks of their history."""

from itertools import count
from typing import Any

from tests.kit.model_server import Call, ReceivedRequest, Turn
from tests.kit.model_server.window import CountingModel, tokens_of
from tests.kit.product.in_process import Product
from tests.kit.provider_rules.request import broken_rules

WINDOW = 4_000
REPORT = '''
def report(number: int, words: int) -> str:
    """
    Reports.

    Args:
        number (int): Which report.
        words (int): How long it is.
    """
    return f"report {number}: " + "word " * words
'''


async def small_agent(product: Product, **fields: Any) -> str:
    """An agent with a small window and the tool `report`."""
    tool = await product.tool(REPORT)
    given: dict[str, Any] = {"context_window_limit": WINDOW, **fields}
    return (await product.agent(tools=[tool], **given)).id


def reports(times: int, words: int = 200) -> CountingModel:
    """A model that asks for this many reports, and then answers."""
    numbers = count(1)

    def answer(request: ReceivedRequest) -> Turn:
        number = next(numbers)
        if number > times:
            return Turn(text="All is reported.")
        return Turn(calls=[Call("report", {"number": number, "words": words})])

    return CountingModel(answer)


def chat(words: int = 120) -> CountingModel:
    """A model that talks."""
    return CountingModel(lambda _: Turn(text="So " + "it is " * words))


async def talk(product: Product, agent_id: str, *texts: str) -> None:
    for text in texts:
        await product.client.agents.messages.create(agent_id=agent_id, input=text)


async def filled(product: Product, agent_id: str, model: CountingModel) -> None:
    """Talks until the next message would be too long."""
    product.models.answer_with(model)
    while not model.asked or tokens_of(model.asked[-1]) < 0.75 * WINDOW:
        await talk(product, agent_id, f"message {len(model.asked)} " + "and so on " * 40)
    assert model.summarised == []


async def summaries(product: Product, agent_id: str) -> list[dict[str, Any]]:
    listed = await product.history(agent_id)
    return [message for message in listed if message["message_type"] == "summary_message"]


def assert_valid(product: Product) -> None:
    assert [rule for request in product.models.requests for rule in broken_rules(request)] == []
