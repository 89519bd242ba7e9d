"""The conversation is always valid: whatever is done to it, in whatever order, the next message is answered.

Each example is one interleaving of submissions, tool turns, approvals, decisions, cancels in every mode, errors and
lost workers. HOLDFAST_TEST_INTERLEAVINGS says how many are tried; hypothesis prints the steps of one that fails.
"""

import asyncio
import os
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from shared.domain.errors import CancelMode
from shared.redis.embedded import connect_embedded
from tests.kit.model_server import ModelServer
from tests.kit.product import Product, running_product
from tests.kit.product.conversation_driver import TOOLS, TURNS, ConversationDriver
from tests.kit.services.databases import patient_database
from tests.kit.tiers import halved

INTERLEAVINGS = int(os.environ.get("HOLDFAST_TEST_INTERLEAVINGS") or (200 if os.environ.get("CI") == "true" else 60))

choices = st.lists(st.sampled_from(["approve", "deny", "tool"]), min_size=1, max_size=3)


class Interleaving(RuleBasedStateMachine):
    """One conversation, pushed about."""

    runner: asyncio.Runner
    product: Product
    tool_ids: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.driver = self._run(ConversationDriver.begin(self.product, self.tool_ids))

    @rule(turns=st.sampled_from(sorted(TURNS)), policy=st.sampled_from(["enqueue", "interrupt", "rollback"]))
    def submit(self, turns: str, policy: Any) -> None:
        self._run(self.driver.submit(turns, policy))

    @rule(mode=st.sampled_from(list(CancelMode)), wait_s=st.sampled_from([0.0, 5.0]))
    def cancel(self, mode: CancelMode, wait_s: float) -> None:
        self._run(self.driver.cancel(mode, wait_s))

    @rule(choices=choices)
    def decide(self, choices: Any) -> None:
        self._run(self.driver.decide(choices))

    @rule()
    def inject(self) -> None:
        self._run(self.driver.inject())

    @rule()
    def lose_worker(self) -> None:
        self._run(self.driver.lose_worker())

    @rule()
    def come_to_rest(self) -> None:
        self._run(self.driver.come_to_rest())

    def teardown(self) -> None:
        self._run(self.driver.check())

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)


PARTS = 4
"""The interleavings are tried in so many tests, which can run side by side. `make test` has half of them."""


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("part", halved(PARTS))
def test_every_interleaving_leaves_a_conversation_that_goes_on(sqlite_url: str, part: int) -> None:
    assert part < PARTS
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            product, tool_ids = runner.run(_start(stack, sqlite_url))
            machine = type("Machine", (Interleaving,), {"runner": runner, "product": product, "tool_ids": tool_ids})
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=-(-INTERLEAVINGS // PARTS),
                    stateful_step_count=8,
                    deadline=None,
                    database=None,
                    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
                    print_blob=True,
                ),
            )
        finally:
            runner.run(stack.aclose())


async def _start(stack: AsyncExitStack, url: str) -> tuple[Product, list[str]]:
    models = await stack.enter_async_context(ModelServer())
    database = patient_database(url)
    stack.push_async_callback(database.aclose)
    # Without a sweeper, which would find after half a minute what was left undone.
    given = {"tool_grace": 0.2, "sweep_s": 3600}
    product = await stack.enter_async_context(running_product(database, connect_embedded(), models, settings=given))
    quick = [await product.tool(TOOLS["quick"]), await product.tool(TOOLS["failing"])]
    return product, [*quick, await product.tool(TOOLS["asking"], default_requires_approval=True)]
