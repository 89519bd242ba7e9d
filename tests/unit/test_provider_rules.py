"""Each rule finds the body that breaks it and passes one that keeps it. The bodies are what goes over the wire."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.kit.project.source_tree import suite_sources
from tests.kit.provider_rules.anthropic_messages import check_anthropic
from tests.kit.provider_rules.gemini_contents import check_gemini
from tests.kit.provider_rules.openai_chat import check_openai_chat
from tests.kit.provider_rules.openai_responses import check_openai_responses
from tests.kit.provider_rules.request import check_request
from tests.kit.provider_rules.violation import Violation

Json = dict[str, Any]


class Case(NamedTuple):
    """A rule with a body that keeps it and one that breaks it."""

    rule: str
    keeps: Json
    breaks: Json


def chat(*messages: Json, **more: Any) -> Json:
    return {"messages": list(messages), **more}


def call(call_id: str = "a", name: str = "look", arguments: str = "{}") -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def asks(*calls: Json) -> Json:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def tool(call_id: str = "a", content: Any = "found") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


HI: Json = {"role": "user", "content": "hi"}
SYSTEM: Json = {"role": "system", "content": "be kind"}
SAID: Json = {"role": "assistant", "content": "hello"}

CHAT = [
    Case("messages_not_empty", chat(HI), chat()),
    Case("roles_known", chat(HI, SAID), chat(HI, {"role": "model", "content": "hello"})),
    Case("system_first", chat(SYSTEM, HI), chat(HI, SYSTEM)),
    Case("content_or_tool_calls", chat(HI, asks(call()), tool()), chat(HI, {"role": "assistant", "content": ""})),
    Case("content_or_tool_calls", chat(HI, asks(call()), tool(content="")), chat(HI, asks(call()), tool(content=None))),
    Case(
        "content_or_tool_calls",
        chat({"role": "user", "content": [{"type": "text", "text": "hi"}]}),
        chat({"role": "user", "content": [{"type": "text", "text": ""}]}),
    ),
    Case("tool_calls_answered", chat(HI, asks(call()), tool()), chat(HI, asks(call()))),
    Case(
        "tool_calls_answered",
        chat(HI, asks(call("a"), call("b")), tool("b"), tool("a"), HI),
        chat(HI, asks(call("a"), call("b")), tool("a"), HI, tool("b")),
    ),
    Case("tool_message_follows_its_call", chat(HI, asks(call()), tool(), SAID), chat(HI, tool())),
    Case(
        "tool_message_follows_its_call",
        chat(HI, asks(call("a")), tool("a")),
        chat(HI, asks(call("a")), tool("a"), tool("a")),
    ),
    Case(
        "call_ids_unique",
        chat(HI, asks(call("a"), call("b")), tool("a"), tool("b"), asks(call("a")), tool("a")),
        chat(HI, asks(call("a"), call("a")), tool("a"), tool("a")),
    ),
    Case(
        "arguments_are_an_object",
        chat(HI, asks(call(arguments='{"q": 1}')), tool()),
        chat(HI, asks(call(arguments='{"q": ')), tool()),
    ),
    Case(
        "names_match_pattern",
        chat(HI, tools=[{"type": "function", "function": {"name": "look_up-2"}}]),
        chat(HI, tools=[{"type": "function", "function": {"name": "look up"}}]),
    ),
    Case("names_match_pattern", chat({**HI, "name": "Ada"}), chat({**HI, "name": "Ada Lovelace"})),
]


def responses(*items: Json, **more: Any) -> Json:
    return {"input": list(items), **more}


def function_call(call_id: str = "a", name: str = "look", arguments: str = "{}") -> Json:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def output(call_id: str = "a") -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": "found"}


THOUGHT: Json = {"type": "reasoning", "id": "rs_1", "summary": []}

RESPONSES = [
    Case("input_not_empty", {"input": "hi"}, {"input": ""}),
    Case("items_known", responses(HI), responses(HI, {"role": "tool", "content": "found"})),
    Case("message_content_not_empty", responses(HI), responses({"role": "user", "content": []})),
    Case("call_has_output", responses(HI, function_call(), output()), responses(HI, function_call(), HI, output())),
    Case(
        "output_has_call",
        responses(output(), previous_response_id="resp_1"),
        responses(HI, output(), function_call(), output()),
    ),
    Case(
        "output_has_call",
        responses(HI, function_call(), output()),
        responses(HI, function_call(), output(), output()),
    ),
    Case(
        "call_ids_unique",
        responses(HI, function_call("a"), function_call("b"), output("a"), output("b")),
        responses(HI, function_call("a"), output("a"), function_call("a"), output("a")),
    ),
    Case(
        "arguments_are_an_object",
        responses(HI, function_call(arguments='{"q": 1}'), output()),
        responses(HI, function_call(arguments="[1]"), output()),
    ),
    Case("reasoning_is_followed", responses(HI, THOUGHT, SAID, HI), responses(HI, THOUGHT, HI)),
    Case("reasoning_is_followed", responses(HI, THOUGHT, function_call(), output()), responses(HI, THOUGHT)),
    Case(
        "names_match_pattern",
        responses(HI, function_call(name="look"), output()),
        responses(HI, function_call(name="look.up"), output()),
    ),
]


def user(*blocks: Any) -> Json:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> Json:
    return {"role": "assistant", "content": list(blocks)}


def text(value: str = "hi") -> Json:
    return {"type": "text", "text": value}


def use(call_id: str = "a", name: str = "look", given: Any = None) -> Json:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {} if given is None else given}


def result(call_id: str = "a", content: Any = "found") -> Json:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def thinking(signature: str = "c2ln") -> Json:
    return {"type": "thinking", "thinking": "hm", "signature": signature}


ENABLED: Json = {"thinking": {"type": "enabled", "budget_tokens": 1024}}

ANTHROPIC = [
    Case("user_speaks_first", chat(HI), chat(SAID, HI)),
    Case("user_speaks_last", chat(HI, SAID, HI), chat(HI, SAID)),
    Case("roles_known", chat(HI, system="be kind"), chat(SYSTEM, HI)),
    Case("content_not_empty", chat(HI, SAID, HI), chat(HI, assistant(), HI)),
    Case("text_not_blank", chat(user(text())), chat(user(text(" \n")))),
    Case("text_not_blank", chat(HI, system=[text()]), chat(HI, system=[text("")])),
    Case(
        "text_not_blank",
        chat(HI, assistant(use()), user(result(content=[text()]))),
        chat(HI, assistant(use()), user(result(content=[text("")]))),
    ),
    Case(
        "prefill_without_trailing_whitespace",
        chat(HI, assistant(text("so ")), HI),
        chat(HI, assistant(text("so "))),
    ),
    Case("tool_result_follows_tool_use", chat(HI, assistant(use()), user(result())), chat(HI, assistant(use()), HI)),
    Case(
        "tool_result_follows_tool_use",
        chat(HI, assistant(text()), assistant(use("a"), use("b")), user(result("b")), user(result("a"))),
        chat(HI, assistant(use("a"), use("b")), user(result("a")), SAID, user(result("b"))),
    ),
    Case(
        "tool_result_follows_tool_use",
        chat(HI, assistant(use()), user(result(), text())),
        chat(HI, assistant(use()), user(result(), result())),
    ),
    Case(
        "tool_results_first",
        chat(HI, assistant(use()), user(result(), text())),
        chat(HI, assistant(use()), user(text(), result())),
    ),
    Case("tool_use_precedes_tool_result", chat(HI, assistant(use()), user(result())), chat(user(result()))),
    Case(
        "tool_use_ids_unique",
        chat(HI, assistant(use("a")), user(result("a")), assistant(use("b")), user(result("b"))),
        chat(HI, assistant(use("a")), user(result("a")), assistant(use("a")), user(result("a"))),
    ),
    Case(
        "tool_use_ids_match_pattern",
        chat(HI, assistant(use("toolu_0-1")), user(result("toolu_0-1"))),
        chat(HI, assistant(use("call.1")), user(result("call.1"))),
    ),
    Case(
        "tool_use_input_is_object",
        chat(HI, assistant(use(given={"q": 1})), user(result())),
        chat(HI, assistant(use(given="{}")), user(result())),
    ),
    Case("names_match_pattern", chat(HI, tools=[{"name": "look"}]), chat(HI, tools=[{"name": "look up"}])),
    Case(
        "thinking_is_signed",
        chat(HI, assistant(thinking(), text()), HI),
        chat(HI, assistant(thinking(signature=""), text()), HI),
    ),
    Case(
        "thinking_comes_first",
        chat(HI, assistant(thinking(), text()), HI),
        chat(HI, assistant(text(), thinking()), HI),
    ),
    Case("thinking_never_last", chat(HI, assistant(thinking(), text()), HI), chat(HI, assistant(thinking()), HI)),
    Case(
        "thinking_starts_tool_turn",
        chat(HI, assistant(thinking(), use()), user(result()), **ENABLED),
        chat(HI, assistant(use()), user(result()), **ENABLED),
    ),
    Case(
        "thinking_starts_tool_turn",
        chat(HI, assistant(thinking(), use("a")), user(result("a")), assistant(use("b")), user(result("b")), **ENABLED),
        chat(HI, assistant(thinking(), text()), HI, assistant(use()), user(result()), **ENABLED),
    ),
    Case(
        "thinking_starts_tool_turn",
        chat(HI, assistant(use()), user(result()), thinking={"type": "adaptive"}),
        chat(HI, assistant(text(), use()), user(result(), text()), **ENABLED),
    ),
]


def contents(*turns: Json, **more: Any) -> Json:
    return {"contents": list(turns), **more}


def asked(*parts: Json) -> Json:
    return {"role": "user", "parts": list(parts)}


def answered(*parts: Json) -> Json:
    return {"role": "model", "parts": list(parts)}


def called(name: str = "look", args: Any = None) -> Json:
    return {"functionCall": {"name": name, "args": {} if args is None else args}}


def returned(name: str = "look", response: Any = None) -> Json:
    return {"functionResponse": {"name": name, "response": {} if response is None else response}}


T: Json = {"text": "hi"}

GEMINI = [
    Case("user_speaks_first", contents(asked(T)), contents(answered(T), asked(T))),
    Case("user_speaks_first", contents(asked(T)), contents()),
    Case("user_speaks_last", contents(asked(T), answered(T), asked(T)), contents(asked(T), answered(T))),
    Case("roles_alternate", contents(asked(T, T)), contents(asked(T), asked(T))),
    Case(
        "roles_alternate",
        contents(asked(T), answered(called("a")), asked(returned("a")), asked(T)),
        contents(asked(T), answered(called("a")), asked(returned("a")), asked(T), asked(T)),
    ),
    Case("roles_alternate", contents(asked(T)), contents(asked(T), {"role": "assistant", "parts": [T]}, asked(T))),
    Case("parts_not_empty", contents(asked(T)), contents(asked())),
    Case(
        "parts_not_empty",
        contents(asked(T), answered({"text": "", "thoughtSignature": "c2ln"}), asked(T)),
        contents(asked(T), answered({"text": "", "thought": True}), asked(T)),
    ),
    Case(
        "function_response_follows_call",
        contents(asked(T), answered(called("a"), called("b")), asked(returned("a"), returned("b"), T)),
        contents(asked(T), answered(called("a"), called("b")), asked(returned("b"), returned("a"))),
    ),
    Case(
        "function_response_follows_call",
        contents(asked(T), answered(called()), asked(returned())),
        contents(asked(T), answered(called(), called()), asked(returned())),
    ),
    Case(
        "function_call_precedes_response",
        contents(asked(T), answered(called()), asked(returned())),
        contents(asked(T), answered(T), asked(returned())),
    ),
    Case(
        "arguments_are_an_object",
        contents(asked(T), answered(called(args={"q": 1})), asked(returned())),
        contents(asked(T), answered(called(args="{}")), asked(returned())),
    ),
    Case(
        "response_is_an_object",
        contents(asked(T), answered(called()), asked(returned(response={"result": 1}))),
        contents(asked(T), answered(called()), asked(returned(response="found"))),
    ),
    Case(
        "names_match_pattern",
        contents(asked(T), tools=[{"functionDeclarations": [{"name": "look"}]}]),
        contents(asked(T), tools=[{"function_declarations": [{"name": "2 look"}]}]),
    ),
]

Check = Callable[[Json], list[Violation]]
CASES: list[tuple[str, Check, Case]] = [
    *(("openai_chat", check_openai_chat, case) for case in CHAT),
    *(("openai_responses", check_openai_responses, case) for case in RESPONSES),
    *(("anthropic", check_anthropic, case) for case in ANTHROPIC),
    *(("gemini", check_gemini, case) for case in GEMINI),
]
NAMES = [f"{provider}.{case.rule}" for provider, _, case in CASES]


@pytest.mark.parametrize(("provider", "check", "case"), CASES, ids=NAMES)
def test_a_body_that_keeps_the_rule_passes(provider: str, check: Check, case: Case) -> None:
    assert check(case.keeps) == []


@pytest.mark.parametrize(("provider", "check", "case"), CASES, ids=NAMES)
def test_a_body_that_breaks_the_rule_is_found(provider: str, check: Check, case: Case) -> None:
    found = check(case.breaks)
    assert f"{provider}.{case.rule}" in {violation.rule for violation in found}
    assert all(violation.where and violation.message for violation in found)


def test_every_rule_has_its_bodies() -> None:
    written = [source.text for source in suite_sources() if source.is_in(("tests/kit/provider_rules/",))]
    rules = set(re.findall(r'"((?:openai_chat|openai_responses|anthropic|gemini)\.\w+)"', "\n".join(written)))
    assert rules == set(NAMES)


@pytest.mark.parametrize("check", [check_openai_chat, check_openai_responses, check_anthropic, check_gemini])
def test_a_body_of_no_known_shape_is_refused_and_raises_nothing(check: Check) -> None:
    assert check({})
    strange: Json = {
        "role": 1,
        "content": [1, {"type": "tool_use", "id": [1]}],
        "parts": [None],
        "tool_calls": [{"id": {}}],
    }
    for key in ("messages", "input", "contents"):
        assert check({key: [None, 1, [], strange, {"type": "function_call", "call_id": []}]})


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("/v1/chat/completions", "openai_chat.messages_not_empty"),
        ("/v1/responses", "openai_responses.input_not_empty"),
        ("/v1/messages?beta=true", "anthropic.user_speaks_first"),
        ("/v1beta/models/gemini-2.5-pro:generateContent", "gemini.user_speaks_first"),
        ("/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse", "gemini.user_speaks_first"),
    ],
)
def test_the_path_chooses_the_rules(path: str, rule: str) -> None:
    assert [violation.rule for violation in check_request(path, {})] == [rule]


def test_a_path_that_is_no_model_call_is_refused() -> None:
    with pytest.raises(ValueError, match="not a model call"):
        check_request("/v1/models", {})
