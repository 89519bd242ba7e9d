"""Whatever a cancel or a crash has left of a history, the next request is one that the provider accepts."""

import json
from typing import Any, cast

import pytest

from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    ContentPart,
    ImageContent,
    Message,
    Reasoning,
    Summary,
    SystemMessage,
    TextContent,
    ToolCall,
    ToolReturn,
    ToolReturns,
    UserMessage,
    text_with_notes,
)
from shared.domain.settling import OUTCOME_UNKNOWN
from tests.kit.model_server import Call, Turn
from tests.kit.model_server.model_calls import (
    ADD,
    ANTHROPIC,
    CHAT,
    GOOGLE,
    HANDLES,
    RESPONSES,
    ask,
    call,
    ending,
    history,
    models_on_server,
    returned,
)
from tests.kit.provider_rules.request import broken_rules

CANCELLED = "[This reply was cut off: the user cancelled it.]"
FAILED = "[This reply was cut off by an error.]"
UNANSWERED = "[No reply: the user cancelled this turn.]"
ENDED = "[This turn ended here, before a reply.]"

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


async def _sent(handle: str, messages: list[Message], **options: Any) -> dict[str, Any]:
    """The body of the request that this history becomes."""
    async with models_on_server() as (server, models):
        await ask(models, call(handle, messages, tools=[ADD], **options))
        return server.requests[0].body


async def _dialogue(handle: str, messages: list[Message]) -> list[tuple[str, str]]:
    """(role, text) of each turn that was sent; what follows in the same role is one turn."""
    body = await _sent(handle, messages)
    turns: list[tuple[str, str]] = []
    for role, text in _spoken(handle, body):
        if turns and turns[-1][0] == role:
            turns[-1] = (role, f"{turns[-1][1]}|{text}")
        else:
            turns.append((role, text))
    return turns


def _spoken(handle: str, body: dict[str, Any]) -> list[tuple[str, str]]:
    """(role, text) of each text that was sent, from each wire's own place. Roles: user, model."""
    if handle == CHAT:
        entries = [(m["role"], m["content"]) for m in body["messages"] if m["role"] in ("user", "assistant")]
    elif handle == RESPONSES:
        entries = [
            (item["role"], item["content"]) for item in body["input"] if item.get("role") not in (None, "system")
        ]
    elif handle == ANTHROPIC:
        entries = [(m["role"], m["content"]) for m in body["messages"]]
    else:
        entries = [(content["role"], content["parts"]) for content in body["contents"]]
    told: list[tuple[str, str]] = []
    for role, content in entries:
        parts = cast("list[dict[str, Any]]", content) if isinstance(content, list) else [{"text": content}]
        texts = [part["text"] for part in parts if part.get("text") is not None]
        told.extend(("user" if role == "user" else "model", text) for text in texts)
    return told


@pytest.mark.parametrize("handle", HANDLES)
async def test_a_partial_answer_ends_in_a_note(handle: str) -> None:
    messages = history(
        UserMessage("Tell me a story."),
        AssistantMessage(
            text="Once upon", reasoning=Reasoning("secret plan"), partial=True, cut_by="cancel",
        ),
        ("run-2", UserMessage("Shorter.")),
        AssistantMessage(text="", partial=True, cut_by="error"),
        ("run-3", UserMessage("Again.")),
    )  # fmt: skip
    assert await _dialogue(handle, messages) == [
        ("user", "Tell me a story."),
        ("model", f"Once upon\n\n{CANCELLED}"),
        ("user", "Shorter."),
        ("model", FAILED),
        ("user", "Again."),
    ]
    assert "secret plan" not in json.dumps(await _sent(handle, messages))


@pytest.mark.parametrize("handle", HANDLES)
async def test_an_unanswered_message_gets_a_note_but_one_runs_messages_stay_together(handle: str) -> None:
    messages = history(
        ("run-1", UserMessage("First.")),
        ("run-2", UserMessage("Second.")),
        ("run-2", UserMessage("(the time is now 5)", role="system")),
    )
    assert await _dialogue(handle, messages) == [
        ("user", "First."),
        ("model", UNANSWERED),
        ("user", "Second.|(the time is now 5)"),
    ]


