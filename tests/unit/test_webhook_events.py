"""What endpoints are sent is what OpenAI's SDK reads, and one request can carry several signatures."""

import json
import time
from datetime import UTC, datetime
from typing import get_args

import pytest
from openai import InvalidWebhookSignatureError, OpenAI

from api.callbacks.outboxes import signed_headers, signing_key, written_secret
from api.openai.response_object import response_id
from api.openai.webhook_endpoints import EVENT_TYPES, outcomes_of, response_event
from shared.domain.ids import RunId
from shared.domain.settling import RunOutcome
from shared.sql.runs.webhooks import RunEvent

RUN_ID = RunId("run-0123abcd-0000-4000-8000-00000000000f")
AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
NEW, OLD, OTHER = (written_secret(letter * 32) for letter in (b"n", b"o", b"x"))


def test_each_outcome_has_its_event() -> None:
    assert outcomes_of(EVENT_TYPES) == list(get_args(RunOutcome))


@pytest.mark.parametrize("outcome", get_args(RunOutcome))
def test_the_sdk_reads_what_it_is_sent(outcome: RunOutcome) -> None:
    body = json.dumps(response_event(RunEvent(RUN_ID, outcome, AT))).encode()
    keys = [signing_key(secret) for secret in (NEW, OLD)]
    headers = signed_headers(*keys, message_id="wh_1", timestamp=int(time.time()), body=body)

    with OpenAI(api_key="none") as openai:
        for secret in (NEW, OLD):
            event = openai.webhooks.unwrap(body, headers, secret=secret)
            assert type(event).__name__ == f"Response{outcome.title()}WebhookEvent"
            assert event.to_dict() == {
                "id": "evt_0123abcd00004000800000000000000f",
                "object": "event",
                "created_at": 1767323045,
                "type": f"response.{outcome}",
                "data": {"id": "resp_0123abcd00004000800000000000000f"},
            }
        with pytest.raises(InvalidWebhookSignatureError):
            openai.webhooks.unwrap(body, headers, secret=OTHER)
    assert len(headers["webhook-signature"].split(" ")) == 2


def test_a_response_has_the_digits_of_its_run() -> None:
    assert response_id(RUN_ID) == "resp_0123abcd00004000800000000000000f"
