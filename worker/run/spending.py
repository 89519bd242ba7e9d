"""Charges model calls to budgets: reserves what a call may use before the call, and counts its usage afterwards.

The prompt is estimated, as for the window; the answer counts with its chosen maximum, or `UNCHOSEN_ANSWER`. So runs
exceed a shared budget only by the part of their answers that is longer than that. A run's own budget is compared with
the prompt alone: no other run shares it, and the run exists for its answer.
"""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from shared.concurrency import Clock
from shared.domain.errors import BudgetExceeded, ModelError, ModelErrorType
from shared.domain.limits import ONE_TOKEN, UNCHOSEN_ANSWER, Account, Amount, Budgets, amount_of
from shared.domain.runs import Run, Usage
from shared.sql.runs.budgets import BudgetStore
from worker.models.provider import ModelCall


@dataclass(frozen=True, kw_only=True)
class BudgetService:
    """Charges the model calls of a worker's runs."""

    budgets: Budgets
    price_of: Callable[[str, Usage], int | None]
    """Returns the price of a call's usage of this model, in thousand-millionths of a dollar; None if unknown."""
    store: BudgetStore
    clock: Clock

    def priced(self, handle: str, usage: Usage) -> Usage:
        """Returns the usage of one call, with its price if a budget needs prices."""
        if not self.budgets.count_money:
            return usage
        return replace(usage, cost_nano_usd=self.price_of(handle, usage) or 0)

    def check(self, used: Usage) -> None:
        """Checks the run's own budget between calls. Raises `BudgetExceeded` if it is used up."""
        self._check_run(amount_of(used).plus(ONE_TOKEN))

    def accounts_of(self, run: Run) -> list[Account]:
        """Returns the accounts that pay for the run's calls."""
        return self.budgets.accounts_of(run)

    async def check_accounts(self, run: Run) -> None:
        """Checks the accounts before a call that the body makes by itself. Raises `BudgetExceeded`."""
        if accounts := self.accounts_of(run):
            await self.store.refuse_if_used_up(accounts, self.clock.now())

    async def reserve(self, run: Run, used: Usage, call: ModelCall) -> None:
        """Reserves what the call may use. Raises `BudgetExceeded` if that exceeds a budget, `StaleFence`, and
        `ModelError` if a budget is in money and the model's price is unknown."""
        budgets = self.budgets
        accounts = budgets.accounts_of(run)
        if not budgets.run.is_set and not accounts:
            return
        prompt = call.estimated_tokens()
        asked = self._amount(call.handle, Usage(prompt_tokens=prompt))
        if budgets.run.is_set:
            self._check_run(amount_of(used).plus(await self.store.used_beside(run)).plus(asked))
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
                f"the next call would bring the run, together with the other runs of its tree, to {over}, which "
                "HOLDFAST_RUN_TOKEN_BUDGET and HOLDFAST_RUN_COST_BUDGET allow one run"
            )
