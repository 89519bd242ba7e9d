"""Tokens for streams: one run, one project, one time, and the keys that a server has now."""

from datetime import UTC, datetime, timedelta

import pytest
from starlette.exceptions import HTTPException

from api.auth import DEFAULT_PROJECT, ApiKeys
from api.stream_tokens import StreamTokens, end_of_token
from shared.domain.ids import ProjectId, RunId

NOW = datetime(2026, 1, 2, 3, 4, 5, 600_000, tzinfo=UTC)
RUN = RunId("run-1")
TWO = ProjectId("two")


def tokens(keys: str = "one=k1,two=k2") -> StreamTokens:
    return StreamTokens(ApiKeys.parse(keys))


def test_a_token_is_known_to_every_process_with_the_same_keys() -> None:
    token = tokens().make(TWO, RUN, end_of_token(NOW, 60))
    assert tokens("two=k2,one=k1").project_of(token, RUN, NOW) == TWO


def test_a_token_ends_by_its_time() -> None:
    ours = tokens()
    token = ours.make(TWO, RUN, end_of_token(NOW, 60))
    assert ours.project_of(token, RUN, NOW + timedelta(seconds=59)) == TWO
    with pytest.raises(HTTPException, match="expired"):
        ours.project_of(token, RUN, NOW + timedelta(seconds=60))


def test_a_token_is_for_one_run_and_for_the_keys_that_made_it() -> None:
    token = tokens().make(TWO, RUN, end_of_token(NOW, 60))
    with pytest.raises(HTTPException, match="not valid for this run"):
        tokens().project_of(token, RunId("run-2"), NOW)
    with pytest.raises(HTTPException, match="not valid for this run"):
        tokens("one=k1,two=k3").project_of(token, RUN, NOW)


def test_a_server_without_keys_has_one_project() -> None:
    ours = tokens("")
    assert ours.project_of(ours.make(DEFAULT_PROJECT, RUN, end_of_token(NOW, 1)), RUN, NOW) == DEFAULT_PROJECT
