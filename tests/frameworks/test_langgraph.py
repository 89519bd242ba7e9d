"""Graphs of LangGraph: what no other framework has, and what its adapter refuses."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from shared.domain.events import DataPart
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import Decision, ImageContent, TextContent, UserMessage
from shared.domain.runs import Run, RunOptions
from tests.kit.frameworks.pages import checked, said_by_check
from tests.kit.frameworks.world import FrameworkWorld, Installed
from tests.kit.model_server import Call, Failure, Turn
from tests.kit.project.documents import ROOT
from tests.kit.runs.stored_runs import message, said
from tests.kit.wait_until import wait_until

FRAMEWORK = "langgraph"


async def _completed(world: FrameworkWorld, run: Run) -> Run:
    run = await world.done(run)
    assert run.status is RunStatus.COMPLETED, run.error
    return run


async def _waiting(world: FrameworkWorld, run: Run) -> tuple[Run, str, str]:
    """The run, and what it asks a person for."""
    run = await world.done(run)
    assert run.status is RunStatus.AWAITING_APPROVAL, run.error
    [asked] = await world.stores.asked(run)
    return run, asked.tool_name, asked.arguments


async def _decided(
    world: FrameworkWorld, run: Run, *, approve: bool, edited: str | None = None, reason: str = ""
) -> Run:
    """The run that goes on behind a person's decision."""
    return await (world.approved(run, edited) if approve else world.denied(run, reason))


@pytest.mark.parametrize(
    ("decision", "answer"),
    [
        ({"approve": True}, "True"),
        ({"approve": True, "edited": '{"draft": "Better."}'}, "{'draft': 'Better.'}"),
        ({"approve": False, "reason": "no"}, "False"),
    ],
    ids=["approved", "edited", "denied"],
)
async def test_an_interrupt_asks_a_person(world: FrameworkWorld, decision: dict[str, Any], answer: str) -> None:
    world.models.say("Dear otters.")
    run, name, arguments = await _waiting(world, await world.submitted("reviewed"))
    assert (name, arguments) == ("review", '{"draft": "Dear otters."}')
    run = await _completed(world, await _decided(world, run, **decision))
    assert len(world.models.requests) == 1, "the recorded answer was asked for again"
    assert (await world.texts())[-1] == f"reviewed: {answer}"
    assert "Dear otters." not in await world.shown_text(run), "the model's tag hides its text"


async def test_a_graph_that_is_a_tool_interrupts(world: FrameworkWorld) -> None:
    world.models.play(
        Turn(calls=[Call("ask_expert", {"input": "A letter"})]), Turn(text="Dear otters."), Turn(text="It is written.")
    )
    run, _, arguments = await _waiting(world, await world.submitted("advised"))
    assert arguments == '{"draft": "Dear otters."}'
    await _completed(world, await _decided(world, run, approve=True, edited='{"draft": "Dear eels."}'))
    assert len(world.models.requests) == 3, "a recorded answer was asked for again"
    assert "Dear eels." in world.sent_to_model(2)[-1]["content"]
    assert (await world.texts())[-1] == "It is written."
    assert await world.is_valid()


async def test_a_tool_that_interrupts_starts_no_other_twice(world: FrameworkWorld) -> None:
    """LangGraph executes the node again, with all of its calls."""
    calls = [Call("look", {"what": "otters"}), Call("ask_human", {"question": "Why?"})]
    world.models.play(Turn(calls=calls), Turn(text="I see."))
    run, name, arguments = await _waiting(world, await world.submitted("asking"))
    assert (name, arguments) == ("tools", '{"question": "Why?"}')
    await _completed(world, await _decided(world, run, approve=True, edited='{"answer": "Because."}'))
    heard = [one["content"] for one in world.sent_to_model(1)[-2:]]
    assert heard == ["found otters", "the human says Because."]
    assert world.stage.reached.count("look otters") == 1, "a tool was started twice"
    assert len(world.models.requests) == 2