@pytest.mark.parametrize("handle", HANDLES)
async def test_every_call_has_its_result_and_every_result_its_call(handle: str) -> None:
    messages = history(
        UserMessage("Add."),
        AssistantMessage(tool_calls=[ToolCall("one", "add", '{"a": 1, "b": 1}'), ToolCall("two", "add", '{"a": 2}')]),
        ApprovalResponse([]),
        ToolReturns([returned("two", "second"), returned("stray", "from nowhere")]),
        ("run-2", UserMessage("Well?")),
    )
    body = json.dumps(await _sent(handle, messages))
    assert body.index(OUTCOME_UNKNOWN) < body.index("second"), "in the order of the calls"
    assert "from nowhere" not in body
    assert ("model", ENDED) in await _dialogue(handle, messages)


@pytest.mark.parametrize("handle", HANDLES)
async def test_a_calls_result_that_is_missing_at_the_end(handle: str) -> None:
    messages = history(UserMessage("Add."), AssistantMessage(text="Let me.", tool_calls=[ToolCall("one", "add", "{}")]))
    assert OUTCOME_UNKNOWN in json.dumps(await _sent(handle, messages))


@pytest.mark.parametrize("handle", HANDLES)
@pytest.mark.parametrize("arguments", ["", "not json", '{"a": 1', "[1]", "null", '{"a": NaN}', '"text"'])
async def test_arguments_that_are_no_object_are_sent_as_one(handle: str, arguments: str) -> None:
    messages = history(
        UserMessage("Add."),
        AssistantMessage(tool_calls=[ToolCall("one", "add", arguments)]),
        ToolReturns([returned("one", "bad arguments", failed=True)]),
    )
    body = await _sent(handle, messages)
    assert isinstance(_first_arguments(handle, body), dict)


def _first_arguments(handle: str, body: dict[str, Any]) -> Any:
    if handle == CHAT:
        [message] = [message for message in body["messages"] if message["role"] == "assistant"]
        return json.loads(message["tool_calls"][0]["function"]["arguments"])
    if handle == RESPONSES:
        [item] = [item for item in body["input"] if item.get("type") == "function_call"]
        return json.loads(item["arguments"])
    if handle == ANTHROPIC:
        return body["messages"][1]["content"][0]["input"]
    return body["contents"][1]["parts"][0]["functionCall"]["args"]


@pytest.mark.parametrize("handle", HANDLES)
@pytest.mark.parametrize("before", HANDLES)
async def test_a_history_made_with_another_model_goes_on_with_this_one(before: str, handle: str) -> None:
    """Its reasoning, ids and signatures stay behind; its words and calls go along."""
    if before == handle:
        return
    async with models_on_server() as (server, models):
        server.play(Turn(reasoning="Hm.", text="Adding.", calls=[Call("add", {"a": 1, "b": 2}, id="call.1:é")]))
        first = await ask(models, call(before, tools=[ADD]))
        spoken = AssistantMessage(
            text="Adding.",
            reasoning=Reasoning("Hm."),
            tool_calls=[ToolCall("call.1:é", "add", '{"a": 1, "b": 2}')],
            model=before,
            provider_response=ending(first).provider_response,
        )
        messages = history(UserMessage("?"), spoken, ToolReturns([returned("call.1:é", "3")]))
        await ask(models, call(handle, messages, tools=[ADD]))
        body = json.dumps(server.requests[1].body, ensure_ascii=False)
    assert "Adding." in body
    assert "Hm." not in body
    assert "c2lnbmVkLWJ5LXRoZS1zZXJ2ZXI=" not in body
    for foreign in ("rs_0001", "msg_0001", "fc_0001"):
        assert foreign not in body
    if handle == ANTHROPIC:
        assert "call_1__" in body
        assert "call.1:é" not in body
        assert '"thinking"' not in body, "no thinking between a foreign call's result and the next words"


