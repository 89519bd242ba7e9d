"""What a submission says of its own run: how its model is asked, and which tools the model may and must call."""

from typing import Any

import pytest

from shared.domain.tools import ClientTool
from tests.kit.model_server import Turn
from tests.kit.product import Product
from tests.kit.runs.item_runs import log_of, submit_run

pytestmark = pytest.mark.shared_product

NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}


@pytest.mark.parametrize("strict", [True, False])
async def test_the_client_says_whether_the_model_is_held_to_its_tools_schema(product: Product, strict: bool) -> None:
    agent = await product.agent()
    product.models.play(Turn(text="Done."))
    tool = ClientTool(name="clients", parameters=NO_ARGUMENTS, strict=strict)

    await log_of(product, await submit_run(product, agent.id, client_tools=[tool]))

    [declared] = [one["function"] for one in product.models.requests[0].body["tools"]]
    assert (declared["name"], declared["strict"]) == ("clients", strict)
