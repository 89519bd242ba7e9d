"""`make test-affected` finds what a change can break."""

import pytest

from tests.kit.project.affected import affected_tests
from tests.kit.project.source_tree import Source

TREE = [
    Source("shared/store.py", ""),
    Source("shared/other.py", ""),
    Source("worker/run/loop.py", "from shared.store import rows"),
    Source("cli/table.py", 'MODULES = ("worker.run.loop",)'),
    Source("tests/kit/product.py", "from worker.run import loop"),
    Source("tests/story/conftest.py", "from tests.kit.product import Product"),
    Source("tests/story/test_cancel.py", ""),
    Source("tests/unit/test_store.py", "from shared.store import rows"),
    Source("tests/unit/test_other.py", "import shared.other"),
    Source("tests/e2e/test_commands.py", "from cli.table import MODULES"),
    Source("tests/e2e/test_documentation.py", ""),
    Source("tests/browser/test_page.py", ""),
]


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        (["shared/other.py"], {"tests/unit/test_other.py"}),
        (["worker/run/loop.py"], {"tests/story/test_cancel.py", "tests/e2e/test_commands.py"}),
        (["shared/store.py"], {"tests/story/test_cancel.py", "tests/e2e/test_commands.py", "tests/unit/test_store.py"}),
        (["tests/unit/test_other.py"], {"tests/unit/test_other.py"}),
        (["worker/run/claim.lua"], {"tests/story/test_cancel.py", "tests/e2e/test_commands.py"}),
        (["docs/api.md"], {"tests/e2e/test_documentation.py"}),
        (["api/console/web/page.js"], {"tests/browser/test_page.py"}),
        ([], set[str]()),
    ],
)
def test_the_tests_that_a_change_can_break(changed: list[str], tests: set[str]) -> None:
    assert set(affected_tests(changed, TREE)) == tests


def test_a_change_of_a_dependency_can_break_every_test() -> None:
    assert len(affected_tests(["constraints.txt"], TREE)) == 6
