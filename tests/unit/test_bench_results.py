"""What the bench computes of its figures: medians, ratios to the floor, and which differences are noise."""

from pathlib import Path

import pytest

from bench.compare import Verdict, changes, comparison, regressions
from bench.figures import EMBEDDED, RELAY, SERVICES, Figure, Result, median_and_slowest, read_result, write_result
from bench.pictures import pictures
from bench.profiling import most_often
from bench.report import BEGIN, END, result_path, table, write_document

FIRST_TOKEN, SHORT_RUNS = "submit → first token, p50", "short runs/s"


def result(column: str = SERVICES, *figures: Figure) -> Result:
    """One with these figures, a round for each figure of the same name."""
    made = Result("2 cores, Abacus (R)", "2026-11-23T18:00:00+00:00", "abc123", {})
    for figure in figures:
        made.add(column, [figure])
    return made


def rounds(name: str, unit: str, *values: float) -> Result:
    return result(SERVICES, *(Figure(name, value, unit) for value in values))


def verdict(old: Result, new: Result) -> Verdict:
    (change,) = changes(old, new)
    return change.verdict


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ((13.0, 14.0, 15.0), Verdict.NOISE),
        ((14.9, 15.0, 15.1), Verdict.WORSE),
        ((4.9, 5.0, 5.1), Verdict.BETTER),
        ((5.0, 7.0, 9.0), Verdict.NOISE),
        ((50.0,), Verdict.UNKNOWN),
    ],
)
def test_a_figure_has_changed_when_it_differs_by_more_than_both_spreads(
    new: tuple[float, ...], expected: Verdict
) -> None:
    old = rounds(FIRST_TOKEN, "ms", 8.0, 10.0, 11.0)
    assert verdict(old, rounds(FIRST_TOKEN, "ms", *new)) is expected


def test_more_runs_per_second_are_better_and_fewer_are_a_regression() -> None:
    few, many = rounds(SHORT_RUNS, "runs/s", 10, 11), rounds(SHORT_RUNS, "runs/s", 90, 92)
    assert verdict(few, many) is Verdict.BETTER
    assert regressions(few, many) == []
    assert regressions(many, few) == [f"{SERVICES}: {SHORT_RUNS}"]


def test_a_comparison_leaves_out_what_one_side_did_not_measure() -> None:
    old, new = rounds(FIRST_TOKEN, "ms", 0.0, 0.0), rounds(FIRST_TOKEN, "ms", 1.0, 1.0)
    new.add(SERVICES, [Figure("only here", 1, "ms")])
    shown = comparison(old, new)
    assert "only here" not in shown
    assert f"| services | {FIRST_TOKEN} | 0.000 ms | 1.00 ms |  | WORSE |" in shown


def test_ratios_are_how_many_times_worse_than_the_floor() -> None:
    made = rounds(FIRST_TOKEN, "ms", 8.0, 12.0, 10.0)
    made.add(SERVICES, [Figure(SHORT_RUNS, 100, "runs/s")])
    made.add(RELAY, [Figure(FIRST_TOKEN, 2.0, "ms"), Figure(SHORT_RUNS, 400, "runs/s")])
    lines = table(made).splitlines()
    assert lines[2:] == [
        f"| {FIRST_TOKEN} | 2.00 ms | **10.0 ms** (5.0x) | 10 |",
        f"| {SHORT_RUNS} | 400 runs/s | **100 runs/s** (4.0x) | 100 |",
    ]


def test_a_missed_target_is_not_in_bold() -> None:
    assert table(rounds(FIRST_TOKEN, "ms", 10.1)).endswith("| 10.1 ms | 10 |")
    assert table(rounds(SHORT_RUNS, "runs/s", 99)).endswith("| 99.0 runs/s | 100 |")


def test_a_target_of_nothing_is_met_by_nothing() -> None:
    refused = "1,000 submissions at once: refused"
    assert table(rounds(refused, "runs", 0)).endswith("| **0.000 runs** | 0 |")
    assert table(rounds(refused, "runs", 1)).endswith("| 1.00 runs | 0 |")


def test_times_are_shown_as_their_median_and_the_slowest_in_a_hundred() -> None:
    figures = median_and_slowest("wait", [number / 1000 for number in range(101)])
    assert [(figure.name, round(figure.value, 6)) for figure in figures] == [("wait, p50", 50.0), ("wait, p99", 99.0)]


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = rounds(FIRST_TOKEN, "ms", 1.0, 2.0)
    path = tmp_path / "new" / result_path(made, "2 cores, Abacus (R)").name
    write_result(made, path)
    assert path.name == "2026-11-23-2-cores-abacus-r.json"
    assert read_result(path) == made


def test_a_file_that_is_no_result_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"columns": 3}')
    with pytest.raises(ValueError, match="columns"):
        read_result(path)


def test_only_the_part_between_the_marks_of_a_document_is_written(tmp_path: Path) -> None:
    document = tmp_path / "performance.md"
    document.write_text(f"before\n{BEGIN}\nof yesterday\n{END}\nafter\n")
    made = Result("a machine", "2026-11-23T18:00:00+00:00", "abc123", {})
    for runs, delay in (("1 run", 1.0), ("10 runs", 2.0)):
        made.add(EMBEDDED, [Figure(f"token delay, {runs} x 30/s, {share}", delay, "ms") for share in ("p50", "p99")])
    write_document(made, document, Path("result.json"))
    text = document.read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert text.count(table(made)) == 1
    assert "yesterday" not in text
    write_document(made, document, Path("result.json"))
    assert document.read_text() == text
    (name,) = pictures(made)
    assert f"(images/performance-{name}.svg)" in text
    assert (tmp_path / "images" / f"performance-{name}.svg").read_text().startswith("<svg")


def test_a_document_without_marks_is_left_alone(tmp_path: Path) -> None:
    document = tmp_path / "other.md"
    document.write_text("text")
    with pytest.raises(ValueError, match="does not have the lines"):
        write_document(rounds(FIRST_TOKEN, "ms", 1.0), document, Path("result.json"))
    assert document.read_text() == "text"


def test_a_profile_is_told_by_the_innermost_functions() -> None:
    collapsed = "main (a.py:1);send (b.py:2) 6\nmain (a.py:1);send (b.py:9) 3\nmain (a.py:7) 1\n"
    assert most_often(collapsed).splitlines() == [" 90.0%  send (b.py)", " 10.0%  main (a.py)"]
