"""Tokens that open one run's stream for a while, for pages whose EventSource can send no API key.

A token is signed and nothing is stored: every API process with the same keys knows it, also while Redis is away. It
ends by its time, or when the keys change. The signature says nothing of the keys that somebody could try out cheaply.
"""

import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from functools import cached_property

from starlette.exceptions import HTTPException

from api.auth import ApiKeys
from shared.domain.ids import ProjectId, RunId

_SALT = b"holdfast stream tokens"
_COST = 2**14
"""Of scrypt: some 50 ms and 16 MiB, once per process."""


class StreamTokens:
    """Makes and reads tokens."""

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys

    def make(self, project_id: ProjectId, run_id: RunId, expires_at: datetime) -> str:
        """A token for this run's stream; its time is cut to whole seconds."""
        expires = int(expires_at.timestamp())
        return f"{expires}.{self._signature(project_id, run_id, expires)}"

    def project_of(self, token: str, run_id: RunId, now: datetime) -> ProjectId:
        """The project for whose run the token is. Raises a 401 for any other token."""
        expires, _, signature = token.partition(".")
        if not (expires.isascii() and expires.isdecimal() and len(expires) <= 12 and signature.isascii()):
            raise _refusal("The stream token is not valid")
        found = None
        for project_id in self._keys.projects():
            if hmac.compare_digest(self._signature(project_id, run_id, int(expires)), signature):
                found = project_id
        if found is None:
            raise _refusal("The stream token is not valid for this run")
        if datetime.fromtimestamp(int(expires), UTC) <= now:
            raise _refusal("The stream token has expired")
        return found

    def _signature(self, project_id: ProjectId, run_id: RunId, expires: int) -> str:
        said = f"{run_id} {expires} {project_id}".encode()
        return base64.urlsafe_b64encode(hmac.new(self._key, said, hashlib.sha256).digest()).decode().rstrip("=")

    @cached_property
    def _key(self) -> bytes:
        return hashlib.scrypt(self._keys.fingerprint(), salt=_SALT, n=_COST, r=8, p=1, dklen=32)


def end_of_token(now: datetime, valid_for_s: int) -> datetime:
    """When a token ends that is made now."""
    return (now + timedelta(seconds=valid_for_s)).replace(microsecond=0)


def _refusal(reason: str) -> HTTPException:
    said = f"{reason}: ask for a new one, POST /v1/runs/{{run_id}}/stream-token with an API key"
    return HTTPException(401, said, {"WWW-Authenticate": "Bearer"})
