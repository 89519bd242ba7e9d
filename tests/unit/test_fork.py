"""What is copied when a history is forked."""

import pytest

from shared.domain.errors import NotFound
from shared.domain.ids import IdMaker, MessageId
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    Decision,
    Message,
    MessageBody,
    SystemMessage,
    ToolCall,
    ToolReturns,
    UserMessage,
)
from shared.domain.threads import copies_of
from tests.kit.model_server.model_calls import history, returned

ASKING = AssistantMessage(tool_calls=[ToolCall("c1", "add", "{}", needs_approval=True)])
RESULT = ToolReturns([returned("c1", "2")])


def copied(messages: list[Message], up_to: str | None = None) -> list[MessageBody]:
    copies = copies_of(messages, IdMaker(), None if up_to is None else MessageId(up_to))
    return [message.body for turn in copies.values() for message in turn]


def test_all_but_the_system_message_is_copied_with_new_ids() -> None:
    messages = history(SystemMessage("Be kind."), UserMessage("a"), ASKING, RESULT, AssistantMessage(text="2"))
    assert copied(messages) == [message.body for message in messages[1:]]
    ids = {message.id for turn in copies_of(messages, IdMaker()).values() for message in turn}
    assert len(ids) == 4
    assert not ids & {message.id for message in messages}


@pytest.mark.parametrize("after", [[], [ApprovalResponse([Decision("c1", approve=True)])]])
def test_calls_without_results_are_not_copied(after: list[MessageBody]) -> None:
    messages = history(UserMessage("a"), AssistantMessage(text="b"), UserMessage("add"), ASKING, *after)
    assert copied(messages) == [UserMessage("a"), AssistantMessage(text="b"), UserMessage("add")]


def test_a_fork_can_end_at_a_message() -> None:
    messages = history(UserMessage("a"), ASKING, RESULT, AssistantMessage(text="b"))
    assert copied(messages, "message-2") == [UserMessage("a"), ASKING, RESULT]
    assert copied(messages, "message-1") == [UserMessage("a")]
    with pytest.raises(NotFound, match="message-9"):
        copied(messages, "message-9")


def test_the_second_id_of_an_answer_is_new_as_well() -> None:
    body = AssistantMessage(text="b", sibling_id=MessageId("message-77"), sibling_holds="calls")
    messages = history(UserMessage("a"), body)
    [_, copy] = copied(messages, "message-77")
    assert isinstance(copy, AssistantMessage)
    assert copy.sibling_id not in (None, "message-77")
