"""Webhook endpoints: addresses of a project that hear of the end of its background runs. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from shared.domain.ids import ProjectId, RunId, WebhookId
from shared.domain.settling import RunOutcome

MOST_ENDPOINTS = 20
"""Of a project. The end of each run that an endpoint hears of writes a row for it."""

SECRET_OVERLAP = timedelta(hours=24)
"""For how long the former secret signs, too, when its owner asks for that."""

SECRET, FORMER_SECRET = "signing_secret", "former_signing_secret"
"""The names of an endpoint's secrets: an encrypted one is bound to its own."""


class WebhookEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An address, and the outcomes that it wants to hear of."""

    id: WebhookId
    project_id: ProjectId
    dialect: str
    """The dialect in which it was made. It hears of the runs that came in the same one."""
    name: str
    url: str
    outcomes: Sequence[RunOutcome]
    secret: str
    """Signs what is sent, in the form that libraries of Standard Webhooks take. As it is stored: encrypted where there
    is a key (`SecretKeys`)."""
    secret_hint: str
    """The last characters of the secret."""
    former_secret: str | None = None
    former_until: datetime | None = None
    """Until then the former secret signs, too."""
    created_at: datetime
    updated_at: datetime

    def secrets_at(self, now: datetime) -> dict[str, str]:
        """What signs now, as it is stored, by the names to which it is bound there; the newest first."""
        if self.former_secret is None or self.former_until is None or self.former_until <= now:
            return {SECRET: self.secret}
        return {SECRET: self.secret, FORMER_SECRET: self.former_secret}


class RunEvent(NamedTuple):
    """What an endpoint is sent: which run has come to what, and when."""

    run_id: RunId
    outcome: RunOutcome
    at: datetime
