"""The limits on the use of a shared deployment by one project, and by one key of it.

0 means no limit. A refusal names the limit, its setting and when to retry.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta
from math import ceil
from typing import Annotated, Literal, NamedTuple

import msgspec

from shared.domain.errors import HoldfastError
from shared.domain.ids import ProjectId
from shared.domain.runs import Run, Usage

BURST_S = 2.0
"""A burst may have as many requests as are allowed in this number of seconds."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
_Rate = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]


class LimitReached(HoldfastError):
    """A limit is used up for now. `what` names its owner and its number; `setting` is the variable that sets it."""

    def __init__(self, what: str, *, setting: str, retry_after_s: float) -> None:
        self.retry_after_s = max(1, ceil(retry_after_s))
        super().__init__(f"{what} ({setting}). Come again in {self.retry_after_s} s.")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one project."""

    requests_per_s: float = 0
    key_requests_per_s: float = 0
    """The limit of each of its keys."""
    runs_in_flight: int = 0
    queued_runs: int = 0
    readers: int = 0
    """Streams that are open at once."""
    key_readers: int = 0
    """The limit of each of its keys."""


class OwnLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of a project that differ from the general ones."""

    requests_per_s: _Rate | None = None
    key_requests_per_s: _Rate | None = None
    runs_in_flight: _Count | None = None
    queued_runs: _Count | None = None
    readers: _Count | None = None
    key_readers: _Count | None = None


class ProjectLimits:
    """The limits of every project."""

    def __init__(self, each: Limits, own: Mapping[ProjectId, OwnLimits]) -> None:
        self._each = each
        self._own = {project: _with_own(each, differing) for project, differing in own.items()}

    def of(self, project_id: ProjectId) -> Limits:
        """The limits of this project."""
        return self._own.get(project_id, self._each)

    def own_in_flight(self) -> dict[str, int]:
        """The most runs in flight of each project with a limit of its own."""
        return {project: limits.runs_in_flight for project, limits in self._own.items()}


def parse_own_limits(text: str) -> dict[ProjectId, OwnLimits]:
    """Reads `{"project": {"readers": 10}}`. Raises `ValueError`, which says what is wrong."""
    try:
        return msgspec.json.decode(text, type=dict[ProjectId, OwnLimits]) if text.strip() else {}
    except msgspec.MsgspecError as error:
        names = ", ".join(OwnLimits.__struct_fields__)
        raise ValueError(f'write it as {{"project": {{"readers": 10}}}}, with {names}: {error}') from error


def _with_own(each: Limits, own: OwnLimits) -> Limits:
    said = {name: value for name, value in msgspec.structs.asdict(own).items() if value is not None}
    return msgspec.structs.replace(each, **said)


# The budgets of runs, and the accounts that pay for a call: its amount is reserved before the call, and charged when
# its tokens are known.
#
# An account is the share of an agent, a key or a project for one day, by UTC. A reservation belongs to a run, which
# makes one call of a model at a time. A run's amount is written with its usage, in one transaction, so the two cannot
# disagree, whichever process dies. No I/O.


NANO = 1_000_000_000
"""Money is counted in thousand-millionths of a US dollar: a token may cost less than a millionth."""

UNCHOSEN_ANSWER = 4096
"""Tokens that are reserved for an answer without a chosen limit."""


class Amount(msgspec.Struct, frozen=True):
    """Tokens, in and out, and their price."""

    tokens: int = 0
    nano_usd: int = 0

    def plus(self, more: "Amount") -> "Amount":
        return Amount(self.tokens + more.tokens, self.nano_usd + more.nano_usd)

    def since(self, earlier: "Amount") -> "Amount":
        """The amount that was added; nothing if a process that does not know the price has written a smaller figure."""
        return Amount(max(self.tokens - earlier.tokens, 0), max(self.nano_usd - earlier.nano_usd, 0))


NOTHING = Amount()

ONE_TOKEN = Amount(tokens=1)
"""The least that a call uses."""


def amount_of(usage: Usage) -> Amount:
    """The amount that a run has used so far."""
    return Amount(usage.prompt_tokens + usage.completion_tokens, usage.cost_nano_usd)


class Limit(msgspec.Struct, frozen=True):
    """The most that may be used; None: no limit."""

    tokens: int | None = None
    nano_usd: int | None = None

    def exceeded_by(self, amount: Amount) -> str | None:
        """Returns the part of the amount that exceeds its limit, with the limit; None if none does."""
        if self.tokens is not None and amount.tokens > self.tokens:
            return f"{amount.tokens:,} tokens of {self.tokens:,}"
        if self.nano_usd is not None and amount.nano_usd > self.nano_usd:
            return f"{dollars(amount.nano_usd)} of {dollars(self.nano_usd)}"
        return None

    @property
    def is_set(self) -> bool:
        return self.tokens is not None or self.nano_usd is not None


NO_LIMIT = Limit()


def dollars(nano_usd: int) -> str:
    """The amount as people write it, to the hundredth of a cent."""
    return f"${nano_usd / NANO:,.4f}"


class Account(NamedTuple):
    """The owner of a share, and its size."""

    kind: Literal["agent", "key", "project"]
    owner: str
    limit: Limit

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.owner}"


class Budgets(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a deployment."""

    run: Limit = NO_LIMIT
    """For one run from its beginning to its end, together with the runs of its tree."""
    agent: Limit = NO_LIMIT
    """For one agent, per day."""
    key: Limit = NO_LIMIT
    """For the runs that one API key has submitted, per day."""
    project: Limit = NO_LIMIT
    """For one project, per day."""
    waits: bool = False
    """A run that would go over its day's share waits for room, instead of failing."""

    @property
    def count_money(self) -> bool:
        """Whether a price must be known."""
        return any(limit.nano_usd is not None for limit in (self.run, self.agent, self.key, self.project))

    def accounts_of(self, run: Run) -> list[Account]:
        """The accounts that pay for the run's calls, sorted by name: transactions lock them in this order."""
        accounts = [Account("agent", run.agent_id, self.agent), Account("project", run.project_id, self.project)]
        if run.options.submitted_by is not None:
            accounts.append(Account("key", run.options.submitted_by, self.key))
        return sorted((account for account in accounts if account.limit.is_set), key=lambda account: account.name)


class Reservation(msgspec.Struct, frozen=True):
    """The amount reserved for a run's call, with the accounts and the day."""

    day: str
    accounts: list[str]
    amount: Amount
    prompt: Amount
    """The part of the amount that is for the call's prompt."""


def priced_as_set_aside(call: Usage, reservation: Reservation | None) -> Usage:
    """Prices an estimate of a run's call by its reservation: per token, separately for the prompt and the answer."""
    if reservation is None:
        return call
    prompt, whole = reservation.prompt, reservation.amount
    answer = Amount(whole.tokens - prompt.tokens, whole.nano_usd - prompt.nano_usd)
    price = _share(prompt, call.prompt_tokens) + _share(answer, call.completion_tokens)
    return msgspec.structs.replace(call, cost_nano_usd=price)


def _share(amount: Amount, tokens: int) -> int:
    return 0 if amount.tokens <= 0 else -(-amount.nano_usd * tokens // amount.tokens)


def day_of(now: datetime) -> str:
    """The day of an account, `2026-01-31`."""
    return now.astimezone(UTC).date().isoformat()


def next_day(now: datetime) -> datetime:
    """When the next day's accounts open."""
    today = now.astimezone(UTC).date()
    return datetime.combine(today + timedelta(days=1), time(), UTC)
