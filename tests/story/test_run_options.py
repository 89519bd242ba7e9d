"""What a submission says of its own run: how its model is asked, and which tools the model may and must call."""

from typing import Any

import pytest

from shared.domain.agents import ModelOptions
from shared.domain.events import ToolsReturned
from shared.domain.tools import ClientTool, ToolChoice
from tests.kit.model_server import Call, Turn
from tests.kit.model_server.server import ReceivedRequest
from tests.kit.product import Product
from tests.kit.provider_rules.request import ONE_OF_EACH_WIRE
from tests.kit.runs.item_runs import log_of, submit_run
from tests.story.test_tool_rules import ruled_agent

pytestmark = pytest.mark.shared_product

NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}
CLIENTS = ClientTool(name="clients", description="The client's.", parameters=NO_ARGUMENTS)


def chosen(request: ReceivedRequest) -> object:
    """What a request says of calls, in the words of its wire."""
    body: Any = request.body
    if "contents" in body:
        config = body.get("toolConfig", {}).get("functionCallingConfig", {})
        return config["mode"], config.get("allowedFunctionNames")
    return body.get("tool_choice")


def offered(request: ReceivedRequest) -> set[str]:
    """The tools of a request, whatever its wire."""
    tools: list[Any] = request.body.get("tools", [])
    declared = [one for tool in tools for one in tool.get("functionDeclarations", [tool.get("function", tool)])]
    return {one["name"] for one in declared}


def results_in(log: list[Any]) -> list[str]:
    return [one.text for event in log if isinstance(event, ToolsReturned) for one in event.returns]


@pytest.mark.parametrize("strict", [True, False])
async def test_the_client_says_whether_the_model_is_held_to_its_tools_schema(product: Product, strict: bool) -> None:
    agent = await product.agent()
    product.models.play(Turn(text="Done."))
    tool = ClientTool(name="clients", parameters=NO_ARGUMENTS, strict=strict)

    await log_of(product, await submit_run(product, agent.id, client_tools=[tool]))

    [declared] = [one["function"] for one in product.models.requests[0].body["tools"]]
    assert (declared["name"], declared["strict"]) == ("clients", strict)


ANY_CALL: dict[str, object] = {
    "chat": "required", "responses": "required", "anthropic": {"type": "any", "disable_parallel_tool_use": False},
    "google": ("ANY", None),
}  # fmt: skip
LOOK_ALONE: dict[str, object] = {
    "chat": {"type": "function", "function": {"name": "look"}}, "responses": {"type": "function", "name": "look"},
    "anthropic": {"type": "tool", "name": "look", "disable_parallel_tool_use": False}, "google": ("ANY", ["look"]),
}  # fmt: skip
NO_CALL: dict[str, object] = {
    "chat": "none", "responses": "none", "anthropic": {"type": "none"}, "google": ("NONE", None),
}  # fmt: skip


@pytest.mark.parametrize(("wire", "model"), list(zip(ANY_CALL, ONE_OF_EACH_WIRE, strict=True)))
async def test_a_required_call_is_demanded_of_the_first_answer_alone(product: Product, wire: str, model: str) -> None:
    """Else a run with tools of its own would never end."""
    agent_id = await ruled_agent(product, model=model)
    product.models.play(Turn(calls=[Call("look", {})]), Turn(text="Done."))

    log = await log_of(product, await submit_run(product, agent_id, tool_choice=ToolChoice("required")))

    assert results_in(log) == ["look nothing"]
    first, second = product.models.requests
    assert chosen(first) == ANY_CALL[wire]
    assert chosen(second) not in (ANY_CALL[wire], NO_CALL[wire])
    assert offered(first) == offered(second) == {"look", "book", "pay"}