@pytest.mark.parametrize(("agent", "together"), [("asking", 1), ("careful", 2)])
async def test_tools_that_interrupt_side_by_side_get_their_own_answers(
    world: FrameworkWorld, agent: str, together: int
) -> None:
    """LangGraph gives an answer to the interrupt with its number in the node. An agent of LangChain executes each call
    as a task of its own, and so both ask in one pause."""
    answers = {"Why?": "Because.", "When?": "Now."}
    world.models.play(Turn(calls=[Call("ask_human", {"question": one}) for one in answers]), Turn(text="I see."))
    run = await world.done(await world.submitted(agent))
    while run.status is RunStatus.AWAITING_APPROVAL:
        asked = await world.stores.asked(run)
        assert len(asked) == together
        questions = [json.loads(one.arguments)["question"] for one in asked]
        edited = [json.dumps({"answer": answers[one]}) for one in questions]
        decisions = [
            Decision(tool_call_id=one.tool_call_id, approve=True, edited_arguments=arguments)
            for one, arguments in zip(asked, edited, strict=True)
        ]
        run = await world.done(await world.stores.decide(*decisions))
    assert run.status is RunStatus.COMPLETED, run.error
    heard = [one["content"] for one in world.sent_to_model(1)[-2:]]
    assert heard == ["the human says Because.", "the human says Now."]
    asked = [one for one in world.stage.reached if one.startswith("asks ")]
    assert sorted(asked) == ["asks When?", "asks When?", "asks Why?", "asks Why?"]


@pytest.mark.parametrize(
    ("decision", "sent", "heard"),
    [
        ({"approve": True}, ["send ada"], "sent to ada"),
        ({"approve": True, "edited": '{"to": "bob"}'}, ["send bob"], "sent to bob"),
        ({"approve": False, "reason": "not today"}, [], "not today"),
    ],
    ids=["approved", "edited", "denied"],
)
@pytest.mark.parametrize("agent", ["created", "careful"])
async def test_an_agent_of_langchain_asks_a_person(
    world: FrameworkWorld, agent: str, decision: dict[str, Any], sent: list[str], heard: str
) -> None:
    """By the adapter's `needs_approval`, and by LangChain's own middleware."""
    world.models.play(Turn(text="May I?", calls=[Call("send", {"to": "ada"})]), Turn(text="Well."))
    run, name, arguments = await _waiting(world, await world.submitted(agent))
    assert (name, arguments) == ("send", '{"to": "ada"}')
    await _completed(world, await _decided(world, run, **decision))
    assert [one for one in world.stage.reached if one.startswith("send")] == sent
    assert heard in world.sent_to_model(1)[-1]["content"]
    assert await world.is_valid()


async def test_actions_of_one_answer_are_asked_about_in_one_pause(world: FrameworkWorld) -> None:
    """LangChain's middleware interrupts once for all of them."""
    world.models.play(Turn(calls=[Call("send", {"to": to}) for to in ("ada", "bob")]), Turn(text="Well."))
    run = await world.done(await world.submitted("careful"))
    asked = await world.stores.asked(run)
    assert sorted(one.arguments for one in asked) == ['{"to": "ada"}', '{"to": "bob"}']
    decisions = [Decision(tool_call_id=one.tool_call_id, approve="ada" in one.arguments) for one in asked]
    await _completed(world, await world.stores.decide(*decisions))
    assert [one for one in world.stage.reached if one.startswith("send")] == ["send ada"]
    assert await world.is_valid()


async def test_a_message_comes_behind_the_results_of_an_agent_of_langchain(world: FrameworkWorld) -> None:
    """It executes each call as a task of its own."""
    calls = [Call("look", {"what": what}) for what in ("otters", "eels")]
    world.models.play(Turn(calls=calls), Turn(text="Found."))
    run = await world.submitted("created", "Find otters")
    worker = await world.begun(run, "look otters")
    await world.stores.inbox.inject(await world.stores.runs.look_up(run.id), [said("And hurry")], "refuse")
    world.stage.go_on()
    assert await worker.ended() is None
    heard = [(one["role"], one["content"]) for one in world.sent_to_model(1)[-3:]]
    assert heard == [("tool", "found otters"), ("tool", "found eels"), ("user", "And hurry")]


