"""Rule 8: one store method is one transaction. `shared/sql/engine.py` begins and commits; the stores write in its
blocks, so that nobody dispatches or publishes what is not yet durable.
"""

import ast
import re
from collections.abc import Iterator

from tests.kit.project.source_tree import Source, expect_none, product_sources

ENGINE = "shared/sql/engine.py"
MIGRATIONS = "shared/sql/migrations/"
STORES = ("shared/sql/",)
TRANSACTION_CALLS = frozenset({"commit", "begin", "begin_nested", "rollback"})
TRANSACTION_WORDS = re.compile(r"\s*(BEGIN|COMMIT|ROLLBACK|SAVEPOINT)\b(\s+\w+)*\s*;?\s*")


def own_transactions(source: Source) -> Iterator[str]:
    if source.is_in((ENGINE, MIGRATIONS)):
        return
    forbidden = TRANSACTION_CALLS if source.is_in(STORES) else {"commit"}
    for call in source.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr in forbidden:
            yield source.at(call, f"calls .{call.func.attr}(); transactions are the engine's ({ENGINE})")
    for node in source.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and TRANSACTION_WORDS.fullmatch(node.value):
            yield source.at(node, f"says {node.value!r}; transactions are the engine's ({ENGINE})")


def test_only_the_engine_commits() -> None:
    """No store and no caller of one commits, begins or rolls back."""
    expect_none(finding for source in product_sources() for finding in own_transactions(source))
