"""How a client says which submission it sends, and whether it has sent it before: by names, or by the headers of
Letta's SDKs."""

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
from pydantic import BaseModel

from api.letta.message_input import IfBusy, MessageIn
from shared.domain.runs import IDEMPOTENCY_KEY, SentBody, SubmissionKeys, key_of_otids

BODY = "body:"
"""The beginning of a submission key that holds the hash of a request's body."""

UNSAID_TIMEOUT_S = 600.0
"""For how long a client may have waited for an answer that does not say it: the longest default of Letta's SDKs."""

MAX_TIMEOUT_S = 3600.0
MAX_TRIES = 10

PAUSE_S = 60.0
"""The longest pause of Letta's SDKs before a try: they obey a `Retry-After` of a minute."""


class Try(NamedTuple):
    """Which try of a request this is; 0 is the first."""

    number: int
    sent_for_s: float
    """The first try was sent at most so many seconds ago."""


class SubmissionHeaders(msgspec.Struct, frozen=True):
    """What the headers of a submission say about it."""

    idempotency_key: str | None = None
    if_busy: IfBusy | None = None
    status_events: bool = False
    priority: int = 0
    tried: Try | None = None
    """None: the client does not say."""
    key_id: str | None = None
    """The API key that the submission came with."""


def try_of(retry_count: str | None, timeout: str | None) -> Try | None:
    """The try that `x-stainless-retry-count` and the header of the client's timeout speak of.

    They are no wish of the user's, so what is not understood is passed over.
    """
    if retry_count is None or not retry_count.isdecimal() or not retry_count.isascii() or len(retry_count) > 4:
        return None
    number = min(int(retry_count), MAX_TRIES)
    try:
        waited_s = float(timeout or UNSAID_TIMEOUT_S)
    except ValueError:
        waited_s = UNSAID_TIMEOUT_S
    if not 0 < waited_s <= MAX_TIMEOUT_S:
        waited_s = MAX_TIMEOUT_S
    return Try(number, number * (waited_s + PAUSE_S))


def keys_of(
    given: Sequence[MessageIn], headers: SubmissionHeaders, request: BaseModel, way: str, now: datetime
) -> SubmissionKeys:
    """By what this submission is recognised when it is sent again. `way` is how it is sent: one body may be sent in
    several.

    Names are the header's, or the otids of all its messages. Only a submission without a name is known by its body.
    """
    names = [] if headers.idempotency_key is None else [IDEMPOTENCY_KEY + headers.idempotency_key]
    otids = [message.otid for message in given if message.otid]
    if otids and len(otids) == len(given):
        names.append(key_of_otids(otids))
    if names:
        # Otids in another order are the same name.
        said = sorted(message.model_dump_json() for message in given) or [way, request.model_dump_json()]
        return SubmissionKeys(names, _hash_of(*said))
    if headers.tried is None:
        return SubmissionKeys()
    key = BODY + _hash_of(way, request.model_dump_json())
    since = now - timedelta(seconds=headers.tried.sent_for_s) if headers.tried.number else None
    return SubmissionKeys(body=SentBody(key, now, since))


def _hash_of(*texts: str) -> str:
    whole = hashlib.sha256()
    for text in texts:
        whole.update(hashlib.sha256(text.encode()).digest())
    return whole.hexdigest()
