"""Requests of agents of own code in OpenAI's dialects, and the answers that they get. Pure."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from shared.domain.errors import InvalidRequest
from shared.domain.journal import Replay
from shared.domain.messages import AssistantMessage, ImageContent, TextContent, ToolReturns, UserMessage
from shared.domain.runs import Usage
from shared.process.settings import Settings
from worker.agents.hosts import plans
from worker.agents.models.answers import ChatAnswer, ResponseAnswer, recorded
from worker.agents.models.requests import Dialect, ModelRequest, read_request
from worker.models.provider import CallArguments, CallFinished, CallStarted, Finished, ModelEvent, Text, Thought

THEN = datetime(2026, 1, 2, tzinfo=UTC)
USED = Usage(prompt_tokens=11, completion_tokens=7, cached_input_tokens=3, reasoning_tokens=2)
EVENTS: list[ModelEvent] = [
    Thought("Hm."),
    Text("I "),
    Text("add."),
    CallStarted(0, "call_1", "add"),
    CallArguments(0, '{"a":'),
    CallStarted(1, "call_2", "now"),
    CallArguments(0, "1}"),
    CallFinished(0, "call_1", "add", '{"a":1}'),
    CallFinished(1, "call_2", "now", "{}"),
    Finished("tool_calls", USED, None),
]


def read(dialect: Dialect, **body: Any) -> ModelRequest:
    return read_request(dialect, json.dumps({"model": "openai/gpt-5", **body}).encode())


def chat(**body: Any) -> ModelRequest:
    return read("chat", messages=[{"role": "user", "content": "Hi"}], **body)


def responses(**body: Any) -> ModelRequest:
    return read("responses", **{"input": "Hi", **body})


@pytest.mark.parametrize(
    ("name", "handle"),
    [
        ("openai/gpt-5", "openai/gpt-5"),
        ("holdfast/groq/openai/gpt-oss-120b", "groq/openai/gpt-oss-120b"),
        ("gpt-5", "openai/gpt-5"),
    ],
)
def test_a_model_is_named_by_its_handle(name: str, handle: str) -> None:
    assert chat(model=name).handle == handle


def test_a_request_is_the_same_streamed_or_not() -> None:
    whole = chat(temperature=0.5)
    assert chat(stream=True, stream_options={"include_usage": True}, temperature=0.5).hash == whole.hash
    assert chat(temperature=0.6).hash != whole.hash
    assert responses().hash != chat().hash


def test_both_dialects_say_the_same_history() -> None:
    image = "data:image/png;base64,AAAA"
    of_chat = read(
        "chat",
        messages=[
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": image}}]},
            {"role": "assistant", "content": "I add.", "tool_calls": [{"id": "c", "function": {"name": "add"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "3"},
            {"role": "system", "content": "Be brief."},
        ],
    )
    of_responses = responses(
        instructions="Be kind.",
        input=[
            {"role": "user", "content": [{"type": "input_image", "image_url": image}]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I add."}]},
            {"type": "function_call", "call_id": "c", "name": "add", "arguments": ""},
            {"type": "function_call_output", "call_id": "c", "output": "3"},
            {"role": "system", "content": "Be brief."},
        ],
    )
    assert of_chat.history == of_responses.history
    assert of_chat.system == of_responses.system == "Be kind."
    shown, answer, result, late = of_chat.history
    assert isinstance(shown, UserMessage)
    assert shown.content == [ImageContent(data="AAAA", media_type="image/png")]
    assert isinstance(answer, AssistantMessage)
    assert (answer.text, answer.tool_calls[0].id) == ("I add.", "c")
    assert isinstance(result, ToolReturns)
    assert (result.returns[0].tool_name, result.returns[0].is_plain) == ("add", True)
    assert isinstance(late, UserMessage)
    assert late.role == "system"


def test_results_of_one_answer_stand_together() -> None:
    calls = [{"id": one, "function": {"name": one}} for one in ("a", "b")]
    parts = [{"type": "text", "text": "1"}]
    asked = read(
        "chat",
        messages=[
            {"role": "assistant", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "a", "content": parts},
            {"role": "tool", "tool_call_id": "b", "content": "2"},
        ],
    )
    _, results = asked.history
    assert isinstance(results, ToolReturns)
    assert [(one.tool_name, one.text, one.parts) for one in results.returns] == [
        ("a", "1", [TextContent("1")]),
        ("b", "2", None),
    ]


def test_options_are_demanded_as_they_are_said() -> None:
    schema = {"name": "page", "schema": {"type": "object"}, "strict": True}
    asked = responses(
        max_output_tokens=9,
        top_p=0.5,
        parallel_tool_calls=False,
        reasoning={"effort": "low"},
        text={"format": {"type": "json_schema", **schema}, "verbosity": "low"},
        tools=[{"type": "function", "name": "add", "parameters": None, "strict": True}],
        tool_choice={"type": "function", "name": "add"},
    )
    assert asked.options == {
        "max_output_tokens": 9,
        "top_p": 0.5,
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
        "reasoning": True,
        "response_format": {"type": "json_schema", "json_schema": schema},
        "verbosity": "low",
    }
    assert asked.choice == "=add"
    assert "tool_choice" in asked.demanded
    assert chat(response_format={"type": "json_schema", "json_schema": schema}).options == {
        "response_format": {"type": "json_schema", "json_schema": schema}
    }


@pytest.mark.parametrize(
    ("dialect", "body", "words"),
    [
        ("chat", {"messages": [{"role": "user", "content": [{"type": "input_file"}]}]}, "content[0].type"),
        ("chat", {"messages": [{"role": "user", "content": "Hi"}], "n": 2}, "$.n"),
        ("responses", {"input": "Hi", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ("responses", {"input": "Hi", "tool_choice": {"type": "function", "name": "gone"}}, "gone"),
        ("responses", {}, "input"),
    ],
)
def test_what_no_model_of_the_worker_takes_is_refused(dialect: Dialect, body: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(dialect, **body)
    assert words in refused.value.message


def test_a_body_of_a_thousand_brackets_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        read_request("chat", b"[" * 100_000)


def test_the_chunks_of_a_completion_make_the_whole() -> None:
    entry = Replay("turn", []).begin_answer("openai/gpt-5", "hash", THEN)
    answer = ChatAnswer(entry, chat(stream_options={"include_usage": True}))
    frames = [*answer.begin(), *(frame for event in EVENTS for frame in answer.take(event))]
    deltas = [frame["choices"][0]["delta"] for frame in frames if frame["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "I add."
    arguments = {0: "", 1: ""}
    for delta in deltas:
        for call in delta.get("tool_calls", ()):
            arguments[call["index"]] += call["function"]["arguments"]
    whole = answer.whole()
    [choice] = whole["choices"]
    assert [call["function"]["arguments"] for call in choice["message"]["tool_calls"]] == list(arguments.values())
    assert arguments == {0: '{"a":1}', 1: "{}"}
    assert choice["message"]["reasoning_content"] == "Hm."
    assert frames[-1]["usage"] == whole["usage"]
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}


def test_the_events_of_a_response_are_those_that_openais_clients_know() -> None:
    known: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    entry = Replay("turn", []).begin_answer("openai/gpt-5", "hash", THEN)
    answer = ResponseAnswer(entry, responses(tools=[{"type": "function", "name": "add", "parameters": {}}]))
    batches = [answer.begin(), *(answer.take(event) for event in EVENTS)]
    frames = [json.loads(answer.framed(frame).decode().partition("data: ")[2]) for batch in batches for frame in batch]
    for frame in frames:
        known.validate_python(frame)
    assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))
    last = frames[-1]["response"]
    assert last == answer.whole()
    assert [item["type"] for item in last["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert [item["id"] for item in last["output"]] == list(
        dict.fromkeys(frame["item_id"] for frame in frames if "item_id" in frame)
    )
    assert [frame["item"] for frame in frames if frame["type"] == "response.output_item.done"] == last["output"]


def test_a_cut_off_response_is_incomplete() -> None:
    entry = Replay("turn", []).begin_answer("openai/gpt-5", "hash", THEN)
    answer = ResponseAnswer(entry, responses())
    answer.begin()
    for event in (Text("On"), Finished("length", USED, None)):
        answer.take(event)
    assert (answer.whole()["status"], answer.whole()["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )


def test_a_recorded_answer_makes_the_same_answer_again() -> None:
    answer = recorded(EVENTS, "openai/gpt-5")
    assert recorded(answer.events(), "openai/gpt-5") == answer


def test_the_journal_gives_ids_that_no_other_answer_has() -> None:
    replay = Replay("turn", [])
    entries = [replay.begin_answer("openai/gpt-5", "hash", THEN) for _ in range(2)]
    assert len({ChatAnswer(entry, chat()).begin()[0]["id"] for entry in entries}) == 2


def test_keys_of_providers_are_apart_from_what_an_operator_gives_agents(tmp_path: Path) -> None:
    file = tmp_path / "agents.env"
    file.write_text("GROQ_API_KEY=of the agents\n")
    environment = {"OPENAI_API_KEY": "secret", "GROQ_API_KEY": "secret", "PATH": "/bin", "HOLDFAST_DATABASE_URL": "x"}
    models = Settings(agents_models="worker").agents_models
    [plan] = plans(["shop"], "python", str(file), environment, models)
    assert plan.environment == {"PATH": "/bin", "GROQ_API_KEY": "of the agents", "HOLDFAST_AGENTS_MODELS": "worker"}
    assert plan.keys == {"OPENAI_API_KEY": "secret"}
    assert not plan.has_keys
    [plan] = plans(["shop"], "python", "", environment)
    assert plan.has_keys
