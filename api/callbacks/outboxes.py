"""The deliveries to make and their contents: the callbacks that submissions requested, and the events of webhook
endpoints. `delivery` sends both alike."""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple, Protocol, TypeVar

from shared.domain.approvals import WaitingCalls
from shared.domain.errors import InvalidRequest
from shared.domain.ids import ProjectId, RunId
from shared.domain.messages import Message
from shared.domain.runs import Run
from shared.secret_keys import SecretKeys
from shared.sql.history.messages import MessageStore
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.callbacks import Callback, CallbackStore
from shared.sql.runs.webhooks import RunEvent, WebhookDelivery, WebhookDeliveryStore, WebhookEndpoint


class Letter(NamedTuple):
    """One message to a receiver."""

    message_id: str
    """Equal in all attempts."""
    body: bytes
    keys: Sequence[bytes | None]

    def headers(self, now: datetime) -> dict[str, str]:
        """The headers with the letter's id and its signatures, made now."""
        return signed_headers(*self.keys, message_id=self.message_id, timestamp=int(now.timestamp()), body=self.body)


class Withdrawn(Exception):
    """The message must no longer be sent."""


class Due(Protocol):
    """A message to one receiver, as its outbox claimed it."""

    @property
    def run_id(self) -> RunId: ...
    @property
    def project_id(self) -> ProjectId: ...
    @property
    def url(self) -> str: ...
    @property
    def attempts(self) -> int:
        """The number of attempts, including this one."""
        ...


Row = TypeVar("Row")


class OutboxStore(Protocol[Row]):
    """The rows of an outbox, as the database has them."""

    async def claim_due(self, now: datetime, limit: int, *, but_not_of: Collection[ProjectId]) -> Sequence[Row]:
        """Claims the rows that have been due longest. No other process gets them meanwhile."""
        ...

    async def postpone(self, due: Row, until: datetime) -> None:
        """Releases the claim without an attempt."""
        ...

    async def record_attempt(
        self, due: Row, *, now: datetime, status_code: int | None, error: str | None, next_at: datetime | None
    ) -> None:
        """Records the result of the attempt. `next_at` None: delivered, or given up if there is an error."""
        ...


class Outbox(Protocol[Row]):
    """The messages to send, in the database."""

    @property
    def store(self) -> OutboxStore[Row]: ...

    async def letter(self, due: Row, run: Run, now: datetime) -> Letter:
        """The message. Raises `Withdrawn` and `UnreadableSecret`."""
        ...


def written(payload: dict[str, Any]) -> bytes:
    """A body in the form that is signed and sent."""
    return json.dumps(payload, ensure_ascii=False).encode()


# Callbacks: each submission names its receiver.


CallbackShape = Callable[[Run, Sequence[Message], WaitingCalls | None], dict[str, Any]]
"""Renders the outcome of a run in a dialect: with the run's messages, and its waiting calls."""


@dataclass(frozen=True, kw_only=True)
class CallbackOutbox:
    """The callbacks of all projects."""

    store: CallbackStore
    messages: MessageStore
    approvals: ApprovalStore
    shapes: Mapping[str, CallbackShape]
    """Renderers by dialect. The first also renders runs of unknown dialects, which a newer release may have stored."""
    key: bytes | None
    """The key from which each project's signing key is derived. None: callbacks are not signed."""

    async def letter(self, due: Callback, run: Run, now: datetime) -> Letter:
        """As `Outbox.letter`."""
        del due, now
        waiting = await self.approvals.waiting_of_runs([run])
        shape = self.shapes.get(run.options.dialect) or next(iter(self.shapes.values()))
        payload = shape(run, await self.messages.list_of_run(run), waiting.get(run.id))
        return Letter(run.id, written(payload), [key_of_project(self.key, run.project_id)])


# Webhook endpoints: each project has its own endpoints, with their own secrets.


EventShape = Callable[[RunEvent], dict[str, Any]]
"""Renders an event of a run in a dialect."""


@dataclass(frozen=True, kw_only=True)
class WebhookOutbox:
    """The events for the endpoints of all projects."""

    store: WebhookDeliveryStore
    shapes: Mapping[str, EventShape]
    """Renderers by dialect, as in `CallbackOutbox`, for the dialects that have endpoints."""
    secret_keys: SecretKeys

    async def letter(self, due: WebhookDelivery, run: Run, now: datetime) -> Letter:
        """As `Outbox.letter`."""
        endpoint = due.endpoint
        if endpoint is None:
            raise Withdrawn("the webhook endpoint was deleted")
        shape = self.shapes.get(endpoint.dialect) or next(iter(self.shapes.values()))
        keys = keys_of_endpoint(endpoint, self.secret_keys, now)
        return Letter(_id_at(endpoint.id, run.id), written(shape(due.event)), keys)


def keys_of_endpoint(endpoint: WebhookEndpoint, secret_keys: SecretKeys, now: datetime) -> list[bytes | None]:
    """The endpoint's current signing secrets. Raises `UnreadableSecret`."""
    return [signing_key(secret) for secret in secret_keys.open_all(endpoint.id, endpoint.secrets_at(now)).values()]


def _id_at(endpoint_id: str, run_id: str) -> str:
    """Each endpoint has its own id for an event. A receiver behind two endpoints would otherwise ignore the second
    delivery as a duplicate."""
    return f"wh_{sha256(f'{endpoint_id} {run_id}'.encode()).hexdigest()[:32]}"


# Signatures of callbacks by the rules of Standard Webhooks, so that receivers can verify them with any of its
# libraries: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md


SECRET_PREFIX = "whsec_"  # noqa: S105 - the standard's mark of an encoded secret, not one


_OF_PROJECT = b"holdfast callbacks of the project "


def signing_key(secret: str) -> bytes | None:
    """The key: the decoded base64 after `whsec_`, or the text itself. Without a secret there is no key.

    Raises `InvalidRequest` if `whsec_` is not followed by base64.
    """
    if not secret.startswith(SECRET_PREFIX):
        return secret.encode() or None
    try:
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error as error:
        raise InvalidRequest("HOLDFAST_CALLBACK_SECRET begins with whsec_, but base64 does not follow") from error


def key_of_project(key: bytes | None, project_id: ProjectId) -> bytes | None:
    """The key that signs one project's callbacks, derived from the operator's secret. A sender chooses the receiver, so
    with one key for all projects, a project could send a valid signature to another project's receiver."""
    return None if key is None else hmac.new(key, _OF_PROJECT + project_id.encode(), hashlib.sha256).digest()


def written_secret(key: bytes) -> str:
    """A key in the form that receivers and their libraries use."""
    return SECRET_PREFIX + base64.b64encode(key).decode()


def signed_headers(*keys: bytes | None, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of a message, with a signature per key; without a key only the id and the time.

    `timestamp` is in Unix seconds. The id must not contain a full stop, which separates the signed parts.
    """
    headers = {"webhook-id": message_id, "webhook-timestamp": str(timestamp)}
    content = b".".join([message_id.encode(), str(timestamp).encode(), body])
    digests = [hmac.new(key, content, hashlib.sha256).digest() for key in keys if key is not None]
    if digests:
        headers["webhook-signature"] = " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
    return headers
