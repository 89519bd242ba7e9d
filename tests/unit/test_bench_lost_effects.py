"""`bench.lost_effects` counts what it says, and finds no fault."""

from bench.lost_effects import Account, Service, measured
from shared.domain.effects import Effect


async def test_no_effect_is_had_twice_and_none_is_unknown_that_a_probe_could_tell(sqlite_url: str) -> None:
    account = await measured(16, 3, sqlite_url, lambda _: None)
    assert account.kills.total() == account.states.total() == 16
    assert set(account.kills) == {"before the effect", "behind the effect", "after the return"}
    assert account.states["asked: settled"] > 0 and account.lost_records > 0
    assert (account.twice, account.needlessly_unknown, account.not_at_all) == ([], [], [])


def test_each_fault_is_counted() -> None:
    account, service = Account(), Service()
    done = Effect(call_id="a", name="pay", state="done", idempotency_key="k", attempt=1)
    account.count("asked", "after the return", done, service)
    assert (account.not_at_all, account.faults) == (["k"], 1)
    service.effects["k"] = 2
    account.count("asked", "behind the effect", done, service)
    assert (account.twice, account.faults) == (["k"], 2)
    unknown = Effect(call_id="b", name="pay", state="unknown", idempotency_key="u", attempt=1)
    account.count("mute", "behind the effect", unknown, service)
    assert account.faults == 2
    account.count("keyed", "behind the effect", unknown, service)
    assert (account.needlessly_unknown, account.faults, account.lost_records) == (["u"], 3, 3)
