"""Decides which command runs a test, and prints a line for each failure as it happens.

`make lint` runs the tests that read the project's files (`lint`), `make test` all others that are not marked
`exhaustive`, and `make test-all` every test. CI runs a tenth of those marked `exhaustive` (`exhaustive_parts`).
"""

import os
import socket
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.kit.cases import mark_further_cases

FOUND = "HOLDFAST_TEST_SERVICES_FOUND"
SERVICES = {
    "HOLDFAST_TEST_REDIS_URL": ("redis://127.0.0.1:6379/9", 6379),
    "HOLDFAST_TEST_DATABASE_URL": ("postgresql://127.0.0.1/test", 5432),
}
"""The settings of the two servers, with their usual address and port."""

ON_BOTH = frozenset({"test_submit.py", "test_streams.py", "test_wire.py", "test_approvals.py", "test_recall.py"})
"""Stories that `make test` runs on both set-ups: one for each behaviour in which the set-ups could differ."""

MIXED = frozenset({("sqlite", "server"), ("postgres", "embedded")})
"""Pairs of a database and a Redis of different set-ups. Tests that need only one of the two run on both kinds; tests
that need both run in `make test` as the set-ups combine them."""

API_OF_THE_KIT = frozenset({"api_app", "api_client"})
"""A test that imports one of these calls the whole API."""


def halved(count: int) -> list[Any]:
    """The numbers below `count`, as parameters: only `make test-all` runs the second half."""
    return [pytest.param(n, marks=[] if 2 * n < count else pytest.mark.exhaustive) for n in range(count)]


def pytest_configure() -> None:
    """Looks for the services, on which the marks of many tests depend."""
    os.environ[FOUND] = "yes" if all(_answers(*service) for service in SERVICES.items()) else "no"


def _answers(setting: str, usual: tuple[str, int]) -> bool:
    url, port = usual
    address = urlsplit(os.environ.get(setting) or url)
    if address.hostname is None:  # a Unix socket, which is named where there is one
        return True
    try:
        with socket.create_connection((address.hostname, address.port or port), timeout=60):
            return True
    except OSError:
        return False


IN_ALL_ALONE = pytest.StashKey[dict[str, bool]]()
"""For each collected test function (`tests/unit/test_words.py::test_a_word`), whether all its cases are marked
`exhaustive`, so that `make test` runs none of them."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the lints, and the stories that run twice; tests that `-m` leaves out are still among the items."""
    for item in items:
        if item.path.parent.name == "architecture":
            item.add_marker(pytest.mark.lint)
        if os.environ[FOUND] == "yes" and isinstance(item, pytest.Function):
            params = item.callspec.params if hasattr(item, "callspec") else {}
            if (params.get("database_url"), params.get("redis_service")) in MIXED or _is_told_twice(item, params):
                item.add_marker(pytest.mark.exhaustive)
    functions = [item for item in items if isinstance(item, pytest.Function)]
    mark_further_cases(functions)
    config.stash[IN_ALL_ALONE] = _in_all_alone(functions)


def _in_all_alone(items: Iterable[pytest.Function]) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for item in items:
        name = f"{item.nodeid.split('::')[0]}::{item.originalname}"
        found[name] = found.get(name, True) and item.get_closest_marker("exhaustive") is not None
    return found


def _is_told_twice(item: pytest.Function, params: Mapping[str, object]) -> bool:
    """A story on embedded parts also runs on the services, and a request to the API over SQLite is also sent over
    Postgres: with the services there, `make test` runs the latter. The stores' tests always run on both."""
    if item.path.parent.name == "contract":
        asks_the_api = not API_OF_THE_KIT.isdisjoint(vars(item.module))
        return asks_the_api and params.get("database_url") == "sqlite"
    if item.path.parent.name != "story" or item.path.name in ON_BOTH:
        return False
    return params.get("backends") == "embedded" or params.get("database") == "sqlite_url"


class FailureLines:
    """Names each test at once when it fails, so that a stopped suite has reported its findings."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """pytest calls this in the session's process, also for tests that ran in other processes."""
        outcome = str(report.outcome)  # pytest's own are three; the plugin that tries again has a fourth
        if outcome in ("passed", "skipped"):
            return
        # The dots of other tests precede it without the end of a line.
        self._terminal.write_line(f"\n{outcome.upper()} {report.nodeid} ({report.when})", red=True)
        if outcome == "rerun":  # the summary has its name alone, and it may never fail again
            self._terminal.write_line(report.longreprtext)
        self._terminal.flush()


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Behind the plugin that makes the terminal's reporter."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        session.config.pluginmanager.register(FailureLines(terminal), "failure-lines")
