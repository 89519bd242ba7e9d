"""How far a run has come, what its model calls have used, and the budgets that limit them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from shared.concurrency import Clock
from shared.domain.errors import BudgetExceeded, ModelError, ModelErrorType
from shared.domain.events import StopReason
from shared.domain.ids import StepId
from shared.domain.limits import ONE_TOKEN, UNCHOSEN_ANSWER, Account, Amount, Budgets, amount_of
from shared.domain.messages import ToolReturn
from shared.domain.runs import Run, Step, Usage
from shared.domain.settling import PARKED, lost_usage
from shared.sql.runs.budgets import BudgetStore
from worker.models.provider import ModelCall
from worker.run.publisher import Publisher

Whole = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]
"""Performs a write without interruption (`RunHandle.whole`)."""


@dataclass(kw_only=True)
class StepInHand:
    """The current or last model call, and the results of its tool calls."""

    step: Step
    asked: str
    """The request as text, from which the tokens of a cut-off call are estimated."""
    returns: dict[str, ToolReturn] = field(default_factory=dict[str, ToolReturn])
    """Results that already exist if the run is cut off."""

    def finish(self, usage: Usage) -> None:
        """Records that the model has answered. The last step of a run gets the run's own stop reason instead."""
        self.step = replace(self.step, status="success", usage=usage, stop_reason=StopReason.ANSWERED)

    def wait(self) -> None:
        """Records that its tool calls wait for a person or the client."""
        self.step = replace(self.step, stop_reason=PARKED.stop_reason)


@dataclass(kw_only=True)
class RunProgress:
    """The progress of a run: its usage, the current step, and the results of its calls. The run's end is stored from
    this, whatever causes it."""

    usage: Usage
    step_count: int
    in_hand: StepInHand | None = None
    open_returns: dict[str, ToolReturn] = field(default_factory=dict[str, ToolReturn])
    """Results of calls that belong to no step of this owner: an earlier owner left them open, a decision allowed them,
    or the body has no steps."""
    open_step_id: StepId | None = None
    """The step of these calls."""
    unstored: list[ToolReturn] = field(default_factory=list[ToolReturn])
    """Results that SQL does not have yet."""

    def take_unstored(self) -> list[ToolReturn]:
        """Returns these results and forgets them; the caller stores them."""
        results, self.unstored = self.unstored, []
        return results

    def begin_step(self, step: Step, asked: str) -> StepInHand:
        """Records that a model call begins."""
        self.in_hand = StepInHand(step=step, asked=asked)
        return self.in_hand

    @property
    def step_id(self) -> StepId | None:
        """The step of the current answer. None if the run answers no message or has not begun a step."""
        return self.open_step_id if self.in_hand is None else self.in_hand.step.id

    @property
    def returns(self) -> dict[str, ToolReturn]:
        """Results of the current answer, by tool call id."""
        return self.open_returns if self.in_hand is None else self.in_hand.returns


# Charges model calls to budgets: reserves what a call may use before the call, and counts its usage afterwards.
#
# The prompt is estimated, as for the window; the answer counts with its chosen maximum, or `UNCHOSEN_ANSWER`. So runs
# exceed a shared budget only by the part of their answers that is longer than that. A run's own budget is compared with
# the prompt alone: no other run shares it, and the run exists for its answer.


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
                f"There is a budget in money, and the price of {handle!r} is unknown: write it into the file "
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


class RunAccount:
    """The usage of the run's model calls, and the budgets that limit it."""

    def __init__(self, publisher: Publisher, progress: RunProgress, budgets: BudgetService, whole: Whole) -> None:
        self._publisher = publisher
        self._progress = progress
        self._budgets = budgets
        self._whole = whole

    async def reserve(self, call: ModelCall, *, repeats: str | None = None) -> None:
        """A body calls this before every model call. Raises `BudgetExceeded`, or `ModelError` if a budget is in money
        and the model's price is unknown.

        `repeats` is the text of the prompt if the call repeats the step's calls that were lost with their workers:
        the lost calls are then counted as well.
        """
        run, used = self._publisher.run, self._progress.usage
        lost = None if repeats is None else self.lost(call.handle, repeats)
        await self._whole(lambda: self._budgets.reserve(run, used if lost is None else used.plus(lost), call))
        # Only after the reservation, which reads the run's earlier usage. Other calls of the run may have been
        # counted meanwhile.
        if lost is not None:
            self._progress.usage = self._progress.usage.plus(lost)
            self._publisher.shown.forget_lost()

    def priced(self, model: str, usage: Usage) -> Usage:
        """Returns the usage of one call, with its price if a budget needs prices."""
        return self._budgets.priced(model, usage)

    def count(self, model: str, usage: Usage) -> Usage:
        """Counts a step's finished call. Returns its usage with its price."""
        progress, priced = self._progress, self.priced(model, usage)
        progress.usage = progress.usage.plus(priced)
        progress.step_count += 1
        return priced

    def count_aside(self, model: str, usage: Usage) -> None:
        """Counts a finished call that is not a step: adds its tokens, and leaves `context_tokens` unchanged."""
        progress = self._progress
        total = progress.usage.plus(self.priced(model, usage))
        progress.usage = replace(total, context_tokens=progress.usage.context_tokens)

    def lost(self, model: str, asked: str) -> Usage:
        """Returns an estimate of the calls that were lost with their workers in this step; all zero if there are none.
        They made the same request of this model."""
        shown = self._publisher.shown
        return self.priced(model, lost_usage(shown.lost_calls, asked, shown.lost_text))

    def check(self) -> None:
        """A body calls this after it has used tokens. Raises `BudgetExceeded`."""
        self._budgets.check(self._progress.usage)
