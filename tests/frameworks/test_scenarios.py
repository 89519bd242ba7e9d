"""What holds for the agents of every framework, in the newest and the oldest version that its adapter supports.

The model is a server on loopback: each test queues its answers. `Framework.lacks` names what a framework cannot have.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from shared.domain.events import StatusChanged
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import Decision
from shared.domain.runs import Run
from shared.domain.settling import OUTCOME_UNKNOWN
from shared.domain.tools import ClientTool
from tests.kit.frameworks.world import FrameworkWorld
from tests.kit.model_server import Call, ReceivedRequest, Turn
from tests.kit.runs.stored_runs import said
from tests.kit.wait_until import wait_until

SENSOR = ClientTool(
    name="sensor",
    description="Reads a sensor",
    parameters={"type": "object", "properties": {"room": {"type": "string"}}, "required": ["room"]},
)


async def test_its_text_is_shown_while_the_model_speaks(world: FrameworkWorld) -> None:
    resume = asyncio.Event()
    world.models.say("Hello there, my friend.", silent_after=2, resume=resume)
    run = await world.submitted("support", "Hi")
    worker = await world.workers().begin(run.id)
    await world.shows(run, "Hello there,")
    resume.set()
    assert await worker.ended() is None
    assert (await world.stores.runs.look_up(run.id)).status is RunStatus.COMPLETED
    assert await world.texts() == ["Hi", "Hello there, my friend."]
    assert await world.shown_text(run) == "Hello there, my friend."


async def test_it_calls_a_tool(world: FrameworkWorld) -> None:
    world.models.play(Turn(text="I look.", calls=[Call("look", {"what": "otters"})]), Turn(text="I found them."))
    run = await world.done(await world.submitted("support", "Find otters"))
    assert run.status is RunStatus.COMPLETED, run.error
    assert await world.texts() == ["Find otters", "I look.", "I found them."]
    assert await world.results() == ["found otters"]
    assert world.sent_to_model(1)[-1]["content"] == "found otters"
    assert (run.usage.prompt_tokens, run.usage.completion_tokens) == (22, 2 + 5 + 3)


async def test_a_factory_is_called_once_in_each_run(world: FrameworkWorld) -> None:
    for text in ("one", "two"):
        world.models.say("Yes.")
        assert (await world.done(await world.submitted("built", text))).status is RunStatus.COMPLETED
    assert world.stage.reached.count("built") == 2


async def test_it_knows_the_history(world: FrameworkWorld) -> None:
    world.models.play(Turn(text="I look.", calls=[Call("look", {"what": "otters"})]), Turn(text="Found."))
    await world.done(await world.submitted("support", "Find otters"))
    world.models.say("You are welcome.")
    assert (await world.done(await world.submitted("support", "Thanks"))).status is RunStatus.COMPLETED
    sent = world.sent_to_model(2)
    assert [one["role"] for one in sent] == ["user", "assistant", "tool", "assistant", "user"]
    assert sent[0]["content"] == "Find otters"
    assert sent[1]["tool_calls"][0]["function"]["name"] == "look"
    assert sent[1]["tool_calls"][0]["id"] == sent[2]["tool_call_id"]
    assert [sent[2]["content"], sent[4]["content"]] == ["found otters", "Thanks"]


async def test_its_tools_run_side_by_side(world: FrameworkWorld) -> None:
    calls = [Call("look", {"what": what}) for what in ("otters", "otters", "eels")]
    world.models.play(Turn(calls=calls), Turn(text="Found."))
    run = await world.submitted("support")
    world.stage.stop_at("look eels")
    worker = await world.begun(run, "look otters")
    await world.stage.is_reached("look eels")
    world.stage.go_on()
    assert await worker.ended() is None
    assert (await world.stores.runs.look_up(run.id)).status is RunStatus.COMPLETED
    assert world.stage.reached.count("look otters") == 2
    assert [one["content"] for one in world.sent_to_model(1)[-3:]] == ["found otters", "found otters", "found eels"]
    assert sorted(await world.results()) == ["found eels", "found otters", "found otters"]


async def test_the_model_hears_of_a_tool_that_failed(world: FrameworkWorld) -> None:
    world.models.play(Turn(calls=[Call("fail", {"what": "page"})]), Turn(text="It failed."))
    run = await world.done(await world.submitted("support"))
    assert run.status is RunStatus.COMPLETED, run.error
    assert world.hosted.framework.says_of_error in world.sent_to_model(1)[-1]["content"]
    assert await world.is_valid()


async def test_it_is_cancelled_while_the_model_speaks(world: FrameworkWorld) -> None:
    """What was shown stays in the history."""
    world.models.say("Hello there, my friend.", silent_after=2)
    run = await world.submitted("support", "Hi")
    worker = await world.workers().begin(run.id)
    await world.shows(run, "Hello there,")
    assert (await world.cancelled(run, worker)).status is RunStatus.CANCELLED
    await _nothing_is_left(world)
    assert await world.texts() == ["Hi", "Hello there,"]
    await _the_next_message_is_answered(world)


@pytest.mark.parametrize("silent", ["before_headers", "after_headers"])
async def test_it_is_cancelled_while_the_model_is_silent(world: FrameworkWorld, silent: str) -> None:
    world.models.say("Hello.", **{f"silent_{silent}": 3600.0})
    run = await world.submitted("support", "Hi")
    worker = await world.workers().begin(run.id)
    await wait_until(lambda: world.models.requests, description="the model to be asked")
    assert (await world.cancelled(run, worker)).status is RunStatus.CANCELLED
    await _nothing_is_left(world)
    await _the_next_message_is_answered(world)


@pytest.mark.parametrize("tool", ["look", "block"])
async def test_it_is_cancelled_in_a_tool(world: FrameworkWorld, tool: str) -> None:
    """Also in one that blocks its thread, which no framework can stop."""
    world.models.call(tool, what="otters")
    run = await world.submitted("support", "Hi")
    worker = await world.begun(run, f"{tool} otters")
    assert (await world.cancelled(run, worker)).status is RunStatus.CANCELLED
    assert not world.is_alive
    assert await world.is_valid()
    await _the_next_message_is_answered(world)


async def _nothing_is_left(world: FrameworkWorld) -> None:
    assert not world.is_alive
    await wait_until(lambda: world.models.requests[-1].client_left, description="the model's connection to be closed")
    assert await world.is_valid()


async def _the_next_message_is_answered(world: FrameworkWorld) -> None:
    world.stage.go_on()
    world.models.say("Here I am.")
    assert (await world.done(await world.submitted("support", "Still there?"))).status is RunStatus.COMPLETED
    assert (await world.texts())[-2:] == ["Still there?", "Here I am."]
    assert world.sent_to_model(-1)[-1]["content"].endswith("Still there?")
    assert await world.is_valid()


@pytest.mark.parametrize(
    ("decision", "sent", "heard"),
    [
        ({"approve": True}, ["send ada"], "sent to ada"),
        ({"approve": True, "edited_arguments": '{"to": "bob"}'}, ["send bob"], "sent to bob"),
        ({"approve": False, "reason": "not today"}, [], "not today"),
    ],
    ids=["approved", "edited", "denied"],
)
async def test_a_person_decides(world: FrameworkWorld, decision: dict[str, Any], sent: list[str], heard: str) -> None:
    world.models.play(Turn(text="May I?", calls=[Call("send", {"to": "ada"})]), Turn(text="Well."))
    run = await world.done(await world.submitted("support"))
    assert run.status is RunStatus.AWAITING_APPROVAL, run.error
    assert not world.is_alive, "no process waits for a person"
    [asked] = await world.stores.asked(run)
    assert (asked.tool_name, asked.arguments, asked.client_side) == ("send", '{"to": "ada"}', False)
    run = await world.done(await world.stores.decide(Decision(tool_call_id=asked.tool_call_id, **decision)))
    assert run.status is RunStatus.COMPLETED, run.error
    assert world.did == sent
    assert len(world.models.requests) == 2, "the recorded answer was asked for again"
    assert heard in world.sent_to_model(1)[-1]["content"]
    assert await world.is_valid()


async def test_calls_side_by_side_wait_in_one_pause(world: FrameworkWorld) -> None:
    """Each has its own decision, and the model hears of both in the order of its calls."""
    world.models.play(Turn(calls=[Call("send", {"to": to}) for to in ("ada", "bob")]), Turn(text="Well."))
    run = await world.done(await world.submitted("support"))
    assert run.status is RunStatus.AWAITING_APPROVAL, run.error
    asked = await world.stores.asked(run)
    assert sorted(one.arguments for one in asked) == ['{"to": "ada"}', '{"to": "bob"}']
    decisions = [
        Decision(tool_call_id=one.tool_call_id, approve="ada" in one.arguments, reason="not him") for one in asked
    ]
    run = await world.done(await world.stores.decide(*decisions))
    assert run.status is RunStatus.COMPLETED, run.error
    assert world.did == ["send ada"]
    assert len(world.models.requests) == 2, "a recorded answer was asked for again"
    heard = str([one["content"] for one in world.sent_to_model(1)[-2:]])
    assert heard.index("sent to ada") < heard.index("not him")
    assert await world.is_valid()


async def test_a_client_makes_the_call(world: FrameworkWorld) -> None:
    world.models.play(Turn(calls=[Call("sensor", {"room": "hall"})]), Turn(text="It is warm."))
    run = await world.done(await world.offered("support", SENSOR))
    assert run.status is RunStatus.AWAITING_APPROVAL, run.error
    [asked] = await world.stores.asked(run)
    assert (asked.tool_name, asked.client_side) == ("sensor", True)
    assert [one for one in world.models.requests[0].body["tools"] if one["function"]["name"] == "sensor"]
    run = await world.done(await world.answered(run, "21 degrees", client_tools=[SENSOR]))
    assert run.status is RunStatus.COMPLETED, run.error
    assert len(world.models.requests) == 2
    assert world.sent_to_model(1)[-1]["content"] == "21 degrees"
    assert await world.results() == ["21 degrees"]


async def test_an_injected_message_is_told_once(world: FrameworkWorld) -> None:
    """Also if the worker is lost behind it."""
    world.models.play(*(Turn(calls=[Call("look", {"what": what})]) for what in ("otters", "eels")), Turn(text="Found."))
    run = await world.submitted("support", "Find otters")
    worker = await world.begun(run, "look otters")
    await world.stores.inbox.inject(await world.stores.runs.look_up(run.id), [said("Eels as well")], "refuse")
    world.stage.stop_at("look eels")
    (world.stage.folder / "stop look otters").unlink()
    await world.stage.is_reached("look eels")
    await worker.die()
    world.stage.go_on()
    assert (await world.done(run)).status is RunStatus.COMPLETED
    assert (await world.texts()).count("Eels as well") == 1
    told = [str(one["content"]).count("Eels as well") for one in world.sent_to_model(2) if one["role"] == "user"]
    assert sum(told) == 1
    assert "Eels as well" in str(world.sent_to_model(1)[-1]["content"]), "behind the results, before the next answer"


async def test_its_process_is_killed_while_the_model_speaks(world: FrameworkWorld) -> None:
    """The answer is asked for again: nothing of it was recorded. Readers see it once."""
    world.models.say("Hello there, my friend.", silent_after=2)
    world.models.say("Good day.")
    run = await world.submitted("support", "Hi")
    worker = await world.workers().begin(run.id)
    await world.shows(run, "Hello there,")
    world.kill()
    assert await worker.ended() is None
    run = await world.stores.runs.look_up(run.id)
    assert run.status is RunStatus.COMPLETED, run.error
    assert len(world.models.requests) == 2
    assert await world.texts() == ["Hi", "Good day."]
    assert await world.shown_text(run) == "Good day."


@pytest.mark.parametrize("lost", ["process", "worker"])
async def test_it_is_lost_in_a_tool(world: FrameworkWorld, lost: str) -> None:
    """The tool is not started again, and the model hears that its outcome is unknown."""
    world.models.play(Turn(text="I look.", calls=[Call("look", {"what": "otters"})]), Turn(text="Who knows."))
    run = await world.submitted("support", "Hi")
    worker = await world.begun(run, "look otters")
    if lost == "process":
        world.kill()
        assert await worker.ended() is None
    else:
        await worker.die()
        await wait_until(lambda: not world.is_alive, description="the process to be gone")
        await world.done(run)
    run = await world.stores.runs.look_up(run.id)
    assert run.status is RunStatus.COMPLETED, run.error
    assert world.stage.reached.count("look otters") == 1, "a tool was started twice"
    assert len(world.models.requests) == 2, "a recorded answer was asked for again"
    assert await world.results() == [OUTCOME_UNKNOWN]
    assert "unknown" in world.sent_to_model(1)[-1]["content"]
    assert await world.shown_text(run) == "I look.|Who knows."


async def test_its_process_is_killed_between_tools(world: FrameworkWorld) -> None:
    """Recorded answers, results and errors come from the journal."""
    turns = [Call("fail", {"what": "page"}), Call("look", {"what": "otters"}), Call("look", {"what": "eels"})]
    world.models.play(*(Turn(text="I try.", calls=[call]) for call in turns), Turn(text="Found."))
    run = await world.submitted("support", "Hi")
    worker = await world.begun(run, "look eels")
    world.kill()
    assert await worker.ended() is None
    run = await world.stores.runs.look_up(run.id)
    assert run.status is RunStatus.COMPLETED, run.error
    assert world.did == ["fail page", "look otters", "look eels"]
    assert len(world.models.requests) == 4
    assert world.sent_to_model(3)[: len(world.sent_to_model(2))] == world.sent_to_model(2), "the model hears the same"
    assert await world.shown_text(run) == "I try.|I try.|I try.|Found."
    assert await _changes(world, run) == []
    assert await world.is_valid()


def _of_a_team_that_sends(world: FrameworkWorld, *names: str) -> Callable[[ReceivedRequest], Turn]:
    """For each name the agent asks an expert, which sends a letter."""
    asks = [
        Call(tool, {**world.hosted.framework.asks_expert, "input": name})
        for tool, name in zip(("ask_expert", "ask_second"), names, strict=False)
    ]

    def answer(request: ReceivedRequest) -> Turn:
        said_so_far = str(request.body["messages"])
        is_answered = "tool_call_id" in said_so_far
        if "ask_expert" in str(request.body["tools"]):
            return Turn(text="All is sent.") if is_answered else Turn(text="I ask.", calls=asks)
        to = next(name for name in names if name in said_so_far)
        return Turn(text=f"Sent to {to}.") if is_answered else Turn(calls=[Call("send", {"to": to})])

    return answer


@pytest.mark.parametrize("names", [("ada",), ("ada", "bob")], ids=["one", "side by side"])
@pytest.mark.parametrize("lost", [False, True], ids=["", "lost"])
async def test_an_agent_that_is_a_tool_asks_a_person(world: FrameworkWorld, names: tuple[str, ...], lost: bool) -> None:
    """It failed the run. The process ends meanwhile; then the call is entered again, also by one that is killed at
    once, and repeats nothing. Agents side by side ask in one pause."""
    world.models.answer_with(_of_a_team_that_sends(world, *names))
    run = await world.done(await world.submitted("team"))
    assert run.status is RunStatus.AWAITING_APPROVAL, run.error
    assert not world.is_alive, "no process waits for a person"
    asked = await world.stores.asked(run)
    assert sorted(one.arguments for one in asked) == [f'{{"to": "{name}"}}' for name in names]
    edited = [one.arguments.replace("ada", "eve") for one in asked]
    run = await world.stores.decide(
        *(
            Decision(tool_call_id=one.tool_call_id, approve=True, edited_arguments=arguments)
            for one, arguments in zip(asked, edited, strict=True)
        )
    )
    sends = ["send eve", "send bob"][: len(names)]
    if lost:
        for send in sends:
            world.stage.stop_at(send)
        worker = await world.begun(run, sends[0])
        await world.stage.is_reached(sends[-1])
        await worker.die()
        world.stage.go_on()
    run = await world.done(run)
    assert run.status is RunStatus.COMPLETED, run.error
    assert sorted(world.did) == sorted(sends), "a tool was started twice"
    assert len(world.models.requests) == 2 + 2 * len(names), "a recorded answer was asked for again"
    assert (await world.texts())[-1] == "All is sent."
    assert await world.shown_text(run) == "All is sent."
    assert {f"Sent to {name}." for name in names} <= {one.strip() for one in await world.results()}
    assert await world.is_valid()


async def test_what_an_agent_that_is_a_tool_asked_for_is_denied(world: FrameworkWorld) -> None:
    world.models.answer_with(_of_a_team_that_sends(world, "ada"))
    run = await world.done(await world.submitted("team"))
    run = await world.done(await world.denied(run, "not today"))
    assert run.status is RunStatus.COMPLETED, run.error
    assert world.did == []
    assert "not today" in world.sent_to_model(2)[-1]["content"], "the expert's model hears of it"
    assert await world.is_valid()


async def test_its_process_is_killed_with_tools_side_by_side(world: FrameworkWorld) -> None:
    """The result that was stored counts; the other call is unknown."""
    world.models.play(Turn(calls=[Call("look", {"what": what}) for what in ("otters", "eels")]), Turn(text="Well."))
    run = await world.submitted("support", "Hi")
    worker = await world.begun(run, "look otters")
    await wait_until(lambda: _is_stored(world, run, "found eels"), description="the result to be stored")
    world.kill()
    assert await worker.ended() is None
    run = await world.stores.runs.look_up(run.id)
    assert run.status is RunStatus.COMPLETED, run.error
    assert sorted(world.did) == ["look eels", "look otters"]
    heard = [one["content"] for one in world.sent_to_model(1)[-2:]]
    assert "unknown" in heard[0]
    assert heard[1] == "found eels"
    assert sorted(await world.results()) == sorted(["found eels", OUTCOME_UNKNOWN])


async def _is_stored(world: FrameworkWorld, run: Run, value: str) -> bool:
    return any(value in str(entry.result) for entry in await world.stores.checkpoints.journal(run))


async def _lost_behind_a_tool(world: FrameworkWorld) -> Run:
    """A run whose worker was lost while its second tool ran."""
    calls = [Call("look", {"what": what}) for what in ("otters", "eels")]
    world.models.play(*(Turn(calls=[call]) for call in calls), Turn(text="Found."))
    run = await world.submitted("support", "Hi")
    await (await world.begun(run, "look eels")).die()
    world.stage.go_on()
    return run


async def test_other_instructions_do_not_end_a_run(world: FrameworkWorld) -> None:
    run = await _lost_behind_a_tool(world)
    async with world.hosted.changed(HOLDFAST_AGENTS_INSTRUCTIONS="Be verbose.") as newer:
        run = await world.done(run, newer)
    assert run.status is RunStatus.COMPLETED, run.error
    assert len(world.models.requests) == 3, "a recorded answer was asked for again"
    assert "Be verbose." in str(world.models.requests[2].body["messages"][0])
    assert await _changes(world, run) == ["instructions_changed"]


async def _changes(world: FrameworkWorld, run: Run) -> list[str]:
    """What the log says of changed code."""
    return [one.cause or "" for one in await world.events(run) if isinstance(one, StatusChanged)]


async def test_other_tools_end_it_by_name(world: FrameworkWorld) -> None:
    run = await _lost_behind_a_tool(world)
    async with world.hosted.changed(HOLDFAST_AGENTS_VERSION="2") as newer:
        run = await world.done(run, newer)
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert run.error.error_type == "body_changed"
    assert len(world.models.requests) == 2


async def test_an_agent_is_a_tool(world: FrameworkWorld) -> None:
    """What it says goes to the agent that has called it. It is lost in its own tool, entered again, and asks for
    nothing again."""
    world.models.play(
        Turn(text="I ask.", calls=[Call("ask_expert", dict(world.hosted.framework.asks_expert))]),
        Turn(text="I look.", calls=[Call("look", {"what": "otters"})]),
        Turn(text="They swim."),
        Turn(text="It says that they swim."),
    )
    run = await world.submitted("team", "Hi")
    worker = await world.begun(run, "look otters")
    world.kill()
    assert await worker.ended() is None
    run = await world.stores.runs.look_up(run.id)
    assert run.status is RunStatus.COMPLETED, run.error
    assert len(world.models.requests) == 4, "a recorded answer was asked for again"
    assert world.stage.reached.count("look otters") == 1
    assert "unknown" in world.sent_to_model(2)[-1]["content"]
    assert world.sent_to_model(3)[-1]["content"].strip() == "They swim."
    assert await world.shown_text(run) == "I ask.|It says that they swim."
    assert [one.strip() for one in await world.results()] == ["They swim."]
