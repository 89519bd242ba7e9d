"""What is special to agents of Strands.

Strands cancels an agent between two events: a silent model and a tool that never returns go on. The first tests say
what its own say of a cancel, and what they leave out.
"""

import asyncio
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import pytest

from shared.domain.events import ReasoningChunk
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import Decision, ImageContent, TextContent, UserMessage
from shared.domain.runs import Run, RunOptions
from tests.frameworks.test_scenarios import SENSOR
from tests.kit.frameworks.pages import checked
from tests.kit.frameworks.world import CANCEL, FrameworkWorld, Installed
from tests.kit.model_server import Call, Turn
from tests.kit.project.documents import ROOT
from tests.kit.runs.stored_runs import message

FRAMEWORK = "strands"


async def test_fifty_cancels_at_once_are_one(world: FrameworkWorld) -> None:
    world.models.call("look", what="otters")
    run = await world.submitted("support", "Hi")
    worker = await world.begun(run, "look otters")
    seen = await world.stores.runs.look_up(run.id)
    await asyncio.gather(*(world.stores.runs.request_cancel(seen, CANCEL) for _ in range(50)))
    assert await worker.ended() is None
    assert (await world.stores.runs.look_up(run.id)).status is RunStatus.CANCELLED
    await _it_answers(world, "support")


async def test_it_is_as_usable_after_each_of_several_cancels(world: FrameworkWorld) -> None:
    for text in ("One", "Two", "Three"):
        world.models.say("Hello there.", silent_after=1)
        run = await world.submitted("support", text)
        worker = await world.workers().begin(run.id)
        await world.shows(run, "Hello")
        assert (await world.cancelled(run, worker)).status is RunStatus.CANCELLED
    await _it_answers(world, "support")
    assert [one["role"] for one in world.sent_to_model(-1)] == ["user", "assistant"] * 3 + ["user"]


async def test_a_call_that_had_not_begun_never_begins(world: FrameworkWorld) -> None:
    """Strands' cancel lets all calls of an answer run that were to run one after the other."""
    world.models.play(Turn(calls=[Call("look", {"what": what}) for what in ("otters", "eels")]))
    run = await world.submitted("in-order", "Hi")
    worker = await world.begun(run, "look otters")
    assert (await world.cancelled(run, worker)).status is RunStatus.CANCELLED
    assert "look eels" not in world.stage.reached
    assert await world.is_valid()
    await _it_answers(world, "in-order")


async def test_a_tool_that_ignores_its_cancel_does_not_hang_it(world: FrameworkWorld) -> None:
    world.models.call("cling", what="otters")
    run = await world.submitted("in-order", "Hi")
    worker = await world.begun(run, "cling otters")
    assert (await world.cancelled(run, worker)).status is RunStatus.CANCELLED
    assert not world.is_alive
    await _it_answers(world, "in-order")


async def test_a_cancelled_tool_may_tidy_up(world: FrameworkWorld) -> None:
    world.models.call("tidy", what="otters")
    run = await world.submitted("in-order", "Hi")
    worker = await world.begun(run, "look otters")
    assert (await world.cancelled(run, worker)).status is RunStatus.CANCELLED
    assert "tidied otters" in world.stage.reached


async def test_an_older_strands_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "strands.py").touch()
    command = [sys.executable, "-c", "import holdfast.agents.strands"]
    process = await asyncio.create_subprocess_exec(
        *command, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"}, stderr=subprocess.PIPE
    )
    _, errors = await process.communicate()
    assert b"ImportError: agents of Strands need strands-agents 1.62 or newer" in errors


async def _it_answers(world: FrameworkWorld, agent: str) -> None:
    world.stage.go_on()
    world.models.say("Here I am.")
    assert (await world.done(await world.submitted(agent, "Still there?"))).status is RunStatus.COMPLETED
    assert (await world.texts())[-2:] == ["Still there?", "Here I am."]


