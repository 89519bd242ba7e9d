"""Stories that share a product do not meet: what one made is another project's, and what it left to do is gone."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kit.model_server import Turn
from tests.kit.model_server.turn import FOREVER
from tests.kit.product import Product
from tests.kit.product.shared_product import SharedProduct, embedded_backends
from tests.kit.wait_until import wait_until

WHAT_THERE_IS = ("/v1/agents", "/v1/runs", "/v1/messages", "/v1/blocks", "/v1/conversations")


@pytest.fixture
async def shared(migrated_sqlite_file: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SharedProduct]:
    made = SharedProduct(lambda: embedded_backends(migrated_sqlite_file, tmp_path_factory.mktemp("shared")))
    await made.start()
    yield made
    await made.aclose()


async def expect_nothing(product: Product) -> None:
    """Of whatever a test could have left, this project sees nothing."""
    for path in WHAT_THERE_IS:
        assert (await product.http.get(path)).json() == [], path
    assert not product.models.requests


async def answer(product: Product) -> str:
    """What the model says to an agent of this project."""
    agent = await product.agent(memory_blocks=[{"label": "human", "value": "Somebody."}])
    await product.client.agents.messages.create(agent_id=agent.id, input="Hello")
    return (await product.history(agent.id))[-1]["content"]


async def test_the_next_story_has_a_project_of_its_own_and_no_answer_of_the_last_one(shared: SharedProduct) -> None:
    async with shared.project() as first:
        await expect_nothing(first)
        shared.models.say("The first.")
        shared.models.say("Nobody takes this.")
        assert await answer(first) == "The first."
    await shared.end_test()
    async with shared.project() as second:
        assert (second.base_url, second.project_id != first.project_id) == (first.base_url, True)
        await expect_nothing(second)
        assert await answer(second) == "OK."


async def test_a_run_that_goes_on_after_its_story_meets_no_other(shared: SharedProduct) -> None:
    """It would take the next story's answers, and be among what its metrics and its worker's places count."""
    async with shared.project() as first:
        shared.models.play(Turn(text="never", silent_before_headers=FOREVER))
        agent = await first.agent()
        await first.client.agents.messages.create_async(agent_id=agent.id, input="Hello")
        await wait_until(lambda: shared.models.requests, description="the model to be asked")
    await shared.end_test()
    async with shared.project() as second:
        await expect_nothing(second)
        shared.models.say("The second.")
        assert await answer(second) == "The second."
        assert len(shared.models.requests) == 1


async def test_who_has_no_key_is_nobody_from_the_first_request_on(shared: SharedProduct) -> None:
    """A server that has no key yet would take everybody for one project."""
    async with shared.project() as product:
        anonymous = await product.http.get("/v1/agents", headers={"Authorization": ""})
        assert anonymous.status_code == 401
