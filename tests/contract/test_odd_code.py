"""Code of an operator's own that says what nobody can be shown, and that ends in ways that programs have by accident:
its run ends once, says what went wrong, and loses nothing."""

import os
import sys
from collections.abc import AsyncGenerator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from arq.connections import ArqRedis
from structlog.testing import capture_logs

from shared.domain.errors import InvalidRequest
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import AssistantMessage, Reasoning
from shared.domain.runs import Run
from shared.domain.settling import OUTCOME_UNKNOWN, RUN_FAILED
from tests.kit.code_agents.world import World, world_of_agents
from tests.kit.project.documents import ROOT
from tests.kit.wait_until import wait_until
from worker.agents.hosts import CodeAgents, plans

PROGRAM = "tests.kit.code_agents.odd_program"


@pytest.fixture
async def world(database_url: str, redis: ArqRedis, tmp_path: Path) -> AsyncGenerator[World]:
    async with world_of_agents(database_url, redis, tmp_path, module=PROGRAM) as world:
        yield world


AGENT = """
from holdfast.agents import agent
@agent("a")
async def a(run):
    return "x"
"""


@asynccontextmanager
async def _imported(folder: Path, source: str) -> AsyncGenerator[CodeAgents]:
    """The agents of a module with this source."""
    (folder / "odd_module.py").write_text(source, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    async with CodeAgents.running(plans(["odd_module"], sys.executable, "", environment)) as agents:
        yield agents


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise ValueError('x' * 3_000_000)", "odd_module cannot be imported: ValueError: xxx"),
        ("import os; os._exit(5)", "ended with exit code 5 before it had imported odd_module"),
        ("import os; os.kill(os.getpid(), 11)", "ended with signal 11 before it had imported odd_module"),
        (
            "from holdfast.agents import register\nasync def a(run): ...\nfor n in range(3000): register(f'a{n}', a)",
            "odd_module registers 3000 agents, whose names and descriptions have ",
        ),
        (AGENT.replace("return", "yield"), "the agent 'a' yields: give a function that calls run.emit_text instead"),
        (
            "import no_such_library",
            "odd_module cannot be imported: ModuleNotFoundError: No module named 'no_such_library'",
        ),
    ],
    ids=["long-error", "exit", "signal", "many", "generator", "library"],
)
async def test_a_module_that_could_not_be_used_did_not_say_why(tmp_path: Path, source: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        async with _imported(tmp_path, source):
            pass
    assert said in refused.value.message
    assert len(refused.value.message) < 3000


@pytest.mark.parametrize("module", ["no_such_module", "no_such_package.agents"])
async def test_a_module_that_was_not_found_did_not_say_where_it_is_looked_for(module: str) -> None:
    with pytest.raises(InvalidRequest, match="; start from the folder that has it, or name that folder in PYTHONPATH"):
        async with CodeAgents.running(plans([module], sys.executable, "")):
            pass


@pytest.mark.parametrize(
    ("python", "env_file", "named"),
    [
        (
            "/no/such/python",
            "",
            "HOLDFAST_AGENTS_PYTHON (--agents-python) cannot be started: [Errno 2] No such file",
        ),
        (str(ROOT), "", "HOLDFAST_AGENTS_PYTHON (--agents-python) cannot be started: "),
        ("", "/no/such/file", "HOLDFAST_AGENTS_ENV_FILE (--agents-env-file) cannot be read: "),
        ("", str(ROOT), "HOLDFAST_AGENTS_ENV_FILE (--agents-env-file) cannot be read: "),
    ],
)
async def test_a_wrong_setting_of_agents_was_refused_without_its_name(python: str, env_file: str, named: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        async with CodeAgents.running(plans(["json"], python, env_file)):
            pass
    assert refused.value.message.startswith(named)


async def test_a_python_that_was_too_old_was_not_called_so(tmp_path: Path) -> None:
    python = tmp_path / "python"
    old = "import sys; sys.version_info = (3, 9); program = sys.argv[2]; del sys.argv[1:3]; exec(program)"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{old}' \"$@\"\n", encoding="utf-8")
    python.chmod(0o755)
    with pytest.raises(InvalidRequest, match="/python is older than Python 3"):
        async with CodeAgents.running(plans(["json"], str(python), "")):
            pass


def test_an_empty_address_of_a_provider_was_asked_by_the_clients_of_agents() -> None:
    """docker-compose.yml gives the worker each variable of a provider, with no text where `.env` has none."""
    given = {"OPENAI_BASE_URL": "", "OPENAI_API_BASE": "", "OPENAI_API_KEY": "k", "CUDA_VISIBLE_DEVICES": ""}
    [plan] = plans(["research"], sys.executable, "", given)
    assert plan.keys == {"OPENAI_API_KEY": "k"}
    assert plan.environment["CUDA_VISIBLE_DEVICES"] == ""
    assert not {"OPENAI_BASE_URL", "OPENAI_API_BASE"} & plan.environment.keys()


async def test_a_process_that_a_module_had_started_kept_its_worker_from_ending(tmp_path: Path) -> None:
    starts = "import subprocess, sys\nP = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
    source = f"{starts}open(r'{tmp_path / 'pid'}', 'w').write(str(P.pid))\n{AGENT}"
    async with _imported(tmp_path, source) as agents:
        assert [*agents.described] == ["a"]
        pid = int((tmp_path / "pid").read_text())
    await wait_until(lambda: not Path(f"/proc/{pid}").exists(), description="the process to be gone")


async def _failed(world: World, way: str) -> str:
    """What the run says that fails in this way."""
    return _detail(await world.done(await world.submitted("goes-wrong", way)))


def _detail(run: Run) -> str:
    assert (run.status, run.cause) == (RunStatus.FAILED, "body"), run
    assert run.error is not None
    assert run.error.error_type == "body_error", run.error
    return run.error.detail or ""


async def _answer(world: World, agent: str, text: str) -> str:
    run = await world.done(await world.submitted(agent, text))
    assert run.status is RunStatus.COMPLETED, run.error
    return (await world.texts())[-1]


@pytest.mark.parametrize(("named", "shown"), [("half", "a?b"), ("nul", "a\N{REPLACEMENT CHARACTER}b")])
async def test_a_character_that_no_database_stores_lost_what_code_had_said(
    world: World, named: str, shown: str
) -> None:
    assert await _answer(world, "says", f"emits {named}") == shown
    assert await _answer(world, "says", f"returns {named}") == shown
    assert await _answer(world, "says", f"names {named}") == "found"
    found = "a?b" if named == "half" else "a\0b"
    assert await _answer(world, "says", f"finds {named}") == shown, found
    assert await _answer(world, "says", f"gives {named}") == shown
    assert await _answer(world, "says", f"keeps {named}") == "new"
    assert await _answer(world, "says", f"emits {named}") == shown, "the thread goes on"


@pytest.mark.parametrize(("named", "shown"), [("half", "a?b"), ("nul", "a\N{REPLACEMENT CHARACTER}b")])
async def test_an_error_with_a_character_that_no_database_stores_left_its_run_without_an_end(
    world: World, named: str, shown: str
) -> None:
    detail = _detail(await world.done(await world.submitted("says", f"raises {named}")))
    assert detail.startswith(f"ValueError: {shown} (in ")
    detail = _detail(await world.done(await world.submitted("says", f"step-raises {named}")))
    assert detail.startswith(f"ValueError: {shown} (in 'look')")
    assert (await world.results())[-1] == f"Error: ValueError: {shown}"


async def test_code_that_left_by_sys_exit_was_taken_for_a_crash(world: World) -> None:
    assert await _failed(world, "exits") == "SystemExit: 3 (in _exits in goes_wrong)"
    assert await _answer(world, "goes-wrong", "tool exits") == "SystemExit: usage: parse FILE"
    in_thread = "RuntimeError: the function raised SystemExit: usage: parse FILE"
    assert await _answer(world, "goes-wrong", "tool exits in a thread") == in_thread
    assert await world.results() == ["Error: SystemExit: usage: parse FILE", f"Error: {in_thread}"]


@pytest.mark.parametrize("way", ["task exits", "task exits beside step"])
async def test_code_that_left_by_sys_exit_in_a_task_was_taken_for_cancelled_or_never_ended(
    world: World, way: str
) -> None:
    assert (await _failed(world, way)).startswith("SystemExit: usage: parse FILE (in _parse in parse")


async def test_a_process_that_code_had_forked_failed_the_run_or_ended_its_calls(world: World) -> None:
    assert await _answer(world, "goes-wrong", "body forks") == "3"
    assert await _answer(world, "goes-wrong", "steps fork") == "0 1"


async def test_structured_output_that_code_had_shown_and_returned_was_shown_twice(world: World) -> None:
    for way in ("emits its answer", "emits its answer in pieces"):
        assert await _answer(world, "goes-wrong", way) == 'Looking. {"title":"otters"}', way
    shown = 'The list is [{"title":"otters"}\n\n{"title":"otters"}'
    assert await _answer(world, "goes-wrong", "emits the end of its answer") == shown


async def test_an_answer_of_reasoning_alone_was_streamed_and_in_no_history(world: World) -> None:
    for count in ("0", "1"):  # later turns of the code get no message without text
        run = await world.done(await world.submitted("goes-wrong", "only thinks"))
        assert run.status is RunStatus.COMPLETED, run.error
        answer = (await world.stores.context())[-1]
        assert isinstance(answer, AssistantMessage)
        assert (answer.text, answer.reasoning) == ("", Reasoning(f"I have {count} messages."))


async def test_code_that_was_cancelled_by_itself_was_taken_for_a_crash(world: World) -> None:
    detail = await _failed(world, "awaits cancelled")
    assert detail.startswith("CancelledError: the code was cancelled, and nobody has cancelled its run (in ")


async def test_a_group_of_exceptions_did_not_say_what_was_in_it(world: World) -> None:
    assert (
        await _failed(world, "raises group") == "LookupError: no page (in look in _all in _raises_group in goes_wrong)"
    )
    several = "ExceptionGroup: several (2 sub-exceptions): LookupError: no page; LookupError: no book (in 'look')"
    assert (await _failed(world, "raises groups")).startswith(several)


async def test_an_exception_without_a_text_crashed_its_process_or_left_its_step_open(world: World) -> None:
    assert (await _failed(world, "raises unsayable")).startswith("Unsayable: its text cannot be made: RuntimeError")
    parked = await world.done(await world.submitted("goes-wrong", "step raises unsayable"))
    assert parked.status is RunStatus.AWAITING_APPROVAL
    assert (await world.done(await world.approved(parked))).status is RunStatus.COMPLETED
    assert (await world.texts())[-1] == "went on after Unsayable"


async def test_a_call_that_code_had_left_behind_had_no_result_for_ever(world: World) -> None:
    assert await _answer(world, "leaves", "going on") == "left False"
    assert await world.results() == [OUTCOME_UNKNOWN]
    assert await world.is_valid()
    parked = await world.done(await world.submitted("leaves", "asked"))
    assert (await world.done(await world.approved(parked))).status is RunStatus.COMPLETED
    assert await world.results() == [OUTCOME_UNKNOWN, RUN_FAILED]
    assert await world.is_valid()
    assert (await world.texts())[-1] == "left"


async def test_a_function_that_raised_stop_iteration_kept_its_run_for_ever(world: World) -> None:
    detail = await _failed(world, "stops iteration")
    assert detail.startswith("RuntimeError: the function raised StopIteration (in 'first')")


async def test_what_code_gave_of_a_wrong_kind_was_an_error_of_the_server(world: World) -> None:
    assert (await _failed(world, "emits a number")).startswith("TypeError: emit_text takes a text, not a int")
    assert (await _failed(world, "names nothing")).startswith("TypeError: the name of a call takes a text, not a NoneT")
    assert (await _failed(world, "names much")).startswith("ValueError: the name of a call has 3000 characters")
    counted = "ValueError: input_tokens of a Usage is a number of tokens, not None (in 'house/small')"
    assert (await _failed(world, "counts nothing")).startswith(counted)


async def test_the_text_of_an_exception_had_no_bound(world: World) -> None:
    detail = await _failed(world, "says much")
    assert detail.startswith("ValueError: xxx")
    assert len(detail) <= 2000


async def test_a_state_that_no_later_run_could_read_ended_its_thread(world: World) -> None:
    said = "TypeError: run.state is a list: it has to stay a dictionary"
    assert (await _failed(world, "has a list as state")).startswith(said)
    said = "ValueError: run.state has 1000012 bytes, 1000000 are allowed"
    assert (await _failed(world, "keeps much")).startswith(said)
    assert await _answer(world, "says", "emits half") == "a?b", "the thread goes on"


async def test_a_state_that_is_not_english_was_too_large_at_a_sixth_of_the_limit(world: World) -> None:
    assert await _answer(world, "goes-wrong", "keeps otters") == "\N{OTTER}" * 200_000


async def test_an_answer_was_lost_behind_an_empty_text(world: World) -> None:
    """As the last piece of a model's stream is."""
    assert await _answer(world, "goes-wrong", "says nothing") == "found"


async def test_an_answer_that_was_no_text_was_lost(world: World) -> None:
    answer = await _answer(world, "goes-wrong", "returns an object")
    assert msgspec.json.decode(answer) == {"page": "otters", "at": 1.5, "who": "\N{OTTER}"}
    assert "\N{OTTER}" in answer
    assert (await _failed(world, "returns nothing that json says")).startswith("TypeError: a count is nothing that")


@pytest.mark.parametrize(
    ("way", "says"),
    [
        ("times out", "too slow"),
        ("falls back", "small"),
        ("races", "near"),
        ("fails beside", "'page' failed: LookupError: no page"),
        ("is cancelled inside", "CancelledError: "),
    ],
)
async def test_a_run_failed_behind_a_decision_because_its_code_had_given_a_call_up(
    world: World, way: str, says: str
) -> None:
    parked = await world.done(await world.submitted("gives-up", way))
    assert parked.status is RunStatus.AWAITING_APPROVAL, parked.error
    run = await world.done(await world.approved(parked))
    assert run.status is RunStatus.COMPLETED, run.error
    assert (await world.texts())[-1] == says
    assert len(world.stage.reached) <= 1, "what was given up has not begun again"
    assert await world.is_valid()


async def test_a_question_was_never_asked_because_a_tool_waited_for_steps_that_it_held_back(world: World) -> None:
    parked = await world.done(await world.submitted("hands-over", ""))
    assert parked.status is RunStatus.AWAITING_APPROVAL, parked.error
    run = await world.done(await world.approved(parked))
    assert run.status is RunStatus.COMPLETED, run.error
    assert (await world.texts())[-1] == "one|two|three"
    assert await world.is_valid()


async def test_an_exception_with_an_attribute_of_groups_crashed_its_process(world: World) -> None:
    assert await _failed(world, "raises nested") == "Nested: no service answers (in _raises_nested in goes_wrong)"
    assert await _answer(world, "goes-wrong", "tool raises nested") == "Nested: no service answers"


async def test_an_exception_of_no_ordinary_kind_was_taken_for_a_crash_and_its_code_executed_again(world: World) -> None:
    assert await _failed(world, "raises base") == "Skipped: not today (in _raises_base in goes_wrong)"
    assert await _answer(world, "goes-wrong", "tool raises base") == "Skipped: not today"


async def test_a_function_in_a_thread_could_not_use_its_run(world: World) -> None:
    """It found no event loop, and a loop of its own never got an answer."""
    parked = await world.done(await world.submitted("goes-wrong", "uses its run in a thread"))
    assert parked.status is RunStatus.AWAITING_APPROVAL, parked.error
    run = await world.done(await world.approved(parked))
    assert run.status is RunStatus.COMPLETED, run.error
    assert (await world.texts())[-1] == "False False", "each place has numbers of its own"
    assert world.stage.reached == ["inner"]
    said = await _answer(world, "goes-wrong", "uses its run in a strange thread")
    assert said.startswith("this thread does not know its call of the run: start it with asyncio.to_thread")


async def test_what_code_had_printed_was_lost_with_its_process_or_printed_by_each(
    database_url: str, redis: ArqRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with capture_logs() as logged:
        async with world_of_agents(database_url, redis, tmp_path, module=PROGRAM) as world:
            world.stage.stop_at("printed")
            run = await world.submitted("goes-wrong", "prints")
            worker = await world.workers().begin(run.id)
            await wait_until(lambda: _printed(logged) == ["imported", f"otters of {run.id}"], description="the lines")
            world.stage.go_on()
            assert await worker.ended() is None


def _printed(logged: list[MutableMapping[str, Any]]) -> list[str]:
    return [one["text"] for one in logged if one["event"] == "agent_printed" and one["stream"] == "stdout"]


@pytest.mark.parametrize(
    ("way", "edited", "says"),
    [
        ("all", '{"parts": ["c", "d", "e"], "end": "?"}', "c d e?"),
        ("all", '{"end": "?"}', "?"),
        ("first", '{"first": "c", "rest": []}', "c of 0."),
        ("partial", '{"rest": ["c", "d"]}', "a of 2."),
        ("builtin", '{"args": ["c", "d"]}', "d"),
    ],
)
async def test_arguments_that_a_person_had_changed_went_to_other_parameters(
    world: World, way: str, edited: str, says: str
) -> None:
    parked = await world.done(await world.submitted("asks", way))
    run = await world.done(await world.approved(parked, edited))
    assert run.status is RunStatus.COMPLETED, run.error
    assert (await world.texts())[-1] == says