@pytest.mark.parametrize(("wire", "model"), list(zip(LOOK_ALONE, ONE_OF_EACH_WIRE, strict=True)))
async def test_one_forced_tool_has_the_named_form_of_its_wire(product: Product, wire: str, model: str) -> None:
    agent_id = await ruled_agent(product, model=model)
    product.models.play(Turn(calls=[Call("look", {})]), Turn(text="Done."))

    choice = ToolChoice("required", ["look"])
    await log_of(product, await submit_run(product, agent_id, tool_choice=choice, client_tools=[CLIENTS]))

    first, second = product.models.requests
    assert chosen(first) == LOOK_ALONE[wire]
    assert chosen(second) != LOOK_ALONE[wire]
    assert offered(first) == offered(second) == {"look", "book", "pay", "clients"}


@pytest.mark.parametrize(("wire", "model"), list(zip(NO_CALL, ONE_OF_EACH_WIRE, strict=True)))
async def test_no_call_may_be_made_in_the_whole_run(product: Product, wire: str, model: str) -> None:
    """The tools are still declared: some providers refuse calls in the history without them."""
    agent_id = await ruled_agent(product, model=model)
    product.models.play(Turn(calls=[Call("look", {})]), Turn(text="Done."))

    log = await log_of(product, await submit_run(product, agent_id, tool_choice=ToolChoice("none")))

    [result] = results_in(log)
    assert "tool_choice" in result, "the server has called a tool all the same"
    for request in product.models.requests:
        assert chosen(request) == NO_CALL[wire]
        assert offered(request) == {"look", "book", "pay"}


async def test_where_calls_cannot_be_forbidden_no_tool_is_declared(product: Product) -> None:
    agent_id = await ruled_agent(product, model="zai/glm-4.6")
    product.models.play(Turn(text="Done."))

    await log_of(product, await submit_run(product, agent_id, tool_choice=ToolChoice("none")))

    assert "tools" not in product.models.requests[0].body


async def test_only_named_tools_are_offered_in_the_whole_run(product: Product) -> None:
    agent_id = await ruled_agent(product)
    product.models.play(Turn(calls=[Call("look", {}), Call("pay", {})]), Turn(text="Done."))

    choice = ToolChoice(names=["look", "clients"])
    log = await log_of(product, await submit_run(product, agent_id, tool_choice=choice, client_tools=[CLIENTS]))

    done, refused = results_in(log)
    assert (done, "tool_choice" in refused) == ("look nothing", True)
    assert [offered(request) for request in product.models.requests] == [{"look", "clients"}] * 2


async def test_a_call_of_a_clients_tool_that_is_not_offered_does_not_wait(product: Product) -> None:
    agent_id = await ruled_agent(product)
    product.models.play(Turn(calls=[Call("clients", {})]), Turn(text="Done."))

    log = await log_of(
        product, await submit_run(product, agent_id, tool_choice=ToolChoice("none"), client_tools=[CLIENTS])
    )

    assert results_in(log) == ["Error: there is no tool named 'clients'. Available: none."]


async def test_a_model_that_named_no_tool_was_told_of_the_agents_tools_alone(product: Product) -> None:
    """The tools of the client are the larger part of what it may call."""
    agent_id = await ruled_agent(product)
    product.models.play(Turn(calls=[Call("lok", {})]), Turn(text="Done."))

    log = await log_of(product, await submit_run(product, agent_id, client_tools=[CLIENTS]))

    assert results_in(log) == ["Error: there is no tool named 'lok'. Available: look, book, pay, clients."]


async def test_one_of_several_must_be_called(product: Product) -> None:
    agent_id = await ruled_agent(product)
    product.models.play(Turn(calls=[Call("look", {})]), Turn(text="Done."))

    await log_of(product, await submit_run(product, agent_id, tool_choice=ToolChoice("required", ["look", "pay"])))

    first, second = product.models.requests
    assert (chosen(first), offered(first)) == ("required", {"look", "pay"})
    assert (chosen(second), offered(second)) == ("auto", {"look", "book", "pay"})


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        (ToolChoice("none"), "tool_choice is 'none', but the agent's tools and tool rules demand a call of look now."),
        (ToolChoice("required", ["pay"]), "demand a call of look now"),
        (ToolChoice(names=["pay"]), "demand a call of look now"),
        (ToolChoice(names=["fly"]), "tool_choice names 'fly', which is no tool of the agent or of the request. There"),
    ],
)
async def test_the_agents_rules_keep_their_force(product: Product, choice: ToolChoice, reason: str) -> None:
    """A choice that contradicts them fails the run by name, before the model is asked."""
    agent_id = await ruled_agent(product, {"type": "run_first", "tool_name": "look"})
    run_id = await submit_run(product, agent_id, tool_choice=choice)
    await log_of(product, run_id)

    run = await product.run(run_id)
    assert run["status"] == "failed"
    assert reason in str(run["metadata"]["error"])
    assert product.models.requests == []


