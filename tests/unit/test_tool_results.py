"""How much the results of one answer's calls may have together."""

from shared.domain.messages import ToolReturn
from worker.bodies.tool_turn import LEAST_OF_A_RESULT, LONGEST_RESULTS, within_room


def result(characters: int, number: int = 0) -> ToolReturn:
    return ToolReturn(f"call_{number}", "look_up", "success", "a" * (characters - 1) + "b")


def test_results_of_one_answer_had_as_many_megabytes_as_there_were_calls() -> None:
    kept: list[ToolReturn] = []
    for number in range(40):
        kept.append(within_room(result(1_000_000, number), kept))
    assert [len(one.text) for one in kept[:16]] == [1_000_000] * 16
    assert all(len(one.text) < 2 * LEAST_OF_A_RESULT for one in kept[16:])
    assert all("999000 characters are left out here" in one.text and one.text.endswith("b") for one in kept[16:])
    assert [one.tool_call_id for one in kept] == [f"call_{number}" for number in range(40)]


def test_a_short_result_is_whole_whatever_came_before() -> None:
    earlier = [result(LONGEST_RESULTS)]
    assert within_room(result(LEAST_OF_A_RESULT), earlier) == result(LEAST_OF_A_RESULT)
