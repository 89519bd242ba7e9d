"""Pays for the calls of models: what a call may use is set aside before it is made, and counted when it has ended.

A call's prompt is estimated, as for the window; its answer may have what was chosen for it, or `UNCHOSEN_ANSWER`. So
a share that runs have in common is exceeded by no more than what answers are longer than that. A run's own budget is
not shared with anybody, and is compared with the prompt alone: the answer is what the run is there for.
"""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from shared.concurrency import Clock
from shared.domain.errors import BudgetExceeded, ModelError, ModelErrorType
from shared.domain.limits import UNCHOSEN_ANSWER, Amount, Budgets, amount_of
from shared.domain.runs import Run, Usage
from shared.sql.runs.budgets import BudgetStore
from worker.models.provider import ModelCall

ONE_TOKEN = Amount(tokens=1)
"""What every call has at least."""


@dataclass(frozen=True, kw_only=True)
class BudgetService:
    """The service that pays for the calls of a worker's runs."""

    budgets: Budgets
    price_of: Callable[[str, Usage], int | None]
    """The price of what a call of this model has used, in thousand-millionths of a dollar; None when nobody knows."""
    store: BudgetStore
    clock: Clock

    def priced(self, handle: str, usage: Usage) -> Usage:
        """The usage of one call, with its price where a budget asks for prices."""
        if not self.budgets.count_money:
            return usage
        return replace(usage, cost_nano_usd=self.price_of(handle, usage) or 0)

    def check(self, used: Usage) -> None:
        """To be called between calls. Raises `BudgetExceeded` when the run has used up its own budget."""
        self._check_run(amount_of(used).plus(ONE_TOKEN))

    async def reserve(self, run: Run, used: Usage, call: ModelCall) -> None:
        """Sets aside what the call may use. Raises `BudgetExceeded` when it would go over, `StaleFence`, `ModelError`
        when a budget is in money and nobody knows the model's price."""
        budgets = self.budgets
        accounts = budgets.accounts_of(run)
        if not budgets.run.is_set and not accounts:
            return
        prompt = call.estimated_tokens()
        asked = self._amount(call.handle, Usage(prompt_tokens=prompt))
        self._check_run(amount_of(used).plus(asked))
        if accounts:
            longest = call.options.max_output_tokens or UNCHOSEN_ANSWER
            amount = self._amount(call.handle, Usage(prompt_tokens=prompt, completion_tokens=longest))
            await self.store.reserve(run, accounts, amount, self.clock.now(), prompt=asked)

    def _amount(self, handle: str, usage: Usage) -> Amount:
        price = self.price_of(handle, usage) if self.budgets.count_money else 0
        if price is None:
            raise ModelError(
                ModelErrorType.BAD_REQUEST,
                f"There is a budget in money, and nobody knows what {handle!r} costs: write its price into the file "
                "that HOLDFAST_PRICES_FILE names.",
            )
        return Amount(amount_of(usage).tokens, price)

    def _check_run(self, amount: Amount) -> None:
        over = self.budgets.run.exceeded_by(amount)
        if over is not None:
            raise BudgetExceeded(
                f"the next call would bring the run to {over}, which HOLDFAST_RUN_TOKEN_BUDGET and "
                "HOLDFAST_RUN_COST_BUDGET allow one run"
            )