async def test_a_rule_and_a_choice_may_demand_the_same_call(product: Product) -> None:
    agent_id = await ruled_agent(product, {"type": "run_first", "tool_name": "look"})
    product.models.play(Turn(calls=[Call("look", {})]), Turn(text="Done."))

    await log_of(product, await submit_run(product, agent_id, tool_choice=ToolChoice("required", ["look", "pay"])))

    first, second = product.models.requests
    assert (chosen(first), offered(first)) == ("required", {"look"})
    assert chosen(second) == "auto"


async def test_a_model_that_ignores_the_choice_is_told_once_and_then_the_run_fails(product: Product) -> None:
    agent_id = await ruled_agent(product, model="ollama/qwen3")
    product.models.play(Turn(text="No."), Turn(text="No."))
    run_id = await submit_run(product, agent_id, tool_choice=ToolChoice("required"))
    await log_of(product, run_id)

    first, second = product.models.requests
    assert chosen(first) == chosen(second) == "required"
    assert "(tool_choice). Call one." in str(second.body["messages"][-1]["content"])
    run = await product.run(run_id)
    assert (run["status"], "makes none" in str(run["metadata"])) == ("failed", True)


async def test_a_model_that_was_told_makes_its_call_and_is_free_again(product: Product) -> None:
    agent_id = await ruled_agent(product, model="ollama/qwen3")
    product.models.play(Turn(text="No."), Turn(calls=[Call("look", {})]), Turn(text="Done."))

    log = await log_of(product, await submit_run(product, agent_id, tool_choice=ToolChoice("required")))

    assert results_in(log) == ["look nothing"]
    assert [chosen(request) for request in product.models.requests] == ["required", "required", "auto"]


async def test_the_built_in_models_make_the_call_that_is_demanded(product: Product) -> None:
    agent_id = await ruled_agent(product, model="builtin/echo")
    choice = ToolChoice("required", ["book"])
    log = await log_of(product, await submit_run(product, agent_id, tool_choice=choice))
    assert results_in(log) == ["book nothing"]


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("openai/gpt-5", {"model_options": ModelOptions(top_p=0.5), "demanded": ["top_p"]}),
        ("deepseek/deepseek-chat", {"tool_choice": ToolChoice("required")}),
    ],
)
async def test_what_a_model_lacks_fails_the_run_by_name(product: Product, model: str, options: dict[str, Any]) -> None:
    agent_id = await ruled_agent(product, model=model)
    run_id = await submit_run(product, agent_id, **options)
    await log_of(product, run_id)

    run = await product.run(run_id)
    assert run["status"] == "failed"
    name = "top_p" if "demanded" in options else "tool_choice"
    assert f"{name}: the model '{model}'" in str(run["metadata"]["error"])
    assert product.models.requests == []


async def test_a_rule_that_cannot_be_forced_is_no_demand_of_the_run(product: Product) -> None:
    agent_id = await ruled_agent(product, {"type": "run_first", "tool_name": "look"}, model="deepseek/deepseek-chat")
    product.models.play(Turn(calls=[Call("look", {})]), Turn(text="Done."))
    log = await log_of(product, await submit_run(product, agent_id, tool_choice=ToolChoice(), demanded=["top_p"]))
    assert results_in(log) == ["look nothing"]
