"""What the operator's settings say of projects and keys reaches the rules that hold it."""

import pytest
from pydantic import ValidationError

from shared.domain.ids import ProjectId
from shared.process.settings import Settings


def test_a_project_has_the_limits_of_all_and_its_own() -> None:
    settings = Settings(runs_in_flight=7, project_limits='{"busy": {"runs_in_flight": 30}}')
    assert settings.limits.of(ProjectId("any")).runs_in_flight == 7
    assert settings.limits.of(ProjectId("busy")).runs_in_flight == 30
    assert settings.limits.of(ProjectId("busy")).readers == settings.limits.of(ProjectId("any")).readers
    assert settings.limits.own_in_flight() == {"busy": 30}


@pytest.mark.parametrize("text", ["{", '{"busy": {"runs": 3}}', '{"busy": {"runs_in_flight": "many"}}'])
def test_limits_that_are_none_are_refused_with_how_they_are_written(text: str) -> None:
    with pytest.raises(ValidationError, match="readers"):
        Settings(project_limits=text)


def test_a_key_has_the_tokens_of_a_day_that_the_operator_gives_it() -> None:
    assert Settings(key_daily_tokens=1000).budgets.key.tokens == 1000
    assert Settings().budgets.key.tokens is None
