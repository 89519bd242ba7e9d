"""What the agents of OpenAI's Agents SDK have beside the scenarios of all frameworks.

The first part says in our words what a patch of the SDK's asked for: a cancel with a reason that reaches model and
tool, messages into the running run, status events, and agents that can be used afterwards.
"""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from shared.domain.events import ReasoningChunk, StatusChanged
from shared.domain.lifecycle import RunStatus
from shared.domain.runs import RunOptions
from shared.domain.tools import ClientTool
from tests.kit.frameworks.pages import checked
from tests.kit.frameworks.world import FrameworkWorld, Installed
from tests.kit.model_server import Call, Turn
from tests.kit.model_server.server import ReceivedRequest
from tests.kit.project.documents import ROOT
from tests.kit.runs.stored_runs import said
from tests.kit.wait_until import wait_until

FRAMEWORK = "openai_agents"


@pytest.mark.parametrize("asked_for", [True, False], ids=["status events", "none"])
async def test_a_cancel_with_its_reason_is_shown_to_who_asked_for_it(world: FrameworkWorld, asked_for: bool) -> None:
    world.models.say("Hello there, my friend.", silent_after=2)
    options = RunOptions(code_agent="support", stream_tokens=True, status_events=asked_for)
    run = await world.stores.submitted(said("Hi"), options=options)
    worker = await world.workers().begin(run.id)
    await world.shows(run, "Hello there,")
    run = await world.cancelled(run, worker)
    assert run.cancel is not None
    assert (run.status, run.cancel.reason) == (RunStatus.CANCELLED, "enough")
    shown = [one.status for one in await world.events(run) if isinstance(one, StatusChanged)]
    assert ("cancelled" in shown) is asked_for


async def test_a_run_that_does_not_stream_is_cancelled(world: FrameworkWorld) -> None:
    world.models.say("Hello.", silent_before_headers=3600.0)
    run = await world.submitted("whole", "Hi")
    worker = await world.workers().begin(run.id)
    await wait_until(lambda: world.models.requests, description="the model to be asked")
    assert (await world.cancelled(run, worker)).status is RunStatus.CANCELLED
    await wait_until(lambda: world.models.requests[-1].client_left, description="the connection to be closed")
    assert not world.is_alive


async def test_what_is_injected_while_the_model_speaks_is_told_before_its_next_answer(world: FrameworkWorld) -> None:
    resume = asyncio.Event()
    world.models.play(
        Turn(text="I look for them.", calls=[Call("look", {"what": "otters"})], silent_after=2, resume=resume),
        Turn(text="Found both."),
    )
    run = await world.submitted("support", "Find otters")
    worker = await world.workers().begin(run.id)
    await world.shows(run, "I look")
    await world.stores.inbox.inject(await world.stores.runs.look_up(run.id), [said("Eels as well")], "refuse")
    resume.set()
    assert await worker.ended() is None
    assert (await world.stores.runs.look_up(run.id)).status is RunStatus.COMPLETED
    assert [one["role"] for one in world.sent_to_model(1)] == ["user", "assistant", "tool", "user"]
    assert world.sent_to_model(1)[-1]["content"] == "Eels as well"


async def test_a_tool_cleans_up_when_it_is_cancelled(world: FrameworkWorld) -> None:
    world.models.call("careful", what="otters")
    run = await world.submitted("more")
    worker = await world.begun(run, "careful otters")
    assert (await world.cancelled(run, worker)).status is RunStatus.CANCELLED
    assert world.did == ["careful otters", "cleaned up"]
    assert not world.is_alive


async def test_results_before_a_cancel_are_kept(world: FrameworkWorld) -> None:
    """The SDK forgets them: its next run would make the calls again."""
    world.models.play(*(Turn(calls=[Call("look", {"what": what})]) for what in ("otters", "eels")))
    run = await world.submitted("support", "Find both")
    worker = await world.begun(run, "look eels")
    await world.cancelled(run, worker)
    world.stage.go_on()
    world.models.say("The otters were there.")
    assert (await world.done(await world.submitted("support", "And?"))).status is RunStatus.COMPLETED
    results = [one["content"] for one in world.sent_to_model(2) if one["role"] == "tool"]
    assert results[0] == "found otters"
    assert len(results) == 2, "each call has its result"


