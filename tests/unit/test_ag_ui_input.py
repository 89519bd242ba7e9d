"""What is new in the messages that an AG-UI client sends, and what their content becomes."""

from base64 import b64encode
from typing import Any

import pytest

from api.ag_ui.messages import MOST_BYTES, newest_within, read_content, wire_content
from api.ag_ui.run_input import RunAgentInput, speaks_current
from api.pages.decisions import PageRefusal
from shared.domain.errors import InvalidRequest
from shared.domain.messages import AttachedFile, ImageContent, TextContent

PDF = b64encode(b"%PDF-1.4").decode()
PDF_SOURCE = {"type": "data", "value": PDF, "mimeType": "application/pdf"}
HI = ImageContent(data="aGk=", media_type="image/png")


def user(message_id: str, content: Any = "Hi") -> dict[str, Any]:
    return {"id": message_id, "role": "user", "content": content}


def answer(message_id: str, *calls: str) -> dict[str, Any]:
    made = [{"id": one, "type": "function", "function": {"name": "paint", "arguments": "{}"}} for one in calls]
    return {"id": message_id, "role": "assistant", "content": "So."} | ({"toolCalls": made} if made else {})


def result(message_id: str, call_id: str, **more: Any) -> dict[str, Any]:
    return {"id": message_id, "role": "tool", "toolCallId": call_id, "content": "done", **more}


def read(*messages: dict[str, Any], **fields: Any) -> RunAgentInput:
    return RunAgentInput.model_validate({"threadId": "desk", "messages": list(messages), **fields})


@pytest.mark.parametrize(
    ("messages", "said", "results"),
    [
        ([user("u1")], ["u1"], []),
        ([user("u1"), user("u2")], ["u1", "u2"], []),
        ([user("u1"), answer("m1"), user("u2")], ["u2"], []),
        ([user("u1"), answer("m1")], [], []),
        ([user("u1"), answer("m1", "c", "d"), result("t1", "c"), result("t2", "d")], [], ["c", "d"]),
        ([user("u1"), answer("m1", "c"), result("t1", "c"), user("u2")], ["u2"], ["c"]),
        # Results with our ids came from here.
        ([user("u1"), answer("m1", "c", "d"), result("result-c", "c"), result("t2", "d")], [], ["d"]),
        # The text of an answer may go on after its calls.
        ([user("u1"), answer("m1", "c"), result("t1", "c"), answer("m1~")], [], ["c"]),
        ([user("u1"), answer("m1", "c"), result("t1", "c"), answer("m2"), user("u2")], ["u2"], []),
        # The page has put its result between the two messages of an answer.
        ([user("u1"), answer("m1", "c"), result("t1", "c"), {**answer("m2", "d"), "content": ""}], [], ["c"]),
        ([answer("m1", "c"), result("t1", "c"), {**answer("m2", "d"), "content": ""}, answer("m1~")], [], ["c"]),
        ([answer("m1", "c"), result("t1", "c"), user("u2"), {**answer("m2", "d"), "content": ""}], [], []),
        # A page that was loaded again has nothing but the result.
        ([result("t1", "c")], [], ["c"]),
        ([{"id": "s", "role": "system", "content": "Be brief."}, user("u1")], ["u1"], []),
        ([], [], []),
    ],
)
def test_what_is_new(messages: list[dict[str, Any]], said: list[str], results: list[str]) -> None:
    body = read(*messages)
    assert [one.otid for one in body.said()] == said
    assert [one.call for one in body.answers()] == results


def test_a_failed_result_has_its_error_as_text() -> None:
    body = read(answer("m1", "c"), result("t1", "c", content="", error="No paint."))
    [failed] = body.answers()
    assert (failed.result, failed.is_error) == ("No paint.", True)


def test_what_a_client_may_leave_out_or_send_as_null() -> None:
    empty = dict.fromkeys(("messages", "tools", "context", "resume", "runId", "state", "forwardedProps"))
    body = RunAgentInput.model_validate({"threadId": "desk", "later": 1, **empty})
    assert (body.said(), body.answers(), body.client_tools(), body.instructions(), body.if_busy()) == (
        [],
        [],
        [],
        None,
        None,
    )
    assert not body.is_current


