"""By what a submission is recognised when it is sent again.

A client can name its submissions: by the otids of their messages, or by an Idempotency-Key. A name stands for one
content for ever. A client that does not may mark what it sends a second time, as Letta's SDKs do; then the same body
within the time in which it can have been sent before is the same submission.
"""

import hashlib
from collections.abc import Iterable
from datetime import datetime

import msgspec

IDEMPOTENCY_KEY = "idempotency-key:"
"""The beginning of a submission key that holds a client's Idempotency-Key."""

OTIDS = "otids:"
"""The beginning of a submission key that holds the otids of all messages of a submission, sorted, with commas
between."""

MAX_OTIDS_CHARS = 600
"""Characters. A longer list of otids is known by its hash, because a database's index has no room for it."""


def key_of_otids(otids: Iterable[str]) -> str:
    """The key by which a submission with these otids is recognised when it comes again."""
    listed = ",".join(sorted(map(quoted_otid, otids)))
    if len(listed) > MAX_OTIDS_CHARS:
        listed = f"#{hashlib.sha256(listed.encode()).hexdigest()}"
    return OTIDS + listed


def has_otid(key: str, otid: str) -> bool:
    """Whether a key is of a submission with this otid. False for a list that is known by its hash."""
    return quoted_otid(otid) in key.removeprefix(OTIDS).split(",")


def quoted_otid(otid: str) -> str:
    """The otid with its commas and its `#` quoted: a comma separates otids, and a `#` begins a hash."""
    return otid.replace("%", "%25").replace(",", "%2C").replace("#", "%23")


def shown_name(key: str) -> str:
    """How a client is told of the name that a key holds."""
    if key.startswith(IDEMPOTENCY_KEY):
        return f"the Idempotency-Key {key.removeprefix(IDEMPOTENCY_KEY)!r}"
    return f"the otid {key.removeprefix(OTIDS)!r}"


class SentBody(msgspec.Struct, frozen=True):
    """The body of a submission whose client says whether it has sent it before."""

    key: str
    sent_at: datetime
    sent_since: datetime | None = None
    """When the first try came, at the earliest. None: this is the first try, and a submission of its own."""


class SubmissionKeys(msgspec.Struct, frozen=True):
    """What is stored with a submission to recognise it."""

    names: list[str] = []
    content: str | None = None
    """A hash of what the submission says, where it has names."""
    body: SentBody | None = None


NO_KEYS = SubmissionKeys()
