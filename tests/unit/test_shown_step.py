"""What readers have been shown of a step: when its first piece came."""

import pytest

from shared.domain.events import (
    Event,
    InputDelivered,
    LogContinued,
    ReasoningChunk,
    StepRestarted,
    TextChunk,
    ToolCallChunk,
    ToolCalls,
    ToolsReturned,
)
from shared.domain.ids import MessageId, Seq, StepId
from shared.domain.settling import ShownStep

STEP, MESSAGE = StepId("step-1"), MessageId("message-1")
TEXT = TextChunk(7, STEP, MESSAGE, "one")


@pytest.mark.parametrize(
    "piece",
    [
        TEXT,
        ReasoningChunk(7, STEP, MESSAGE, "hm"),
        ToolCallChunk(7, STEP, MESSAGE, "call-1", name="look"),
        ToolCalls(7, STEP, MESSAGE, []),
    ],
    ids=lambda piece: type(piece).__name__,
)
@pytest.mark.parametrize(
    "taken",
    [StepRestarted(at=9, attempt=2, void_message_ids=[MESSAGE], follows=Seq(3)), LogContinued(9, Seq(3), 2)],
    ids=["restarted", "continued"],
)
def test_the_first_piece_stays_the_first_when_another_worker_goes_on(piece: Event, taken: Event) -> None:
    """Also when it is void since: somebody has seen it."""
    shown = ShownStep([InputDelivered(3, MESSAGE, "hi"), piece, TextChunk(8, STEP, MESSAGE, "two")])
    assert shown.first_piece_at == 7
    for event in (taken, TextChunk(14_000, STEP, MessageId("message-2"), "all of it")):
        shown.take(event)
    assert shown.first_piece_at == 7


def test_what_no_model_has_said_is_no_piece_of_an_answer() -> None:
    asked_by_a_client = ToolCalls(4, None, MESSAGE, [])
    shown = ShownStep([InputDelivered(3, MESSAGE, "hi"), asked_by_a_client, ToolsReturned(5, None, MESSAGE, [])])
    assert shown.first_piece_at == 0
