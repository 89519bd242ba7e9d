"""What agents of pydantic-ai have of their own: outputs with types, calls to make again, options of tools."""

import json

import pytest

from shared.domain.events import ReasoningChunk
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import ImageContent, NewMessage, TextContent, UserMessage
from shared.domain.runs import Run, RunOptions
from tests.kit.frameworks.world import FrameworkWorld
from tests.kit.model_server import Call, ReceivedRequest, Turn
from tests.kit.runs.stored_runs import message, said

FRAMEWORK = "pydantic_ai"


async def _killed_at(world: FrameworkWorld, run: Run, moment: str) -> Run:
    worker = await world.begun(run, moment)
    world.kill()
    world.stage.go_on()
    assert await worker.ended() is None
    return await world.stores.runs.look_up(run.id)


async def test_its_reasoning_is_shown(world: FrameworkWorld) -> None:
    world.models.play(Turn(reasoning="Otters, then.", text="They swim."))
    run = await world.done(await world.submitted("support"))
    assert run.status is RunStatus.COMPLETED, run.error
    thoughts = [one.text for one in await world.events(run) if isinstance(one, ReasoningChunk)]
    assert "".join(thoughts) == "Otters, then."
    assert await world.shown_text(run) == "They swim."


async def test_an_output_with_a_type_is_json(world: FrameworkWorld) -> None:
    """A call that the tool refused, a result with a picture and the output are the same after a crash."""
    world.models.play(
        Turn(calls=[Call("count", {"rivers": -1})]),
        Turn(calls=[Call("count", {"rivers": 3}), Call("picture", {"of": "Rome"})]),
        Turn(calls=[Call("look", {"what": "otters"})]),
        Turn(calls=[Call("final_result", {"name": "Rome", "rivers": 3})]),
    )
    run = await _killed_at(world, await world.submitted("city", "Rome"), "look otters")
    assert run.status is RunStatus.COMPLETED, run.error
    assert json.loads((await world.texts())[-1]) == {"name": "Rome", "rivers": 3}
    assert len(world.models.requests) == 4, "a recorded answer was asked for again"
    begun = [one for one in world.stage.reached if one.startswith(("count", "picture"))]
    assert sorted(begun) == ["count -1", "count 3", "picture Rome"]
    assert "rivers are counted from 0" in world.sent_to_model(1)[-1]["content"]
    assert "as seen from above" in str(world.sent_to_model(2)[-1]["content"])
    assert world.sent_to_model(3)[: len(world.sent_to_model(2))] == world.sent_to_model(2), "the model hears the same"
    assert "instructions_changed" not in str(await world.events(run)), "nothing has changed"


@pytest.mark.parametrize(("said", "shown"), [("", ""), ("Let me think.", "Let me think.\n\n")])
async def test_an_output_with_a_type_was_lost_if_its_model_also_wrote_text(
    world: FrameworkWorld, said: str, shown: str
) -> None:
    world.models.play(Turn(text=said, calls=[Call("final_result", {"name": "Rome", "rivers": 3})]))
    run = await world.done(await world.submitted("city", "Rome"))
    assert run.status is RunStatus.COMPLETED, run.error
    assert await world.texts() == ["Rome", f'{shown}{{"name":"Rome","rivers":3}}']
    assert await world.shown_text(run) == f'{shown}{{"name":"Rome","rivers":3}}'


async def test_a_tool_that_returned_bytes_failed_its_run(world: FrameworkWorld) -> None:
    """The framework itself gives them to the model as base64."""
    world.models.play(Turn(calls=[Call("scan", {})]), Turn(text="Seen."))
    run = await world.done(await world.submitted("scanning"))
    assert run.status is RunStatus.COMPLETED, run.error
    assert world.sent_to_model(1)[-1]["content"] == "_wA="


async def test_its_system_prompt_is_before_the_history(world: FrameworkWorld) -> None:
    for name in ("Rome", "Oslo"):
        world.models.call("final_result", name=name, rivers=1)
        run = await world.done(await world.submitted("city", name))
        assert run.status is RunStatus.COMPLETED, run.error
    sent = world.models.requests[1].body["messages"]
    assert (sent[0]["role"], sent[0]["content"]) == ("system", "You know cities.")
    assert [one["content"] for one in sent if one["role"] == "user"] == ["Rome", "Oslo"]


