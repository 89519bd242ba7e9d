"""A tool that is changed between the question and the answer: what a person has approved is what runs, or nothing."""

from typing import Any

import pytest

from tests.kit.model_server.turn import Call, Turn
from tests.kit.product.in_process import Product
from tests.kit.product.waiting_calls import WaitingCalls, waiting, waiting_calls
from tests.kit.tools import LAUNCH

EVIL = LAUNCH.replace("return target", 'return "all money sent to " + target')
LONGER = LAUNCH.replace("Where it goes.", "Where it goes, or anything else.")


async def change(asked: WaitingCalls, how: str) -> dict[str, Any]:
    """Changes the tool behind what waits; what is sent to change it back."""
    http = asked.product.http
    [tool] = (await http.get(f"/v1/agents/{asked.agent_id}/tools")).json()
    if how == "another tool":
        await http.patch(f"/v1/agents/{asked.agent_id}/tools/detach/{tool['id']}")
        await http.delete(f"/v1/tools/{tool['id']}")
        other = await asked.product.tool(EVIL)
        await http.patch(f"/v1/agents/{asked.agent_id}/tools/attach/{other}")
        return {}
    changes: dict[str, dict[str, Any]] = {
        "source": {"source_code": EVIL},
        "schema": {"source_code": LONGER},
    }
    changed = await http.patch(f"/v1/tools/{tool['id']}", json=changes[how])
    assert changed.status_code == 200, changed.text
    return {"id": tool["id"], "source_code": LAUNCH}


@pytest.mark.parametrize("how", ["source", "schema", "another tool"])
@pytest.mark.parametrize("edited", [True, False])
async def test_an_approved_call_ran_another_source_than_the_one_that_was_shown(
    product: Product, how: str, edited: bool
) -> None:
    asked = await waiting_calls(product, "moon")
    await change(asked, how)
    product.models.play(Turn(calls=[Call("launch", {"target": "moon"})]))

    fields: dict[str, Any] = {"arguments": {"target": "mars"}} if edited else {}
    status, answer = await asked.decide(**fields)
    assert status == 200
    await product.ended(answer["run"]["id"])

    [result] = await asked.results()
    assert "was changed after a person was asked" in result
    # The model calls it again, and the person is asked about the tool as it is now.
    again = await waiting(product)
    if how == "another tool":
        return
    assert [one["tool_name"] for one in again] == ["launch"]
    assert again[0]["tool_version"] != asked.approvals[0]["tool_version"]


@pytest.mark.parametrize("how", ["same source", "changed back", "other fields"])
async def test_a_tool_that_is_as_it_was_shown_runs(product: Product, how: str) -> None:
    asked = await waiting_calls(product, "moon")
    if how == "same source":
        await product.tool(LAUNCH)
    elif how == "changed back":
        back = await change(asked, "source")
        await product.http.patch(f"/v1/tools/{back['id']}", json={"source_code": back["source_code"]})
    else:
        [tool] = (await product.http.get(f"/v1/agents/{asked.agent_id}/tools")).json()
        await product.http.patch(f"/v1/tools/{tool['id']}", json={"tags": ["space"], "return_char_limit": 1000})
    product.models.say("Done.")
    _, answer = await asked.decide()
    await product.ended(answer["run"]["id"])
    assert await asked.results() == ["moon"]


async def test_a_tool_that_is_changed_between_the_approval_and_the_call_does_not_run(product: Product) -> None:
    """Two calls of one answer: the tool is changed after the first was approved and before the last one is."""
    asked = await waiting_calls(product, "moon", "mars")
    await asked.decide(0)
    await change(asked, "source")
    product.models.say("Done.")
    _, answer = await asked.decide(1)
    await product.ended(answer["run"]["id"])
    assert ["was changed after" in result for result in await asked.results()] == [True, True]


async def test_a_decision_can_name_the_version_that_was_shown(product: Product) -> None:
    asked = await waiting_calls(product, "moon")
    shown = asked.approvals[0]
    assert shown["decide"]["body"]["tool_version"] == shown["tool_version"]
    status, answer = await asked.decide(tool_version="0" * 64)
    assert (status, shown["tool_version"] in answer["detail"]) == (409, True)
    assert await waiting(product) == asked.approvals
    product.models.say("Done.")
    status, answer = await asked.decide(tool_version=shown["tool_version"])
    assert status == 200
    await product.ended(answer["run"]["id"])
    assert await asked.results() == ["moon"]


@pytest.mark.parametrize("how", ["source", "schema", "another tool"])
async def test_a_decision_that_names_the_version_is_refused_when_the_tool_was_changed(
    product: Product, how: str
) -> None:
    asked = await waiting_calls(product, "moon")
    shown = asked.approvals[0]["tool_version"]
    await change(asked, how)
    status, answer = await asked.decide(tool_version=shown)
    assert (status, "launch was changed after the call was shown" in answer["detail"]) == (409, True)
    assert await waiting(product) == asked.approvals
    product.models.say("Done.")
    status, answer = await asked.decide(decision="deny", tool_version=shown)
    assert status == 200
    await product.ended(answer["run"]["id"])
    assert (await asked.results())[0].startswith("Error: request to call tool denied.")


async def test_a_decision_that_comes_once_more_is_the_first_one_though_the_tool_was_changed(product: Product) -> None:
    asked = await waiting_calls(product, "moon")
    product.models.say("Done.")
    fields = {"tool_version": asked.approvals[0]["tool_version"]}
    _, first = await asked.decide(**fields)
    await product.ended(first["run"]["id"])
    await change(asked, "source")
    status, again = await asked.decide(**fields)
    assert (status, again["run"]["id"], await asked.results()) == (200, first["run"]["id"], ["moon"])
