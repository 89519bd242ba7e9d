"""How long a provider asks to be left alone: every form of it, on every wire, by the provider's own clock."""

from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import pytest

from shared.domain.errors import ModelError, ModelErrorType
from tests.kit.clocks import FrozenClock
from tests.kit.model_server import Failure, Turn
from tests.kit.model_server.model_calls import HANDLES, ask, call, models_on_server, text_said
from worker.models.model_errors import LONGEST_PAUSE, retry_after
from worker.models.provider import AttemptFailed

CLOCK = FrozenClock()
NOW = CLOCK.now()


def date(seconds: float, *, clock: datetime = NOW) -> str:
    return format_datetime(clock + timedelta(seconds=seconds), usegmt=True)


EAST = timezone(timedelta(hours=5, minutes=30))

THEIRS = NOW + timedelta(hours=5)
"""What the clock of a provider shows that is wrong, or what ours would."""

PAUSES: list[tuple[dict[str, str], float | None]] = [
    ({"retry-after": "3"}, 3.0),
    ({"retry-after": " 3 "}, 3.0),
    ({"retry-after": "0"}, 0.0),
    ({"retry-after": "1.5"}, 1.5),
    ({"retry-after": "3.0"}, 3.0),
    ({"retry-after": "0.05"}, 0.05),
    ({"retry-after": "12."}, 12.0),
    ({"retry-after-ms": "1500"}, 1.5),
    ({"retry-after-ms": "250.5"}, 0.2505),
    ({"retry-after-ms": "1500", "retry-after": "60"}, 1.5),
    ({"retry-after-ms": "soon", "retry-after": "2"}, 2.0),
    ({"retry-after": date(20)}, 20.0),
    ({"retry-after": date(-20)}, 0.0),
    ({"retry-after": date(20, clock=THEIRS), "date": date(0, clock=THEIRS)}, 20.0),
    ({"retry-after": date(20, clock=THEIRS), "date": "Monday"}, 5 * 3600 + 20.0),
    ({"retry-after": (NOW + timedelta(seconds=20)).strftime("%a %b %d %H:%M:%S %Y")}, 20.0),
    ({"retry-after": "0.8333333333333334"}, 0.8333333333333334),
    ({"retry-after": "10s"}, 10.0),
    ({"retry-after": "10 Seconds"}, 10.0),
    ({"retry-after": "0.5s"}, 0.5),
    ({"retry-after": "1m30s"}, 90.0),
    ({"retry-after": "1h 1.5m 20ms"}, 3690.02),
    ({"retry-after-ms": "1500ms"}, 1.5),
    ({"retry-after-ms": "2s"}, 2.0),
    ({"retry-after-ms": "1500, 2500", "retry-after": "60"}, 2.5),
    ({"retry-after-ms": "-1", "retry-after": "4"}, 4.0),
    ({"retry-after": "5, 10"}, 10.0),
    ({"retry-after": "10,5"}, 10.0),
    ({"retry-after": "5, soon"}, 5.0),
    ({"retry-after": ",5,"}, 5.0),
    ({"retry-after": f"{date(20)}, 30"}, 30.0),
    ({"retry-after": f"{date(40)}, {date(20)}"}, 40.0),
    ({"retry-after": (NOW + timedelta(seconds=20)).strftime("%A, %d-%b-%y %H:%M:%S GMT")}, 20.0),
    ({"retry-after": (NOW + timedelta(seconds=20)).strftime("%Y-%m-%dT%H:%M:%SZ")}, 20.0),
    ({"retry-after": (NOW + timedelta(seconds=20)).strftime("%Y-%m-%dt%H:%M:%S.000z")}, 20.0),
    ({"retry-after": (NOW + timedelta(seconds=20)).strftime("%Y-%m-%d %H:%M:%S")}, 20.0),
    ({"retry-after": (NOW + timedelta(seconds=20)).astimezone(EAST).isoformat()}, 20.0),
    ({"retry-after": (NOW - timedelta(seconds=20)).isoformat()}, 0.0),
    ({"retry-after": (THEIRS + timedelta(seconds=20)).isoformat(), "date": date(0, clock=THEIRS)}, 20.0),
    ({"retry-after": "9" * 13}, LONGEST_PAUSE),
    ({"retry-after": "9" * 5000}, LONGEST_PAUSE),
    ({"retry-after": "9" * 5000 + "s"}, LONGEST_PAUSE),
    ({"retry-after": "9999-12-31T23:59:59-23:59"}, LONGEST_PAUSE),
    ({"retry-after": ""}, None),
    ({"retry-after": ","}, None),
    ({"retry-after": "5 10"}, None),
    ({"retry-after": "1m30"}, None),
    ({"retry-after": "10 moons"}, None),
    ({"retry-after": "10s 3 moons"}, None),
    ({"retry-after": "2026-11-25"}, None),
    ({"retry-after": "2026-13-45T99:00:00Z"}, None),
    ({"retry-after": "-5s"}, None),
    ({"retry-after": "5;q=1"}, None),
    ({"retry-after": "soon"}, None),
    ({"retry-after": "-5"}, None),
    ({"retry-after": "nan"}, None),
    ({"retry-after": "inf"}, None),
    ({"retry-after": "1e9"}, None),
    ({"retry-after": "1_0"}, None),
    ({"retry-after": "\u0665"}, None),
    ({"retry-after": "Wed, 99 Foo 2026 25:61:61 GMT"}, None),
    ({}, None),
]


