"""Where a body's call stands in the journal: by branch, kind, name, ordinal and content."""

import msgspec
import pytest

from shared.domain.journal import ANY, BodyChanged, JournalEntry, Replay, begun_anew
from tests.kit.runs.definitions import NOW


def recorded(replay: Replay) -> list[JournalEntry]:
    """The entries of a finished execution, as the next one finds them."""
    return [msgspec.structs.replace(one, state="done", result=b"1") for one in replay.entries.values()]


def begin(replay: Replay, name: str, content: str = "a", branch: str = "") -> tuple[str, bool]:
    entry, is_known = replay.begin("step", name, branch, content, NOW)
    return entry.slot, is_known


def executed(*calls: tuple[str, str, str]) -> Replay:
    """A replay that knows what an execution with these names, contents and branches has recorded."""
    first = Replay("run-1", [])
    for name, content, branch in calls:
        begin(first, name, content, branch)
    return Replay("run-1", recorded(first))


def test_the_same_calls_are_known_in_their_order() -> None:
    replay = executed(("plan", "a", ""), ("plan", "a", ""), ("use", "b", ""))
    assert begin(replay, "plan") == ("step:plan#0", True)
    assert begin(replay, "plan") == ("step:plan#1", True)
    assert begin(replay, "use", "b") == ("step:use#0", True)
    assert begin(replay, "use", "b") == ("step:use#1", False), "what comes behind the journal is new"


def test_branches_count_by_themselves() -> None:
    replay = executed(("look", "a", "1."), ("look", "b", "2."))
    assert begin(replay, "look", "b", "2.") == ("2.step:look#0", True), "in any order"
    assert begin(replay, "look", "a", "1.") == ("1.step:look#0", True)


def test_a_branch_whose_neighbour_is_recorded_is_new() -> None:
    """Two tasks side by side, of which only the second one had ended."""
    replay = executed(("look", "b", "2."))
    assert begin(replay, "look", "a", "1.") == ("1.step:look#0", False)
    assert begin(replay, "look", "b", "2.") == ("2.step:look#0", True)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("plan_b", "a", "recorded as 'plan' (step, 1 of 2), the code now asks for 'plan_b'"),
        ("plan", "other", "recorded as 'plan' (step, 1 of 2), the code now asks for it with other arguments"),
    ],
)
def test_another_call_is_named_beside_the_recorded_one(name: str, content: str, said: str) -> None:
    replay = executed(("plan", "a", ""), ("use", "b", ""))
    with pytest.raises(BodyChanged) as changed:
        begin(replay, name, content)
    assert str(changed.value) == said


def test_a_call_of_another_kind_is_another_call() -> None:
    replay = executed(("plan", "a", ""))
    with pytest.raises(BodyChanged):
        replay.begin("tool", "plan", "", "a", NOW)


def test_a_call_that_the_code_makes_no_more_is_passed_over() -> None:
    replay = executed(("plan", "a", ""), ("use", "b", ""))
    assert begin(replay, "use", "b") == ("step:use#0", True)


def test_a_key_belongs_to_one_call_for_ever() -> None:
    first, again = Replay("run-1", []), Replay("run-2", [])
    keys = {first.begin("tool", "send", "", str(number), NOW)[0].idempotency_key for number in range(3)}
    assert len(keys) == 3
    assert again.begin("tool", "send", "", "0", NOW)[0].idempotency_key not in keys
    known, _ = Replay("run-1", recorded(first)).begin("tool", "send", "", "0", NOW)
    assert known.idempotency_key in keys


def test_numbers_go_on_behind_the_recorded_ones() -> None:
    replay = executed(("plan", "a", ""))
    begin(replay, "plan")
    assert replay.begin("step", "use", "", "b", NOW)[0].number == 2


def test_a_turn_that_begins_anew_knows_only_its_tools() -> None:
    first = Replay("run-1", [])
    first.begin("step", "plan", "", "a", NOW)
    first.begin("tool", "send", "", "a", NOW)
    replay = Replay("run-1", begun_anew(recorded(first)))
    assert begin(replay, "other") == ("step:other#0", False), "no other code is a change now"
    entry, is_known = replay.begin("tool", "send", "", "whatever", NOW)
    assert (entry.state, entry.hash, is_known) == ("unknown", ANY, True)