async def test_nodes_in_threads_side_by_side_are_replayed(world: FrameworkWorld) -> None:
    world.models.answer_with(lambda request: Turn(text=f"{request.body['messages'][-1]['content']} done"))
    run = await world.submitted("beside")
    worker = await world.begun(run, "behind both")
    world.kill()
    world.stage.go_on()
    assert await worker.ended() is None
    run = await world.stores.runs.look_up(run.id)
    assert run.status is RunStatus.COMPLETED, run.error
    assert len(world.models.requests) == 2, "a recorded answer was asked for again"
    assert "left done right done" in (await world.texts())[-1]


async def test_a_tool_that_says_what_comes_next_is_replayed(world: FrameworkWorld) -> None:
    world.models.play(Turn(calls=[Call("hand_over", {"to": "expert"})]), Turn(text="I am the expert."))
    run = await world.submitted("handing")
    worker = await world.begun(run, "expert")
    world.kill()
    world.stage.go_on()
    assert await worker.ended() is None
    run = await world.stores.runs.look_up(run.id)
    assert run.status is RunStatus.COMPLETED, run.error
    assert world.stage.reached.count("hands over to expert") == 1
    assert world.sent_to_model(1)[-1]["content"] == "You are an expert now."
    assert (await world.texts())[-1] == "I am the expert."


async def test_a_message_comes_behind_a_tool_that_says_what_comes_next(world: FrameworkWorld) -> None:
    world.models.play(Turn(calls=[Call("hand_over", {"to": "expert"})]), Turn(text="I am the expert."))
    run = await world.submitted("handing")
    worker = await world.begun(run, "hands over to expert")
    await world.stores.inbox.inject(await world.stores.runs.look_up(run.id), [said("And hurry")], "refuse")
    world.stage.go_on()
    assert await worker.ended() is None
    assert [one["content"] for one in world.sent_to_model(1)[-2:]] == ["You are an expert now.", "And hurry"]
    assert len(world.models.requests) == 2
    assert (await world.texts())[-2:] == ["And hurry", "I am the expert."]


async def test_a_node_with_tools_is_tried_again(world: FrameworkWorld) -> None:
    """The call that failed alone is made again."""
    calls = [Call("try_twice", {"what": "otters"}), Call("look", {"what": "eels"})]
    world.models.play(Turn(calls=calls), Turn(text="Found."))
    await _completed(world, await world.submitted("twice"))
    assert [one["content"] for one in world.sent_to_model(1)[-2:]] == ["found otters", "found eels"]
    assert [world.stage.reached.count(one) for one in ("tries otters", "look eels")] == [2, 1]


async def test_an_idempotent_tool_is_started_again_after_a_crash(world: FrameworkWorld) -> None:
    world.models.play(Turn(calls=[Call("look", {"what": "otters"})]), Turn(text="Found."))
    run = await world.submitted("again")
    worker = await world.begun(run, "look otters")
    world.kill()
    await wait_until(lambda: world.stage.reached.count("look otters") == 2, description="it to be started again")
    world.stage.go_on()
    assert await worker.ended() is None
    assert world.sent_to_model(1)[-1]["content"] == "found otters"
    assert await world.results() == ["found otters"]


async def test_the_state_is_a_dataclass(world: FrameworkWorld) -> None:
    calls = [Call("look", {"what": what}) for what in ("otters", "eels")]
    world.models.play(Turn(calls=calls), Turn(text="Found."))
    await _completed(world, await world.submitted("dataclass"))
    assert [one["content"] for one in world.sent_to_model(1)[-2:]] == ["found otters", "found eels"]


async def test_a_graph_in_a_graph_has_its_tools_in_the_journal(world: FrameworkWorld) -> None:
    world.models.play(Turn(calls=[Call("look", {"what": "otters"})]), Turn(text="Found."))
    run = await world.submitted("nested")
    worker = await world.begun(run, "look otters")
    world.kill()
    world.stage.go_on()
    assert await worker.ended() is None
    run = await world.stores.runs.look_up(run.id)
    assert run.status is RunStatus.COMPLETED, run.error
    assert world.stage.reached.count("look otters") == 1, "a tool was started twice"
    assert "unknown" in world.sent_to_model(1)[-1]["content"]


