"""Which tests `make test-all` alone runs, and a line for each failure as it happens."""

import os
import socket
from urllib.parse import urlsplit

import pytest

FOUND = "HOLDFAST_TEST_SERVICES_FOUND"
SERVICES = {
    "HOLDFAST_TEST_REDIS_URL": ("redis://127.0.0.1:6379/9", 6379),
    "HOLDFAST_TEST_DATABASE_URL": ("postgresql://127.0.0.1/test", 5432),
}
"""The settings of the two servers, with their usual address and port."""

ON_BOTH = frozenset({"test_submit.py", "test_streams.py", "test_wire.py", "test_approvals.py", "test_recall.py"})
"""Stories that `make test` shows on both set-ups: one of each thing that a set-up could do differently."""


def pytest_configure() -> None:
    """Looks for the services once: processes beside this one inherit the answer, so all collect the same tests."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        os.environ[FOUND] = "yes" if all(_answers(*service) for service in SERVICES.items()) else "no"


def _answers(setting: str, usual: tuple[str, int]) -> bool:
    url, port = usual
    address = urlsplit(os.environ.get(setting) or url)
    if address.hostname is None:  # a Unix socket, which is named where there is one
        return True
    try:
        with socket.create_connection((address.hostname, address.port or port), timeout=5):
            return True
    except OSError:
        return False


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A story on embedded parts is told again on the services: with these there, `make test` runs the latter."""
    if os.environ[FOUND] == "no":
        return
    for item in items:
        if isinstance(item, pytest.Function) and _is_told_twice(item):
            item.add_marker(pytest.mark.exhaustive)


def _is_told_twice(item: pytest.Function) -> bool:
    callspec = getattr(item, "callspec", None)
    is_story = item.path.parent.name == "story" and item.path.name not in ON_BOTH
    return is_story and callspec is not None and callspec.params.get("backends") == "embedded"


class FailureLines:
    """Names each test that fails when it fails: a suite that is stopped has said what it found."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called in the process that shows the results, also of tests that ran in processes beside it."""
        if report.outcome == "passed" or report.outcome == "skipped":
            return
        self._terminal.ensure_newline()
        self._terminal.write_line(f"{report.outcome.upper()} {report.nodeid} ({report.when})", red=True)
        self._terminal.flush()


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Behind the plugin that makes the terminal's reporter."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and "PYTEST_XDIST_WORKER" not in os.environ:
        session.config.pluginmanager.register(FailureLines(terminal), "failure-lines")