async def test_an_image_reaches_the_model(world: FrameworkWorld) -> None:
    world.models.say("A cat.")
    image = ImageContent(data="cGl4ZWxz", media_type="image/png")
    shown: NewMessage = message(UserMessage(content=[TextContent("What is it?"), image]))
    options = RunOptions(code_agent="support", stream_tokens=True)
    run = await world.done(await world.stores.submitted(shown, options=options))
    assert run.status is RunStatus.COMPLETED, run.error
    text, picture = world.sent_to_model(0)[0]["content"]
    assert text["text"] == "What is it?"
    assert picture["image_url"]["url"] == "data:image/png;base64,cGl4ZWxz"


async def test_a_message_of_the_application_reaches_the_model_as_one(world: FrameworkWorld) -> None:
    world.models.say("Hello.")
    given = [message(UserMessage(content="Ada is blind.", role="system")), said("Hi")]
    options = RunOptions(code_agent="support", stream_tokens=True)
    run = await world.done(await world.stores.submitted(*given, options=options))
    assert run.status is RunStatus.COMPLETED, run.error
    sent = world.models.requests[0].body["messages"]
    assert sorted(one["content"] for one in sent if one["role"] == "system") == ["Ada is blind.", "Be brief."]
    assert [one["content"] for one in sent if one["role"] == "user"] == ["Hi"]


async def test_another_model_answers_after_a_failure(world: FrameworkWorld) -> None:
    world.models.fail("server")
    world.models.say("Here I am.")
    run = await world.done(await world.submitted("fallback", "Hi"))
    assert run.status is RunStatus.COMPLETED, run.error
    assert await world.texts() == ["Hi", "Here I am."]


async def test_a_tool_that_waits_for_somebody_else_ends_the_run(world: FrameworkWorld) -> None:
    world.models.call("postpone")
    run = await world.done(await world.submitted("payer"))
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert "A deferred tool call was present" in str(run.error.detail)
    assert await world.is_valid()


async def test_a_tool_asks_for_an_approval_by_itself(world: FrameworkWorld) -> None:
    """Its first call ends without an effect, and the one that a person approves begins it again."""
    world.models.play(Turn(calls=[Call("pay", {"euros": 500})]), Turn(text="Paid."))
    run = await world.done(await world.submitted("payer"))
    assert run.status is RunStatus.AWAITING_APPROVAL, run.error
    [asked] = await world.stores.asked(run)
    assert (asked.tool_name, asked.arguments) == ("pay", '{"euros": 500}')
    run = await world.done(await world.approved(run))
    assert run.status is RunStatus.COMPLETED, run.error
    assert [one for one in world.stage.reached if one.startswith("pay")] == ["pay 500"]
    assert world.sent_to_model(1)[-1]["content"] == "paid 500"
    assert await world.is_valid()


async def test_the_model_hears_of_an_edit_that_does_not_fit(world: FrameworkWorld) -> None:
    world.models.play(Turn(calls=[Call("send", {"to": "ada"})]), Turn(text="Well."))
    run = await world.done(await world.submitted("support"))
    run = await world.done(await world.approved(run, edited='{"to": 7}'))
    assert run.status is RunStatus.COMPLETED, run.error
    assert not [one for one in world.stage.reached if one.startswith("send")]
    assert "valid string" in world.sent_to_model(1)[-1]["content"]


async def test_a_tool_that_may_be_repeated_begins_again(world: FrameworkWorld) -> None:
    world.models.play(Turn(calls=[Call("fetch", {"page": "otters"})]), Turn(text="Read."))
    run = await _killed_at(world, await world.submitted("payer"), "fetch otters")
    assert run.status is RunStatus.COMPLETED, run.error
    assert world.stage.reached.count("fetch otters") == 2
    assert len({one for one in world.stage.reached if one.startswith("key")}) == 1, "the key is the same"
    assert len(world.models.requests) == 2


