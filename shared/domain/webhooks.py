"""Webhook endpoints: addresses of a project that receive an event when a background run has ended. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from shared.domain.ids import ProjectId, RunId, WebhookId
from shared.domain.settling import RunOutcome

MOST_ENDPOINTS = 20
"""The most endpoints of a project. The end of a run writes a row for each endpoint that receives it."""

SECRET_OVERLAP = timedelta(hours=24)
"""How long the former secret signs as well, if the caller of a rotation asks for that."""

SECRET, FORMER_SECRET = "signing_secret", "former_signing_secret"
"""The names of an endpoint's secrets: an encrypted one is bound to its own."""


class WebhookEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An address, and the outcomes of which it receives events."""

    id: WebhookId
    project_id: ProjectId
    dialect: str
    """The dialect in which it was made. It receives events of runs that were submitted in the same dialect."""
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
    """The time until which the former secret signs as well."""
    created_at: datetime
    updated_at: datetime

    def secrets_at(self, now: datetime) -> dict[str, str]:
        """The stored secrets that sign now, by the names to which they are bound, the newest first."""
        if self.former_secret is None or self.former_until is None or self.former_until <= now:
            return {SECRET: self.secret}
        return {SECRET: self.secret, FORMER_SECRET: self.former_secret}


class RunEvent(NamedTuple):
    """An event for an endpoint: a run, its outcome, and the time of its end."""

    run_id: RunId
    outcome: RunOutcome
    at: datetime