@pytest.mark.parametrize("to", ["billing", "refunds"])
async def test_a_handoff_is_followed(world: FrameworkWorld, to: str) -> None:
    """The other agent's model was given as an object. It is lost in its tool, and the handoff is made again alone."""
    world.models.play(
        Turn(calls=[Call(f"transfer_to_{to}", {})]),
        Turn(text="I look.", calls=[Call("look", {"what": "prices"})]),
        Turn(text="It is free."),
    )
    run = await world.submitted("desk", "How much?")
    worker = await world.begun(run, "look prices")
    world.kill()
    assert await worker.ended() is None
    run = await world.stores.runs.look_up(run.id)
    assert run.status is RunStatus.COMPLETED, run.error
    assert world.did == ["look prices"]
    assert len(world.models.requests) == 3, "a recorded answer was asked for again"
    assert ("You know prices." if to == "billing" else "You pay back.") in str(world.models.requests[1].body)
    assert (await world.texts())[-1] == "It is free."


async def test_an_answer_of_a_type_is_json(world: FrameworkWorld) -> None:
    world.models.say('{"name": "otter", "legs": 4}')
    run = await world.done(await world.submitted("typed", "Which?"))
    assert run.status is RunStatus.COMPLETED, run.error
    assert json.loads((await world.texts())[-1]) == {"name": "otter", "legs": 4}
    assert world.models.requests[0].body["response_format"]["type"] == "json_schema"


async def test_reasoning_is_shown_and_goes_back(world: FrameworkWorld) -> None:
    """With the Responses API; the process is killed in between."""
    world.models.play(
        Turn(reasoning="Otters live in water.", text="I look.", calls=[Call("look", {"what": "otters"})]),
        Turn(text="Found."),
    )
    run = await world.submitted("thinker", "Find otters")
    worker = await world.begun(run, "look otters")
    await worker.die()
    world.stage.go_on()
    run = await world.done(run)
    assert run.status is RunStatus.COMPLETED, run.error
    thought = [one.text for one in await world.events(run) if isinstance(one, ReasoningChunk)]
    assert "".join(thought) == "Otters live in water."
    sent = world.models.requests[1].body["input"]
    assert [one.get("type", "message") for one in sent] == [
        "message",
        "reasoning",
        "message",
        "function_call",
        "function_call_output",
    ]
    assert run.usage.reasoning_tokens == 4


async def test_the_history_goes_to_the_responses_api(world: FrameworkWorld) -> None:
    """The SDK changes its items on their way there, which a replay must not see."""
    world.models.say("Hello.")
    await world.done(await world.submitted("thinker", "Hi"))
    world.models.play(Turn(calls=[Call("look", {"what": "otters"})]), Turn(text="Found."))
    run = await world.submitted("thinker", "Find otters")
    worker = await world.begun(run, "look otters")
    world.kill()
    assert await worker.ended() is None
    run = await world.stores.runs.look_up(run.id)
    assert run.status is RunStatus.COMPLETED, run.error
    for request in world.models.requests[1:]:
        assert request.body["input"][1]["content"][0]["text"] == "Hello."
        assert "__fake_id__" not in str(request.body)
        assert "provider_data" not in str(request.body)


async def test_answers_may_come_whole(world: FrameworkWorld) -> None:
    """Of two agents that a function runs one after the other."""
    world.models.say("First.")
    world.models.say("Second.")
    run = await world.done(await world.submitted("whole", "Hi"))
    assert run.status is RunStatus.COMPLETED, run.error
    assert (await world.texts())[1] == "First.Second."
    assert not [one for one in world.models.requests if one.body.get("stream")]


async def test_an_agent_is_made_for_its_run(world: FrameworkWorld) -> None:
    world.models.say("Yes.")
    assert (await world.done(await world.submitted("made", "otters"))).status is RunStatus.COMPLETED
    assert world.did == ["made for otters"]