async def test_its_reasoning_is_shown(world: FrameworkWorld) -> None:
    world.models.say("It is warm.", reasoning="Summer, so")
    run = await world.done(await world.submitted("support"))
    assert "".join(one.text for one in await world.events(run) if isinstance(one, ReasoningChunk)) == "Summer, so"
    assert await world.texts() == ["go", "It is warm."]


async def test_it_sees_images(world: FrameworkWorld) -> None:
    parts = [TextContent("What is it?"), ImageContent(data=b64encode(b"png").decode(), media_type="image/png")]
    world.models.say("An otter.")
    options = RunOptions(code_agent="support", stream_tokens=True)
    run = await world.stores.submitted(message(UserMessage(parts)), options=options)
    assert (await world.done(run)).status is RunStatus.COMPLETED
    [sent] = world.models.requests[0].body["messages"][1:]
    assert [one["type"] for one in sent["content"]] == ["text", "image_url"]
    assert sent["content"][1]["image_url"]["url"].endswith(b64encode(b"png").decode())


async def test_it_keeps_the_messages_that_it_was_made_with(world: FrameworkWorld) -> None:
    world.models.play(Turn(text="Squeak."), Turn(text="Squeak!"))
    for text in ("Hi", "Still there?"):
        assert (await world.done(await world.submitted("primed", text))).status is RunStatus.COMPLETED
    sent = ["You are an otter.", "Hi", "Squeak.", "Still there?"]
    assert [one["content"] for one in world.sent_to_model(1)] == sent


async def test_a_client_answers_without_bringing_its_tools_again(world: FrameworkWorld) -> None:
    """The replay would ask the model for something else."""
    world.models.play(Turn(calls=[Call("sensor", {"room": "hall"})]), Turn(text="It is warm."))
    run = await world.done(await world.offered("support", SENSOR))
    run = await world.done(await world.answered(run, "21 degrees", client_tools=[]))
    assert run.status is RunStatus.COMPLETED, run.error
    assert len(world.models.requests) == 2


async def test_a_person_decides_on_the_tools_of_an_mcp_server(world: FrameworkWorld) -> None:
    world.models.play(Turn(calls=[Call("find", {"what": "eels"})]), Turn(text="It is found."))
    run = await world.done(await world.submitted("remote"))
    [asked] = await world.stores.asked(run)
    edited = Decision(tool_call_id=asked.tool_call_id, approve=True, edited_arguments='{"what": "otters"}')
    run = await world.done(await world.stores.decide(edited))
    assert run.status is RunStatus.COMPLETED, run.error
    assert await world.results() == ["found otters"]
    assert world.did == ["find otters"]


async def test_a_busy_model_is_asked_again_by_strands(world: FrameworkWorld) -> None:
    """And not once more after a crash."""
    world.models.fail("rate_limit")
    world.models.play(Turn(calls=[Call("look", {"what": "otters"})]), Turn(text="Who knows."))
    run = await world.submitted("patient")
    worker = await world.begun(run, "look otters")
    world.kill()
    assert await worker.ended() is None
    run = await world.stores.runs.look_up(run.id)
    assert run.status is RunStatus.COMPLETED, run.error
    assert len(world.models.requests) == 3


async def test_a_full_window_is_emptied_by_strands(world: FrameworkWorld) -> None:
    for text in ("One", "Two"):
        world.models.say(f"{text}, then.")
        await world.done(await world.submitted("support", text))
    world.models.fail("context")
    world.models.say("Three, then.")
    run = await world.done(await world.submitted("support", "Three"))
    assert run.status is RunStatus.COMPLETED, run.error
    assert [one["content"] for one in world.sent_to_model(2)] == ["One", "One, then.", "Two", "Two, then.", "Three"]
    assert [one["content"] for one in world.sent_to_model(3)] == ["Two", "Two, then.", "Three"]
    assert await world.texts() == ["One", "One, then.", "Two", "Two, then.", "Three", "Three, then."]


async def test_the_structured_output_of_an_agent_is_its_answer(world: FrameworkWorld) -> None:
    world.models.call("Weather", degrees=21)
    run = await world.done(await world.submitted("structured"))
    assert run.status is RunStatus.COMPLETED, run.error
    assert await world.texts() == ["go", '{"degrees":21}']


