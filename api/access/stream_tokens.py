"""Tokens that open one run's stream for a while, for pages whose EventSource can send no API key.

A token names the key that made it and is signed by it; nothing is stored. Every API process with that key knows it,
also while Redis is away. It ends by its time, or with its key. The signature of a configured key says nothing of it
that somebody could try out cheaply.
"""

import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta

from api.access.accepted_keys import AcceptedKeys, TokenSigner
from api.access.callers import Caller
from api.errors import Refused
from shared.domain.api_keys import Level, Scopes
from shared.domain.errors import ErrorCode
from shared.domain.ids import ProjectId, RunId

_SALT = b"holdfast stream tokens"
_COST = 2**14
"""Of scrypt: some 50 ms and 16 MiB, once per process and configured key."""

LONGEST = 500
"""Characters of a token."""


class StreamTokens:
    """Makes and reads tokens."""

    def __init__(self, keys: AcceptedKeys) -> None:
        self._keys = keys
        self._stretched: dict[bytes, bytes] = {}

    async def make(self, caller: Caller, run_id: RunId, expires_at: datetime) -> str:
        """A token for this run's stream; its time is cut to whole seconds. Raises a 401 when the caller's key has ended
        since it was checked."""
        signer = await self._keys.signer(caller.key_id)
        if signer is None:
            raise _refusal("The key of this request has ended")
        expires = int(expires_at.timestamp())
        return f"{expires}.{caller.key_id}.{self._signature(signer, caller.project_id, run_id, expires)}"

    async def caller_of(self, token: str, run_id: RunId, now: datetime) -> Caller:
        """Who may read the stream of this run. Raises a 401 for any other token."""
        expires, _, rest = token.partition(".")
        key_id, _, signature = rest.rpartition(".")
        is_number = expires.isascii() and expires.isdecimal() and len(expires) <= 12
        if not (is_number and key_id and signature.isascii() and key_id.isascii() and len(token) <= LONGEST):
            raise _refusal("The stream token is not valid")
        if datetime.fromtimestamp(int(expires), UTC) <= now:
            raise _refusal("The stream token has expired")
        signer = await self._keys.signer(key_id)
        if signer is None:
            raise _refusal("The stream token is not valid: its key is not known, or has ended")
        caller = signer.caller
        if not hmac.compare_digest(self._signature(signer, caller.project_id, run_id, int(expires)), signature):
            raise _refusal("The stream token is not valid for this run")
        return Caller(caller.project_id, caller.key_id, Scopes(Level.READ), caller.key_name)

    def _signature(self, signer: TokenSigner, project_id: ProjectId, run_id: RunId, expires: int) -> str:
        said = f"{run_id} {expires} {project_id}".encode()
        signed = hmac.new(self._key(signer), _SALT + b" " + said, hashlib.sha256).digest()
        return base64.urlsafe_b64encode(signed).decode().rstrip("=")

    def _key(self, signer: TokenSigner) -> bytes:
        if not signer.is_guessable:
            return signer.secret
        if signer.secret not in self._stretched:
            stretched = hashlib.scrypt(signer.secret, salt=_SALT, n=_COST, r=8, p=1, dklen=32)
            self._stretched[signer.secret] = stretched
        return self._stretched[signer.secret]


def end_of_token(now: datetime, valid_for_s: int) -> datetime:
    """When a token ends that is made now."""
    return (now + timedelta(seconds=valid_for_s)).replace(microsecond=0)


def _refusal(reason: str) -> Refused:
    said = f"{reason}: ask for a new one, POST /v1/runs/{{run_id}}/stream-token with an API key"
    return Refused(401, ErrorCode.INVALID_STREAM_TOKEN, said, headers={"WWW-Authenticate": "Bearer"})
