"""Every list of the API, walked to its end in pages of two by both iterators of the SDK: each row comes once. And walks
that delete and add rows as they go."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, cast

import pytest
from letta_client import AsyncLetta, Letta

from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.tools import ROLL_DICE
from tests.story.test_conversations import begin, say

MOST = 100
"""More rows than any walk gives that ends."""


class Rows(NamedTuple):
    """What is listed: at least five of each."""

    agent: str
    conversation: str
    block: str
    run: str
    step: str


@dataclass(frozen=True)
class Walk:
    """A list of the SDK, and how far its iterator gets in each order."""

    listed: Callable[[AsyncLetta, Rows], Callable[..., Any]]
    """From a client to the method; what it is about is already given. The sync client has the same names."""
    least: int = 5
    desc: str = "whole"
    """`asc` is always whole. Of messages, `after` is newer whatever the order, so a `desc` walk has the page that it
    began with ("newest page"), or after that its newer part again ("repeats"): so it is on the wire."""


WALKS = {
    "agents": Walk(lambda client, _: client.agents.list),
    "agents.blocks": Walk(lambda client, rows: partial(client.agents.blocks.list, rows.agent)),
    "agents.tools": Walk(lambda client, rows: partial(client.agents.tools.list, rows.agent)),
    "agents.messages": Walk(lambda client, rows: partial(client.agents.messages.list, rows.agent), desc="newest page"),
    "blocks": Walk(lambda client, _: client.blocks.list),
    "blocks.agents": Walk(lambda client, rows: partial(client.blocks.agents.list, rows.block)),
    "conversations.messages": Walk(
        lambda client, rows: partial(client.conversations.messages.list, rows.conversation), desc="repeats"
    ),
    "runs": Walk(lambda client, _: client.runs.list),
    "runs.messages": Walk(lambda client, rows: partial(client.runs.messages.list, rows.run), desc="repeats"),
    "runs.steps": Walk(lambda client, rows: partial(client.runs.steps.list, rows.run)),
    "steps": Walk(lambda client, _: client.steps.list),
    "steps.messages": Walk(
        lambda client, rows: partial(client.steps.messages.list, rows.step), least=2, desc="repeats"
    ),
    "tools": Walk(lambda client, _: client.tools.list),
}

BY_HAND = {"conversations": "/v1/conversations", "messages": "/v1/messages", "approvals": "/v1/approvals"}
"""Lists that the SDK gives page by page, or not at all."""


async def make_rows(product: Product) -> Rows:
    client, models = product.client, product.models
    tools = [await product.tool(ROLL_DICE.replace("roll_dice", f"roll_{number}")) for number in range(4)]
    asking = await product.tool(ROLL_DICE, default_requires_approval=True)
    blocks = [(await client.blocks.create(label=f"block-{number}", value="x")).id for number in range(5)]
    agents = [(await product.agent(tools=[*tools, asking], block_ids=blocks)).id for _ in range(5)]
    conversations = [await begin(product, agents[0]) for _ in range(5)]
    for _ in range(4):
        models.play(Turn(reasoning="hm", calls=[Call("roll_0", {"num_sides": 6})]))
    models.play(Turn(text="Six."))
    run = (await say(product, conversations[0], "roll")).json()["messages"][0]["run_id"]
    for number in range(2):
        await client.agents.messages.create(agents[0], input=f"hello {number}")
    models.play(Turn(calls=[Call("roll_dice", {"num_sides": 6}) for _ in range(5)]))
    await client.agents.messages.create(agents[1], input="roll")
    models.play(Turn(text="OK."))
    await client.agents.messages.create(agents[2], input="hello")
    step = (await client.runs.steps.list(run, order="asc")).items[0]
    return Rows(agents[0], conversations[0], blocks[0], run, str(step.id))


def rows_of(items: Iterable[Any]) -> list[tuple[str, str]]:
    """What makes a row another one: several parts of a message share an id."""
    shown = [item.to_dict() if hasattr(item, "to_dict") else item for item in items]
    return [(item["id"], item.get("message_type", "")) for item in shown]


async def at_most(walk: AsyncIterator[Any]) -> list[Any]:
    found: list[Any] = []
    async for item in walk:
        found.append(item)
        assert len(found) <= MOST, "the walk does not end"
    return found


async def walked_by_both(product: Product, walk: Walk, rows: Rows, **page: Any) -> list[tuple[str, str]]:
    """The rows of a walk; the sync iterator and the async one must agree."""
    by_async = rows_of(await at_most(walk.listed(product.client, rows)(**page)))
    with Letta(base_url=product.base_url, api_key="none", max_retries=0) as client:
        by_sync = await asyncio.to_thread(
            lambda: rows_of(islice(walk.listed(cast("AsyncLetta", client), rows)(**page), MOST + 1))
        )
    assert by_async == by_sync
    return by_async


async def test_every_list_is_walked_to_its_end(product: Product) -> None:
    rows = await make_rows(product)
    for name, walk in WALKS.items():
        for order in ("asc", "desc"):
            whole = rows_of((await walk.listed(product.client, rows)(limit=1000, order=order)).items)
            walked = await walked_by_both(product, walk, rows, limit=2, order=order)
            assert len(whole) >= walk.least, name
            assert len(set(whole)) == len(whole), name
            if order == "asc" or walk.desc == "whole":
                assert walked == whole, (name, order)
            elif walk.desc == "newest page":
                assert walked == whole[-len(walked) :] != whole, (name, order)
            else:
                assert set(walked) <= set(whole), (name, order)
                assert walked != whole, (name, order)


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_lists_that_the_sdk_does_not_page_are_walked_by_hand(product: Product, order: str) -> None:
    await make_rows(product)
    for name, path in BY_HAND.items():
        # Of messages, `after` is newer whatever the order: the walk goes back by `before` the page's first.
        backwards = name == "messages" and order == "desc"
        whole = rows_of((await product.http.get(path, params={"limit": 1000, "order": order})).json())
        walked: list[tuple[str, str]] = []
        page: dict[str, Any] = {}
        while found := rows_of((await product.http.get(path, params={"limit": 2, "order": order, **page})).json()):
            walked = [*found, *walked] if backwards else [*walked, *found]
            page = {"before": found[0][0]} if backwards else {"after": found[-1][0]}
            assert len(walked) <= MOST, "the walk does not end"
        assert walked == whole, name
        assert len(whole) >= 5, name


async def test_deleting_what_is_listed_raised_at_the_second_page(product: Product) -> None:
    client = product.client
    for number in range(5):
        await product.agent(block_ids=[(await client.blocks.create(label="a", value="x")).id])
        await product.tool(ROLL_DICE.replace("roll_dice", f"roll_{number}"))
    async for agent in client.agents.list(limit=2):
        await client.agents.delete(agent.id)
    async for tool in client.tools.list(limit=2):
        await client.tools.delete(tool.id)
    async for block in client.blocks.list(limit=2):
        await client.blocks.delete(block.id)
    assert ((await client.agents.list()).items, (await client.blocks.list()).items) == ([], [])
    assert (await client.tools.list()).items == []


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_replacing_what_is_listed_comes_to_an_end(product: Product, order: Any) -> None:
    """On the wire it does not: a page that follows a deleted row begins at the first row again, with the new ones."""
    before = [(await product.agent()).id for _ in range(5)]
    seen: list[str] = []
    async for agent in product.client.agents.list(limit=2, order=order):
        seen.append(agent.id)
        assert len(seen) <= MOST, "the walk does not end"
        await product.client.agents.delete(agent.id)
        if order == "desc" or len(seen) == 1:
            await product.agent()
    assert set(seen) >= set(before)
    assert len(seen) == len(set(seen))


async def test_a_walk_from_a_row_on_deletes_nothing_in_front_of_it(product: Product) -> None:
    """A cursor that is passed over because its row was deleted would lead to rows that nobody meant."""
    ids = [(await product.agent()).id for _ in range(5)]
    async for agent in product.client.agents.list(limit=1, after=ids[3], order="desc"):
        await product.client.agents.delete(agent.id)
    assert [agent.id for agent in (await product.client.agents.list(order="asc")).items] == ids[3:]
