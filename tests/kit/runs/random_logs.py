"""Random logs of runs with item events, for tests of the dialects' folds."""

from hypothesis import strategies as st

from shared.domain import events
from shared.domain.ids import MessageId, Seq, StepId
from shared.domain.messages import ToolReturn

AT = 1_700_000_000_000
STEP, MESSAGE = StepId("step-1"), MessageId("message-aa")
RUNNING = events.StatusChanged(AT, "running")


def text(said: str, message: MessageId = MESSAGE, step: StepId = STEP) -> events.TextChunk:
    return events.TextChunk(AT, step, message, said)


def ended(reason: str = "end_turn", *before: events.Event) -> list[events.Event]:
    return [events.Stopped(AT, reason), events.UsageReported(AT, prompt_tokens=3), *before, events.Ended(AT)]


@st.composite
def logs(draw: st.DrawFn) -> list[events.Event]:
    """A log that keeps the promises of `shared/domain/events.py`."""
    log: list[events.Event] = [RUNNING] if draw(st.booleans()) else []
    steps = draw(st.integers(0, 4))
    for number in range(steps):
        step, message = StepId(f"step-{number}"), MessageId(f"message-{number:02}")
        log += _answer(draw, step, message, len(log) + 2, is_last=number == steps - 1)
    reason = draw(st.sampled_from(["end_turn", "cancelled", "max_steps", "requires_approval", "llm_api_error"]))
    failed = [events.Failed(AT, "llm_error", "It broke.")] if reason == "llm_api_error" else []
    return [*log, *ended(reason, *failed)]


def _answer(draw: st.DrawFn, step: StepId, message: MessageId, seq: int, *, is_last: bool) -> list[events.Event]:
    log: list[events.Event] = []
    pieces = draw(st.lists(st.sampled_from(["text", "reasoning", "data", "call"]), max_size=6))
    calls: dict[str, events.AnsweredBy] = {}
    for piece in pieces:
        match piece:
            case "text":
                log.append(text(draw(st.text(max_size=5)), message, step))
            case "reasoning":
                log.append(events.ReasoningChunk(AT, step, message, draw(st.text(max_size=5))))
            case "data":
                log.append(events.DataPart(AT, step, message, "progress", {"done": draw(st.integers())}))
            case _:
                call_id = draw(st.sampled_from(["c", "d"]))
                by = calls.setdefault(call_id, draw(st.sampled_from(["worker", "client", "person"])))
                log.append(events.ToolCallChunk(AT, step, message, call_id, "look", "{", answered_by=by))
    # Calls that wait for a decision end the run, and so does an answer that is cut off.
    may_be_whole = is_last or set(calls.values()) <= {"worker"}
    what = draw(st.sampled_from(["restarted", *(["whole"] * 3 if may_be_whole else []), *(["cut"] if is_last else [])]))
    if what == "restarted":
        gone = [message] if log else []
        return [*log, events.StepRestarted(at=AT, attempt=2, follows=Seq(seq + len(log) - 1), void_message_ids=gone)]
    if what == "cut":
        return log
    whole = [events.AnsweredCall(call_id, "look", None, by) for call_id, by in calls.items()]
    log.append(events.Answered(AT, step, message, "tool_calls" if whole else "stop", whole))
    ours = [one.call_id for one in whole if one.answered_by == "worker"]
    if ours:
        log += [events.ToolEnded(AT, step, one, "success", 2, "42") for one in ours if draw(st.booleans())]
        results = [ToolReturn(one, "look", "success", "42") for one in ours]
        log.append(events.ToolsReturned(AT, step, MessageId(f"{message}-r"), results))
    return log