async def test_a_graph_with_a_checkpointer_keeps_its_state_in_the_thread(world: FrameworkWorld) -> None:
    for number in (1, 2):
        await _completed(world, await world.submitted("counting", "again"))
        assert (await world.texts())[-1] == f"run {number}"


async def test_a_node_uses_the_run(world: FrameworkWorld) -> None:
    await _completed(world, await world.submitted("stepping"))
    assert await world.results() == ["found otters"]
    assert (await world.texts())[-1] == "found otters"


async def test_what_a_node_writes_is_shown_as_data(world: FrameworkWorld) -> None:
    run = await _completed(world, await world.submitted("writing"))
    shown = [one for one in await world.events(run) if isinstance(one, DataPart)]
    assert [(one.name, one.value) for one in shown] == [("custom", {"done": 1}), ("custom", "all")]
    assert (await world.texts())[-1] == "written"


@pytest.mark.parametrize(
    ("agent", "said"),
    [("streaming", "call its ainvoke, not astream"), ("by_hand", "look is called"), ("still", "use ainvoke")],
)
async def test_what_would_pass_the_journal_is_refused(world: FrameworkWorld, agent: str, said: str) -> None:
    run = await world.done(await world.submitted(agent))
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert run.error.error_type == "body_error"
    assert said in (run.error.detail or "")
    assert "look otters" not in world.stage.reached


async def test_a_failed_answer_is_replayed_as_well(world: FrameworkWorld) -> None:
    """The node is executed again after a failure, and that is what it does again after a crash."""
    world.models.play(Turn(failure=Failure("server")), Turn(text="Here."), Turn(text="Indeed."))
    run = await world.submitted("trying")
    worker = await world.begun(run, "expert")
    world.kill()
    world.stage.go_on()
    assert await worker.ended() is None
    run = await world.stores.runs.look_up(run.id)
    assert run.status is RunStatus.COMPLETED, run.error
    assert len(world.models.requests) == 3, "a recorded answer was asked for again"
    assert (await world.texts())[-1] == "Here.Indeed."


async def test_a_model_that_fails_ends_the_run_with_its_error(world: FrameworkWorld) -> None:
    world.models.play(Turn(failure=Failure("bad_request")))
    run = await world.done(await world.submitted("created"))
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert "Error code: 400" in (run.error.detail or "")


async def test_the_model_sees_images(world: FrameworkWorld) -> None:
    world.models.say("An otter.")
    image = ImageContent(data="aGk=", media_type="image/png")
    seen = message(UserMessage(content=[TextContent("Who is it?"), image]))
    await _completed(world, await world.stores.submitted(seen, options=RunOptions(code_agent="created")))
    [text, shown] = world.sent_to_model(0)[-1]["content"]
    assert text["text"] == "Who is it?"
    assert shown["image_url"]["url"] == "data:image/png;base64,aGk="


async def test_a_version_that_is_too_old_is_refused_by_name(world: FrameworkWorld) -> None:
    program = "from holdfast.agents.langgraph import check_version; check_version('0.6.11')"
    process = await asyncio.create_subprocess_exec(
        world.hosted.python, "-c", program, cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert "langgraph 0.6.11 is too old: its graphs need 1.0.2 or newer" in said.decode()


CHECKPOINTED = """
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from holdfast.agents import register

graph = StateGraph(MessagesState).add_node("end", lambda state: {}).add_edge(START, "end")
register("kept", kept := graph.compile(checkpointer=InMemorySaver()))
register("plain", plain := graph.compile())
"""


async def test_a_check_says_that_a_checkpointer_is_not_used(installed: Installed, tmp_path: Path) -> None:
    """The module is fit all the same."""
    found = await checked(CHECKPOINTED, installed.python, tmp_path)
    assert [one["name"] for one in found["agents"]] == ["kept", "plain"]
    [warning] = found["warnings"]
    assert warning.startswith("the agent 'kept' is a graph with a checkpointer (InMemorySaver), which no run reads")
    assert "instead of get_state" in warning, "what to do"
    assert f"warning: {warning}" in (await said_by_check(CHECKPOINTED, installed.python, tmp_path)).splitlines()
