"""What an agent is made with, and what each of its runs begins with."""

from typing import Any

import pytest

from tests.kit.model_server import Call, Turn
from tests.kit.product import Product

pytestmark = pytest.mark.shared_product

SOURCE = 'def ping() -> str:\n    """Pings."""\n    return "pong"\n'


def asked(product: Product, number: int = -1) -> list[dict[str, Any]]:
    """The messages of a model request."""
    return product.models.requests[number].body["messages"]


async def test_a_history_begins_with_the_messages_that_the_agent_was_made_with(product: Product) -> None:
    """`initial_message_sequence` was accepted and dropped."""
    agent = await product.agent(
        initial_message_sequence=[
            {"role": "user", "content": "My name is Ada."},
            {"role": "assistant", "content": [{"type": "text", "text": "Noted."}]},
        ]
    )
    await product.client.agents.messages.create(agent.id, input="Who am I?")

    assert [(m["role"], m["content"]) for m in asked(product)[1:]] == [
        ("user", "My name is Ada."),
        ("assistant", "Noted."),
        ("user", "Who am I?"),
    ]
    shown = [(m["message_type"], m["content"]) for m in (await product.history(agent.id))[1:3]]
    assert shown == [("user_message", "My name is Ada."), ("assistant_message", "Noted.")]


async def test_a_history_cannot_begin_with_a_decision(product: Product) -> None:
    body = {"model": "builtin/echo", "initial_message_sequence": [{"type": "approval", "approve": True}]}
    answer = await product.http.post("/v1/agents/", json=body)
    assert (answer.status_code, "initial_message_sequence" in answer.text) == (422, True)


async def test_variables_are_filled_into_new_blocks(product: Product) -> None:
    """`memory_variables` were accepted and dropped."""
    block = {"label": "human", "value": "{{name}} and {{ pet }}, not {{other}}"}
    agent = await product.agent(memory_blocks=[block], memory_variables={"name": "Ada", "pet": "Rex"})

    [made] = (await product.http.get(f"/v1/agents/{agent.id}/core-memory/blocks")).json()
    assert made["value"] == "Ada and Rex, not {{other}}"
    body = {"model": "builtin/echo", "memory_blocks": [block | {"limit": 40}], "memory_variables": {"name": "A" * 40}}
    refused = await product.http.post("/v1/agents/", json=body)
    assert (refused.status_code, "memory_variables" in refused.text) == (400, True)


async def test_an_agent_that_forgets_begins_each_run_with_nothing_but_its_instructions(product: Product) -> None:
    """`message_buffer_autoclear` was accepted: the second message still carried the first."""
    product.models.play(
        Turn(text="One."), Turn(calls=[Call("ping", {})]), Turn(text="Two."), Turn(text="Three."), Turn(text="Four.")
    )
    tool = await product.tool(SOURCE, default_requires_approval=True)
    agent = await product.agent(tools=[tool], message_buffer_autoclear=True)
    send = product.client.agents.messages.create

    await send(agent.id, input="First")
    await send(agent.id, input="Second")
    [waiting] = (await product.http.get("/v1/approvals")).json()
    decided = await product.http.post(f"/v1/approvals/{waiting['id']}", json={"decision": "approve"})
    await product.ended(decided.json()["run"]["id"])

    assert [m["role"] for m in asked(product, 1)] == ["system", "user"]
    # A run that went on after a decision has kept its question.
    assert [m["role"] for m in asked(product, 2)] == ["system", "user", "assistant", "tool"]
    await product.client.agents.update(agent.id, message_buffer_autoclear=False)
    await send(agent.id, input="Third")
    assert len(asked(product)) == 6
    listed = [m["content"] for m in await product.history(agent.id) if m["message_type"] == "user_message"]
    assert listed == ["First", "Second", "Third"]


async def test_the_model_is_told_of_the_clients_skills_for_one_run(product: Product) -> None:
    """`client_skills` were dropped: the model of Letta Code knew none of its skills."""
    agent = await product.agent(system="Be kind.")
    skills: Any = [{"name": "pdf", "description": "Reads PDFs.", "location": "/skills/pdf/SKILL.md"}]

    await product.client.agents.messages.create(agent.id, input="Hello", client_skills=skills)
    await product.client.agents.messages.create(agent.id, input="Hello again")

    told = "<available_skills>\n/skills\n└── pdf/\n    └── SKILL.md (Reads PDFs.)\n</available_skills>"
    assert asked(product, 0)[0]["content"].endswith(f"\n\n{told}")
    assert "<available_skills>" not in asked(product, 1)[0]["content"]