@pytest.mark.parametrize(("headers", "seconds"), PAUSES)
def test_every_form_of_the_header_is_understood(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == (None if seconds is None else pytest.approx(seconds))


ON_WIRES = [
    ({"retry-after": "1.5"}, 1.5),
    ({"retry-after": "3.0"}, 3.0),
    ({"retry-after": date(20)}, 20.0),
    ({"retry-after": date(20, clock=THEIRS), "date": date(0, clock=THEIRS)}, 20.0),
    ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
    ({"retry-after": "soon"}, 0.5),
    ({"retry-after": "10s"}, 10.0),
    ({"retry-after": "5, 10"}, 10.0),
    ({"retry-after": (NOW + timedelta(seconds=20)).isoformat()}, 20.0),
]


@pytest.mark.parametrize("handle", HANDLES)
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(("headers", "seconds"), ON_WIRES)
async def test_a_pause_was_cut_short_where_the_header_was_not_understood(
    handle: str, status: int, headers: dict[str, str], seconds: float
) -> None:
    waits: list[float] = []

    async def sleep(for_s: float) -> None:
        waits.append(for_s)

    async with models_on_server(retries=1, clock_sleep=sleep, jitter=lambda: 0.0, now=CLOCK.now) as (server, models):
        server.play(Turn(failure=Failure("rate_limit", "Slow down.", headers, status)), Turn(text="At last."))
        events = await ask(models, call(handle))
    [failed] = [event for event in events if isinstance(event, AttemptFailed)]
    assert waits == [failed.wait] == [pytest.approx(seconds)]
    assert text_said(events) == "At last."


@pytest.mark.parametrize("handle", HANDLES)
@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"retry-after": "3600"}, "[It asks for a pause of 3600 s; runs wait for 60 s at most.]"),
        ({"retry-after": "60.5"}, "[It asks for a pause of 60.5 s; runs wait for 60 s at most.]"),
        ({"retry-after": date(86400)}, "[It asks for a pause of 86400 s; runs wait for 60 s at most.]"),
    ],
)
async def test_a_pause_that_is_too_long_for_a_run_was_not_named(
    handle: str, headers: dict[str, str], said: str
) -> None:
    async with models_on_server(retries=3, now=CLOCK.now) as (server, models):
        server.play(Turn(failure=Failure("rate_limit", "Slow down.", headers)))
        with pytest.raises(ModelError) as caught:
            await ask(models, call(handle))
        assert len(server.requests) == 1
    assert caught.value.error_type is ModelErrorType.RATE_LIMIT
    assert caught.value.message.startswith(f"Slow down. {said} [Asked: ")


@pytest.mark.parametrize("handle", HANDLES)
async def test_a_provider_quoted_the_key_and_the_run_kept_it(handle: str) -> None:
    key = {"openai": "test-openai", "anthropic": "test-anthropic", "google_ai": "test-gemini"}[handle.partition("/")[0]]
    async with models_on_server() as (server, models):
        server.play(Turn(failure=Failure("auth", f"Incorrect API key provided: {key}. It has 3 of 5 uses.")))
        with pytest.raises(ModelError) as caught:
            await ask(models, call(handle))
    assert caught.value.message.startswith("Incorrect API key provided: [key]. It has 3 of 5 uses. [Asked: ")