async def test_a_probe_says_what_became_of_a_call(world: FrameworkWorld) -> None:
    world.models.play(Turn(calls=[Call("pay", {"euros": 5})]), Turn(text="Paid."))
    run = await _killed_at(world, await world.submitted("payer"), "pay 5")
    assert run.status is RunStatus.COMPLETED, run.error
    assert world.stage.reached.count("pay 5") == 1, "a tool was started twice"
    [key] = [one.partition(" ")[2] for one in world.stage.reached if one.startswith("key")]
    assert f"probe {key}" in world.stage.reached
    assert world.sent_to_model(1)[-1]["content"] == "paid, says the bank"


async def test_an_agent_inside_of_a_tool_that_is_no_scope_cannot_ask_a_person(world: FrameworkWorld) -> None:
    world.models.play(Turn(calls=[Call("ask_expert", {"input": "Hi"})]), Turn(calls=[Call("send", {"to": "ada"})]))
    run = await world.done(await world.submitted("unmarked"))
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert "waits for a person or a client inside of a step or tool" in str(run.error.detail)
    assert not [one for one in world.stage.reached if one.startswith("send")]
    assert await world.is_valid()


def _of_the_team(request: ReceivedRequest) -> Turn:
    """Two experts are asked side by side, and each of them looks."""
    messages = request.body["messages"]
    is_answered, is_expert = messages[-1]["role"] == "tool", messages[0]["content"] == "You know everything."
    if is_expert:
        return Turn(text="They swim.") if is_answered else Turn(calls=[Call("look", {"what": messages[-1]["content"]})])
    asked = [Call("ask_expert", {"input": what}) for what in ("otters", "eels")]
    return Turn(text="Both swim.") if is_answered else Turn(calls=asked)


async def test_agents_side_by_side_repeat_nothing(world: FrameworkWorld) -> None:
    world.models.answer_with(_of_the_team)
    run = await world.submitted("team", "Who swims?")
    world.stage.stop_at("look eels")
    worker = await world.begun(run, "look otters")
    await world.stage.is_reached("look eels")
    world.kill()
    world.stage.go_on()
    assert await worker.ended() is None
    run = await world.stores.runs.look_up(run.id)
    assert run.status is RunStatus.COMPLETED, run.error
    assert len(world.models.requests) == 6, "a recorded answer was asked for again"
    assert sorted(one for one in world.stage.reached if one.startswith("look")) == ["look eels", "look otters"]
    assert await world.results() == ["They swim.", "They swim."]
    assert await world.shown_text(run) == "Both swim."


async def test_a_function_gives_it_what_it_needs(world: FrameworkWorld) -> None:
    """Its own listener hears each answer, which is in the journal as well."""
    world.models.play(Turn(text="Let me see.", calls=[Call("name_of_user")]), Turn(text="You are Ada."))
    run = await world.done(await world.submitted("personal", "Who am I?"))
    assert run.status is RunStatus.COMPLETED, run.error
    assert await world.results() == ["Ada"]
    assert await world.shown_text(run) == "Let me see.|You are Ada."
    assert [one for one in world.stage.reached if one.startswith("heard")] == [
        "heard text", "heard tool-call", "heard text"
    ]  # fmt: skip
    assert [one.kind for one in await world.stores.checkpoints.journal(run)].count("model") == 2


async def test_a_journal_outside_of_runs_does_nothing(world: FrameworkWorld) -> None:
    world.models.say("They swim.")
    run = await world.done(await world.submitted("outside"))
    assert run.status is RunStatus.COMPLETED, run.error
    assert (await world.texts())[-1] == "They swim."
    assert await world.stores.checkpoints.journal(run) == []


async def test_an_error_of_the_model_ends_the_run_by_name(world: FrameworkWorld) -> None:
    world.models.fail("server")
    run = await world.done(await world.submitted("support"))
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert run.error.error_type == "body_error"
    assert "ModelAPIError" in str(run.error.detail)
    assert "The server had an error" in str(run.error.detail)