@pytest.mark.parametrize(("to", "asked"), [("boss", True), ("ada", False)])
async def test_a_tool_says_which_calls_need_approval(world: FrameworkWorld, to: str, asked: bool) -> None:
    world.models.call("send", to=to)
    world.models.say("Sent.")
    run = await world.done(await world.submitted("letters"))
    assert (run.status is RunStatus.AWAITING_APPROVAL) is asked
    if asked:
        run = await world.done(await world.approved(run))
    assert run.status is RunStatus.COMPLETED, run.error
    assert world.did == [f"send {to}"]


async def test_an_agent_that_is_a_tool_has_no_tools_of_the_client(world: FrameworkWorld) -> None:
    """It could not wait for it."""
    sensor = ClientTool(name="sensor", parameters={"type": "object", "properties": {}})
    world.models.play(Turn(calls=[Call("ask_expert", {"input": "Warm?"})]), Turn(text="No."), Turn(text="It is not."))
    run = await world.done(await world.offered("team", sensor))
    assert run.status is RunStatus.COMPLETED, run.error
    offered = [[tool["function"]["name"] for tool in one.body["tools"]] for one in world.models.requests]
    assert ["sensor" in names for names in offered] == [True, False, True]


async def test_a_program_may_watch_an_agent_that_is_a_tool(world: FrameworkWorld) -> None:
    world.models.play(
        Turn(calls=[Call("ask_expert", {"input": "Swim?"})]),
        Turn(calls=[Call("look", {"what": "otters"})]),
        Turn(text="They swim."),
        Turn(text="Yes."),
    )
    run = await world.done(await world.submitted("watched"))
    assert run.status is RunStatus.COMPLETED, run.error
    assert {"raw_response_event", "run_item_stream_event", "look otters"} <= set(world.did)
    assert await world.results() == ["They swim."]
    assert world.sent_to_model(2)[-1]["content"] == "found otters"


async def test_two_agents_are_asked_side_by_side(world: FrameworkWorld) -> None:
    """The process is killed while both are in their tools: no answer is asked for twice, no tool starts twice."""
    whats = ("otters", "eels")

    def answer(request: ReceivedRequest) -> Turn:
        said_so_far = str(request.body["messages"])
        if "You know everything." not in said_so_far:
            asks = [Call("ask_expert", {"input": what}) for what in whats]
            return Turn(text="Both swim.") if "tool_call_id" in said_so_far else Turn(calls=asks)
        if "tool_call_id" in said_so_far:
            return Turn(text="It swims.")
        return Turn(calls=[Call("look", {"what": next(what for what in whats if what in said_so_far)})])

    world.models.answer_with(answer)
    run = await world.submitted("team")
    world.stage.stop_at("look eels")
    worker = await world.begun(run, "look otters")
    await world.stage.is_reached("look eels")
    world.kill()
    assert await worker.ended() is None
    run = await world.stores.runs.look_up(run.id)
    assert run.status is RunStatus.COMPLETED, run.error
    assert sorted(world.did) == ["look eels", "look otters"]
    assert len(world.models.requests) == 6
    assert await world.results() == ["It swims."] * 2
    assert await world.shown_text(run) == "Both swim."


async def test_a_failure_that_the_model_is_not_told_ends_the_run(world: FrameworkWorld) -> None:
    world.models.call("strict", what="page")
    run = await world.done(await world.submitted("more"))
    assert run.error is not None
    assert run.error.error_type == "body_error"
    assert "there is no page" in (run.error.detail or "")


@pytest.mark.parametrize(
    ("tool", "arguments", "heard"),
    [
        ("pages", {"what": "otters"}, "page 1 of otters"),
        ("numbers", {}, "{'found': 2, 'where': ['pond', 'sea']}"),
        ("mean", {}, "nan"),
        ("leaves", {}, "An error occurred while running the tool"),
    ],
)
async def test_a_result_need_not_be_text(
    world: FrameworkWorld, tool: str, arguments: dict[str, str], heard: str
) -> None:
    world.models.play(Turn(calls=[Call(tool, arguments)]), Turn(text="Well."))
    run = await world.done(await world.submitted("more"))
    assert run.status is RunStatus.COMPLETED, run.error
    assert heard in str(world.sent_to_model(1)[-1]["content"])