@pytest.mark.parametrize(
    ("payload", "flaw"),
    [
        (None, "approved"),
        ({}, "approved"),
        ({"approved": 1}, "approved"),
        ({"approved": True, "editedArgs": [1]}, "editedArgs"),
        ({"approved": False, "reason": 1}, "reason"),
    ],
)
def test_an_answer_of_another_form_is_refused_by_name(payload: Any, flaw: str) -> None:
    resume = [{"interruptId": "approval-1", "status": "resolved", "payload": payload}]
    with pytest.raises(PageRefusal, match=f"{flaw}.*approval-1"):
        read(resume=resume).answers()


@pytest.mark.parametrize(
    ("version", "is_current"),
    [("1.0", True), ("1.7", True), ("2.0", True), ("0.0.59", False), (None, False), ("x", False)],
)
def test_who_knows_the_first_version(version: str | None, is_current: bool) -> None:
    assert speaks_current(version) is is_current


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "text", "text": "See:"}, TextContent("See:")),
        ({"type": "image", "source": {"type": "url", "value": "https://a.b/c.png"}}, ImageContent(url="https://a.b/c.png")),
        (
            {"type": "image", "source": {"type": "data", "value": "aGk=", "mimeType": "image/png"}},
            ImageContent(data="aGk=", media_type="image/png"),
        ),
        (
            {"type": "image", "source": {"type": "url", "value": "https://a.b/c"}, "metadata": {"filename": "cat.png"}},
            ImageContent(url="https://a.b/c", name="cat.png"),
        ),
        (
            {"type": "document", "source": PDF_SOURCE, "metadata": {"filename": "a.pdf"}},
            TextContent("[file a.pdf, 8 bytes]", AttachedFile("a.pdf", "application/pdf", PDF)),
        ),
        (
            {"type": "document", "source": {"type": "data", "value": "aGk=", "mimeType": "text/plain"}},
            TextContent("[file file]\nhi", AttachedFile("file", "text/plain")),
        ),
        ({"type": "binary", "mimeType": "image/png", "data": "aGk="}, HI),
        ({"type": "binary", "mimeType": "image/png", "url": "https://a.b/c"}, ImageContent(url="https://a.b/c")),
        (
            {"type": "binary", "mimeType": "text/plain", "data": "aGk=", "filename": "a.txt"},
            TextContent("[file a.txt]\nhi", AttachedFile("a.txt", "text/plain")),
        ),
    ],
)  # fmt: skip
def test_a_part_of_a_message(part: dict[str, Any], expected: Any) -> None:
    assert read_content([part], "messages[0].content") == [expected]
    [shown] = wire_content([expected])
    assert isinstance(shown, dict) and shown["type"] in ("text", "image", "document")
    assert shown["type"] != "image" or shown.get("metadata") == part.get("metadata")


@pytest.mark.parametrize(
    "part",
    [
        {},
        {"type": "audio", "source": {"type": "data", "value": "aGk=", "mimeType": "audio/mp3"}},
        {"type": "image", "source": {"type": "file", "value": "f1"}},
        {"type": "image", "source": {"type": "url", "value": "file:///etc/passwd"}},
        {"type": "image", "source": {"type": "data", "value": "aGk="}},
        {"type": "document", "source": {"type": "url", "value": "https://a.b/c.pdf"}},
        {"type": "document", "source": {"type": "data", "value": "!", "mimeType": "text/plain"}},
        {"type": "document", "source": {"type": "data", "value": "aGk=", "mimeType": "application/zip"}},
        {"type": "binary", "mimeType": "image/png", "id": "f1"},
    ],
)
def test_a_part_that_is_not_understood_is_named(part: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[0\]\.content\[0\]"):
        read_content([part], "messages[0].content")


def test_a_snapshot_has_the_newest_messages_that_have_room() -> None:
    long = [{"id": str(number), "role": "user", "content": "x" * (MOST_BYTES // 3)} for number in range(5)]
    assert [bytes(one)[7:8] for one in newest_within(long)] == [b"3", b"4"]