async def test_structured_output_was_lost_if_the_model_also_wrote_text(world: FrameworkWorld) -> None:
    world.models.play(Turn(text="It is warm.", calls=[Call("Weather", {"degrees": 21})]))
    run = await world.done(await world.submitted("structured"))
    assert run.status is RunStatus.COMPLETED, run.error
    assert await world.texts() == ["go", 'It is warm.\n\n{"degrees":21}']


async def test_an_agent_that_it_delegates_to_has_the_last_word(world: FrameworkWorld) -> None:
    world.models.call("ask_expert", input="otters")
    world.models.say("They swim.")
    run = await world.done(await world.submitted("delegating"))
    assert run.status is RunStatus.COMPLETED, run.error
    assert await world.texts() == ["go", "", "They swim."]
    assert (len(world.models.requests), run.usage.prompt_tokens) == (2, 22)


async def test_what_a_tool_asks_in_its_thread_is_a_part_of_its_call(world: FrameworkWorld) -> None:
    world.models.call("ask_in_thread", what="otters")
    world.models.say("They swim.")
    world.models.say("Well.")
    run = await world.done(await world.submitted("threaded"))
    assert run.status is RunStatus.COMPLETED, run.error
    assert await world.results() == ["found otters; They swim.\n"]
    assert await world.texts() == ["go", "", "Well."]


async def test_options_of_strands_are_taken(world: FrameworkWorld) -> None:
    world.models.play(Turn(text="I look.", calls=[Call("look", {"what": "otters"})]))
    run = await world.done(await world.submitted("limited"))
    assert run.status is RunStatus.COMPLETED, run.error
    assert await world.texts() == ["go", "I look."]


@pytest.mark.parametrize(
    ("agent", "turns", "error"),
    [
        ("interrupting", [Call("interrupt")], "InterruptNotCovered"),
    ],
)
async def test_it_fails_where_nobody_could_answer(
    world: FrameworkWorld, agent: str, turns: list[Call], error: str
) -> None:
    """Strands would tell the model that the tool has failed, and go on."""
    world.models.play(*(Turn(calls=[call]) for call in turns))
    run = await world.done(await world.submitted(agent))
    assert _failure(run).startswith(error)
    assert len(world.models.requests) == len(turns)
    assert await world.is_valid()


async def test_an_answer_that_was_cut_off_fails_with_its_text(world: FrameworkWorld) -> None:
    world.models.say("It is", finish="length")
    run = await world.done(await world.submitted("support"))
    assert _failure(run).startswith("MaxTokensReachedException")
    assert await world.texts() == ["go", "It is"]


def _failure(run: Run) -> str:
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert run.error.error_type == "body_error"
    return run.error.detail or ""


MANAGED = """
from strands import Agent
from strands.hooks import HookProvider, HookRegistry, AfterInvocationEvent
from strands.models.openai import OpenAIModel
from strands.session import FileSessionManager

from holdfast.agents import register


class Watching(HookProvider):
    def register_hooks(self, registry: HookRegistry, **_) -> None:
        registry.add_callback(AfterInvocationEvent, lambda event: self)


MODEL = OpenAIModel(model_id="gpt-4o")
register("managed", Agent(MODEL, session_manager=FileSessionManager("mine", storage_dir="sessions")))
register("watched", Agent(MODEL, hooks=[Watching()]))
of_factory = FileSessionManager("other", storage_dir="sessions")
register("built", lambda: Agent(MODEL, session_manager=of_factory))
"""


async def test_a_check_says_that_a_session_manager_keeps_a_second_history(installed: Installed, tmp_path: Path) -> None:
    """Of an agent, and of one that is made in each run by a variable of the module."""
    of_agent, of_variable = (await checked(MANAGED, installed.python, tmp_path))["warnings"]
    assert of_agent.startswith("the agent 'managed' has a session manager (FileSessionManager)")
    assert of_variable.startswith("the variable 'of_factory' is a session manager (FileSessionManager)")
    assert "Make the agent without it" in of_agent
