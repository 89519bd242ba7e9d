"""What clients and models mean by a time."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from shared.domain.errors import InvalidRequest
from shared.domain.searches import moment_of


def test_a_time_without_offset_is_the_agents() -> None:
    expected = datetime(2024, 1, 15, 14, 30, tzinfo=timezone(timedelta(hours=9)))
    assert moment_of("2024-01-15T14:30", "Asia/Tokyo", "start_datetime") == expected
    assert moment_of("2024-01-15T14:30Z", "Asia/Tokyo", "start_datetime") == expected + timedelta(hours=9)


@pytest.mark.parametrize("timezone_name", ["", "Mars/Olympus", "../etc/passwd", "America"])
def test_a_timezone_that_does_not_exist_is_utc(timezone_name: str) -> None:
    assert moment_of("2024-01-15", timezone_name, "start_datetime") == datetime(2024, 1, 15, tzinfo=UTC)


def test_a_date_at_the_end_of_a_span_means_the_whole_day() -> None:
    last = datetime(2024, 1, 15, 23, 59, 59, 999999, tzinfo=UTC)
    assert moment_of("2024-01-15", "UTC", "end_datetime", is_end=True) == last
    assert moment_of("2024-01-15T00:00", "UTC", "end_datetime", is_end=True) == datetime(2024, 1, 15, tzinfo=UTC)


def test_what_is_no_time_is_refused_with_its_field() -> None:
    with pytest.raises(InvalidRequest, match="end_datetime is no moment: 'tomorrow'"):
        moment_of("tomorrow", "UTC", "end_datetime")


@pytest.mark.parametrize(
    ("text", "timezone_name", "expected"),
    [("9999-12-31", "America/New_York", datetime.max), ("0001-01-01", "Asia/Tokyo", datetime.min)],
)
def test_the_last_day_of_the_calendar_failed_the_search_of_an_agent_west_of_utc(
    text: str, timezone_name: str, expected: datetime
) -> None:
    found = moment_of(text, timezone_name, "end_datetime", is_end=expected == datetime.max)
    assert found == expected.replace(tzinfo=UTC)