async def test_an_anthropic_turn_that_goes_on_keeps_thinking() -> None:
    async with models_on_server() as (server, models):
        server.play(Turn(reasoning="Hm.", calls=[Call("add", {"a": 1, "b": 2}, id="toolu_1")]))
        first = await ask(models, call(ANTHROPIC, tools=[ADD]))
        spoken = AssistantMessage(
            tool_calls=[ToolCall("toolu_1", "add", '{"a": 1, "b": 2}')],
            model=ANTHROPIC,
            provider_response=ending(first).provider_response,
        )
        messages = history(UserMessage("?"), spoken, ToolReturns([returned("toolu_1", "3")]))
        await ask(models, call(ANTHROPIC, messages, tools=[ADD]))
        body = server.requests[1].body
    assert body["thinking"]["type"] == "enabled"
    thinking = body["messages"][1]["content"][0]
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "Hm.")


@pytest.mark.parametrize("handle", HANDLES)
async def test_a_kept_response_that_cannot_be_read_is_rebuilt(handle: str) -> None:
    spoken = AssistantMessage(text="Hi.", model=handle, provider_response='{"no": "response"}')
    messages = history(UserMessage("Hello."), spoken, ("run-2", UserMessage("Bye.")))
    assert ("model", "Hi.") in await _dialogue(handle, messages)


@pytest.mark.parametrize("handle", HANDLES)
async def test_a_history_that_begins_or_ends_with_the_model(handle: str) -> None:
    messages = history(
        SystemMessage("Old instructions."),
        UserMessage("Welcome!", role="assistant"),
        Summary("They spoke of cats."),
        UserMessage("And dogs?"),
        AssistantMessage(text="And dogs."),
    )
    turns = await _dialogue(handle, messages)
    assert [role for role, _ in turns] == ["user", "model", "user", "model", "user"]
    assert turns[1] == ("model", "Welcome!")
    told = "[Earlier messages are left out here. This is a summary of them.]\n"
    assert turns[2] == ("user", f"{told}They spoke of cats.|And dogs?")
    assert "Old instructions." not in json.dumps(turns)


@pytest.mark.parametrize("handle", HANDLES)
async def test_results_at_the_beginning_have_lost_their_calls(handle: str) -> None:
    messages = history(ToolReturns([returned("one", "lost")]), ("run-2", UserMessage("Hello.")))
    assert await _dialogue(handle, messages) == [("user", "Hello.")]


@pytest.mark.parametrize("handle", HANDLES)
async def test_nothing_is_sent_blank_or_half(handle: str) -> None:
    messages = history(
        UserMessage("  "),
        AssistantMessage(text="", reasoning=Reasoning("Only thought.")),
        ("run-2", UserMessage("half \ud83d of a character")),
    )
    turns = await _dialogue(handle, messages)
    assert all(text.strip() for _, text in turns)
    assert turns[-1] == ("user", "half \ufffd of a character")
    assert await _dialogue(handle, []) == [("user", "[The conversation begins with your own message.]")]


@pytest.mark.parametrize("handle", HANDLES)
async def test_an_image_is_sent_as_an_image(handle: str) -> None:
    content: list[ContentPart] = [TextContent("What is this?"), ImageContent(data=PIXEL)]
    body = await _sent(handle, history(UserMessage(content)))
    assert PIXEL.rstrip("=")[:60] in json.dumps(body).replace("-", "+").replace("_", "/")
    assert "image/png" in json.dumps(body)


UNREADABLE = [ImageContent(), ImageContent(data="A"), ImageContent(data="ä"), ImageContent(url="ftp://127.0.0.1/a.png")]


@pytest.mark.parametrize("image", UNREADABLE, ids=["empty", "cut", "no base64", "another scheme"])
@pytest.mark.parametrize("handle", HANDLES)
async def test_an_image_that_no_model_can_read_ended_every_later_run(handle: str, image: ImageContent) -> None:
    asked = await _sent(handle, history(UserMessage([TextContent("What is this?"), image])))
    assert "could not be read" in json.dumps(asked)
    brought = await _sent(handle, _with_result([TextContent("Here it is:"), image]))
    assert "Here it is:" in json.dumps(brought)


PARTS: list[ContentPart] = [TextContent("Here it is:"), ImageContent(data=PIXEL, media_type="image/png")]