async def test_a_model_that_gave_nan_to_a_tool_failed_the_run(world: FrameworkWorld) -> None:
    world.models.play(Turn(calls=[Call("mean", '{"of": NaN}')]), Turn(text="Well."))
    run = await world.done(await world.submitted("more"))
    assert run.status is RunStatus.COMPLETED, run.error


async def test_a_tool_that_takes_too_long_is_given_up(world: FrameworkWorld) -> None:
    """Its run can wait for a person afterwards, and replays what the model heard."""
    world.models.play(
        Turn(calls=[Call("slow", {"what": "otters"})]), Turn(calls=[Call("send", {"to": "ada"})]), Turn(text="Sent.")
    )
    world.stage.stop_at("slow otters")
    run = await world.done(await world.submitted("more"))
    assert run.status is RunStatus.AWAITING_APPROVAL, run.error
    assert "timed out" in world.sent_to_model(1)[-1]["content"]
    run = await world.done(await world.approved(run))
    assert run.status is RunStatus.COMPLETED, run.error
    assert world.did == ["slow otters", "send ada"]
    assert len(world.models.requests) == 3


async def test_a_tool_of_an_mcp_server_is_not_started_again(world: FrameworkWorld) -> None:
    world.models.play(*(Turn(calls=[Call("find", {"what": what})]) for what in ("otters", "eels")), Turn(text="Well."))
    run = await world.submitted("remote")
    worker = await world.begun(run, "find eels")
    world.kill()
    assert await worker.ended() is None
    run = await world.stores.runs.look_up(run.id)
    assert run.status is RunStatus.COMPLETED, run.error
    assert world.did == ["find otters", "find eels"]
    assert [one for one in world.sent_to_model(2) if one["role"] == "tool"][1]["content"].startswith("The outcome")
    assert "found otters" in str(world.sent_to_model(1)[-1]["content"])


async def test_arguments_that_are_no_json_are_the_tools_to_refuse(world: FrameworkWorld) -> None:
    world.models.play(Turn(calls=[Call("look", '{"what": ')]), Turn(text="Well."))
    run = await world.done(await world.submitted("support"))
    assert run.status is RunStatus.COMPLETED, run.error
    assert world.did == []
    assert await world.is_valid()


@pytest.mark.parametrize(
    ("agent", "said_why"),
    [("kept-elsewhere", "takes no session"), ("shell", "LocalShellTool, which no journal covers")],
)
async def test_what_no_journal_covers_is_refused(world: FrameworkWorld, agent: str, said_why: str) -> None:
    run = await world.done(await world.submitted(agent))
    assert run.error is not None
    assert run.error.error_type == "body_error"
    assert said_why in (run.error.detail or "")
    assert world.models.requests == []


@pytest.mark.parametrize(
    ("version", "said_of_it"),
    [("0.8.4", "ImportError: openai-agents 0.8.4 is too old"), ("0.24.0", "''"), ("0.25.1", "newer")],
)
async def test_versions_have_a_range(world: FrameworkWorld, version: str, said_of_it: str) -> None:
    code = f"from holdfast.agents.openai_agents import check_version as check; print(repr(check({version!r})))"
    process = await asyncio.create_subprocess_exec(
        world.hosted.python, "-c", code, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said, _ = await process.communicate()
    assert said_of_it in said.decode()


WITH_SESSION = """
from agents import Agent, SQLiteSession

from holdfast.agents import Run, agent
from holdfast.agents.openai_agents import run_agent

mine = SQLiteSession("mine")


@agent("desk")
async def desk(run: Run) -> str:
    return await run_agent(run, Agent(name="Desk"), session=mine)
"""


async def test_a_check_says_that_a_session_is_not_used(installed: Installed, tmp_path: Path) -> None:
    """Its class, which the module has as well, is no session."""
    found = await checked(WITH_SESSION, installed.python, tmp_path)
    [warning] = found["warnings"]
    assert warning.startswith("the variable 'mine' is a session (SQLiteSession), which no run reads or writes")
    assert "Take it out of the program" in warning