def _with_result(parts: list[ContentPart]) -> list[Message]:
    """Two calls, the first of which brought these parts."""
    asked = AssistantMessage(tool_calls=[ToolCall("one", "add", "{}"), ToolCall("two", "add", "{}")])
    brought = ToolReturn("one", "add", "success", text_with_notes(parts), parts=parts)
    return history(UserMessage("Look."), asked, ToolReturns([brought, returned("two", "second")]))


@pytest.mark.parametrize("handle", HANDLES)
async def test_an_image_in_a_tools_result_vanished_on_its_way_to_the_model(handle: str) -> None:
    messages = _with_result(PARTS)
    async with models_on_server() as (server, models):
        await ask(models, call(handle, messages, tools=[ADD]))
        request = server.requests[0]
    assert broken_rules(request) == []
    sent = json.dumps(request.body).replace("-", "+").replace("_", "/")
    assert sent.count(PIXEL.rstrip("=")[:60]) == 1
    assert "Here it is:" in sent
    assert "omitted" not in sent, "the note is for those who cannot see the image"
    place = _place_of_image(handle, request.body)
    assert place == {
        CHAT: "a user's message after the results",
        RESPONSES: "function_call_output",
        ANTHROPIC: "tool_result",
    }.get(handle, "a part after the results")


def _place_of_image(handle: str, body: dict[str, Any]) -> str:
    if handle == CHAT:
        roles = [message["role"] for message in body["messages"]]
        kinds = [part["type"] for part in body["messages"][-1]["content"]]
        assert "image_url" in kinds
        assert roles[-3:] == ["tool", "tool", "user"]
        return "a user's message after the results"
    if handle == RESPONSES:
        [item] = [one for one in body["input"] if "input_image" in json.dumps(one)]
        assert item["call_id"] == "one"
        return item["type"]
    if handle == ANTHROPIC:
        [block] = [one for one in body["messages"][-1]["content"] if '"image"' in json.dumps(one)]
        assert block["tool_use_id"] == "one"
        return block["type"]
    results, image = body["contents"][-2:]
    assert all("functionResponse" in part for part in results["parts"])
    assert any("inlineData" in part for part in image["parts"])
    return "a part after the results"


async def test_an_image_is_a_part_of_the_result_where_gemini_takes_it_so() -> None:
    body = await _sent("google_ai/gemini-3-pro-preview", _with_result(PARTS))
    result = body["contents"][-1]["parts"][0]["functionResponse"]
    assert result["response"]["message"] == "Here it is:"
    assert "image/png" in json.dumps(result["parts"])
    assert len(body["contents"]) == 3, "nothing after the results"


@pytest.mark.parametrize("handle", [CHAT, RESPONSES, ANTHROPIC])
async def test_an_images_address_is_handed_to_providers_that_fetch_it(handle: str) -> None:
    parts: list[ContentPart] = [ImageContent(url="https://example.org/picture")]
    assert "https://example.org/picture" in json.dumps(await _sent(handle, _with_result(parts)))
    assert "https://example.org/picture" in json.dumps(await _sent(handle, history(UserMessage(parts))))


UNREACHABLE = ImageContent(url="http://127.0.0.1:9/private.png?key=secret")


async def test_an_image_that_cannot_be_fetched_was_an_error_of_the_provider() -> None:
    for messages in (history(UserMessage([UNREACHABLE])), _with_result([UNREACHABLE])):
        with pytest.raises(ModelError, match=r"no image to be had at http://127\.0\.0\.1:9/private\.png \(") as caught:
            await _sent(GOOGLE, messages)
        assert caught.value.error_type == ModelErrorType.BAD_REQUEST
        assert not caught.value.retryable
        assert "secret" not in caught.value.message


async def test_an_image_that_has_gone_from_its_address_does_not_end_the_conversation() -> None:
    messages = history(
        UserMessage([TextContent("Look."), UNREACHABLE]), AssistantMessage(text="Nice."), ("run-2", UserMessage("Yes."))
    )
    assert "is no longer there" in json.dumps(await _sent(GOOGLE, messages))
