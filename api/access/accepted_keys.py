"""Finds the caller of a request by its key, configured or stored, without a query for each request.

A found key is cached for `FRESH_S`; then one request queries the database again. So every process learns of a
revocation within that time. If the database does not answer, cached keys stay valid, because they cannot be revoked
meanwhile. Unknown keys get a 503 instead of a 401, because they may be valid.
"""

import base64
import hashlib
import hmac
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple, TypeVar

import structlog

from api.access.callers import ANONYMOUS, Caller, ConfiguredKeys, Credential
from api.errors import Refused
from shared.concurrency import Clock
from shared.domain.api_keys import (
    LONGEST_GRACE_S,
    SECRET_BYTES,
    ApiKey,
    Level,
    Scopes,
    check_new_key,
    digest_of,
    is_well_formed,
    new_secret,
)
from shared.domain.errors import ErrorCode, InvalidRequest, Unavailable
from shared.domain.ids import IdMaker, KeyId, ProjectId, RunId
from shared.sql.access.api_keys import ApiKeyStore, FoundKey

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

FRESH_S = 5.0
"""Seconds until a process queries the database again for a key, and for whether any key exists."""

MOST_KNOWN = 10_000
"""Keys that a process caches."""

USE_NOTED = timedelta(minutes=1)
"""The shortest time between two writes of a key's last use."""


class Found(NamedTuple):
    """The caller of a valid key, and whether an attacker could guess the key."""

    caller: Caller
    is_guessable: bool


class TokenSigner(NamedTuple):
    """The secret that signs a caller's stream tokens. `is_guessable`: an attacker could guess the secret."""

    caller: Caller
    secret: bytes
    is_guessable: bool


class AcceptedKeys:
    """Finds keys. Raises `Unavailable` if the database is needed and does not answer."""

    def __init__(
        self, configured: ConfiguredKeys, stored: ApiKeyStore, clock: Clock, *, most_known: int = MOST_KNOWN
    ) -> None:
        self._configured = configured
        self._stored = stored
        self._clock = clock
        self._by_digest = _KnownKeys(stored.of_digest, clock, most_known)
        self._by_id = _KnownKeys(stored.of_id, clock, most_known)
        self._is_closed = bool(configured)
        self._open_until: float | None = None

    async def are_required(self) -> bool:
        """Returns whether requests need a key: if one is configured, or the database has ever had one.

        A server is closed within `FRESH_S` of the first key, and never opens again.
        """
        if self._is_closed:
            return True
        now = self._clock.monotonic()
        if self._open_until is not None and now < self._open_until:
            return False
        was_open, self._open_until = self._open_until is not None, now + FRESH_S
        try:
            self._is_closed = await self._stored.has_any()
        except BaseException as error:
            if isinstance(error, Unavailable) and was_open:
                return False
            self._open_until = None
            raise
        return self._is_closed

    async def find(self, secret: bytes) -> Found | None:
        """Returns the key's caller; None for an invalid key."""
        configured = self._configured.find(secret)
        if configured is not None:
            return Found(configured.caller, configured.is_guessable)
        if not is_well_formed(secret):
            return None
        digest = digest_of(secret)
        found, is_news = await self._by_digest.get(digest)
        if found is None or not found.is_valid(self._clock.now()):
            return None
        if is_news:
            await self._note_use(found)
        return Found(_caller_of(found, digest), is_guessable=False)

    async def still_hold(self, credential: Credential) -> bool:
        """Returns whether this credential still identifies its caller. Open streams are checked with it."""
        key_id, proof = credential
        if key_id == ANONYMOUS.key_id:
            return not await self.are_required()
        if self._configured.of_id(key_id) is not None:
            return True
        found, _ = await (self._by_digest.get(proof) if isinstance(proof, str) else self._by_id.get(key_id))
        if found is None or not found.is_valid(self._clock.now()):
            return False
        return isinstance(proof, str) or found.token_secret == proof

    async def signer(self, key_id: str) -> TokenSigner | None:
        """Returns the signer of the stream tokens made with this key; None if the key is no longer valid."""
        if key_id == ANONYMOUS.key_id:
            return None if await self.are_required() else TokenSigner(ANONYMOUS, b"", is_guessable=False)
        configured = self._configured.of_id(key_id)
        if configured is not None:
            return TokenSigner(configured.caller, configured.secret, is_guessable=True)
        found, _ = await self._by_id.get(key_id)
        if found is None or not found.is_valid(self._clock.now()):
            return None
        return TokenSigner(_caller_of(found, found.token_secret), found.token_secret, is_guessable=False)

    def forget(self) -> None:
        """Drops the cache, because this process has changed a key."""
        self._by_digest.forget()
        self._by_id.forget()
        self._open_until = None

    async def _note_use(self, found: FoundKey) -> None:
        now, last = self._clock.now(), found.key.last_used_at
        if last is not None and now - last < USE_NOTED:
            return
        try:
            await self._stored.note_use(found.key.id, now, every=USE_NOTED)
        except Unavailable as error:
            # The request succeeds without the note.
            log.warning("use_of_key_not_noted", key_id=found.key.id, error=str(error))


def _caller_of(found: FoundKey, proof: str | bytes) -> Caller:
    key = found.key
    return Caller(key.project_id, key.id, Scopes.parse(key.scopes), key.name, proof=proof)


class _Known:
    """A cached key, and the time until which it needs no query."""

    def __init__(self, found: FoundKey, fresh_until: float) -> None:
        self.found = found
        self.fresh_until = fresh_until


class _KnownKeys:
    """A cache of found keys, by digest or by id."""

    def __init__(self, look_up: Callable[[str], Awaitable[FoundKey | None]], clock: Clock, most: int) -> None:
        self._most = most
        self._look_up = look_up
        self._clock = clock
        self._known: OrderedDict[str, _Known] = OrderedDict()

    async def get(self, name: str) -> tuple[FoundKey | None, bool]:
        """Returns the key of this name, and whether a query has just confirmed it."""
        now, known = self._clock.monotonic(), self._known.get(name)
        if known is not None and now < known.fresh_until:
            self._known.move_to_end(name)
            return known.found, False
        if known is not None:
            known.fresh_until = now + FRESH_S  # so that concurrent requests make no query, too
        try:
            found = await self._look_up(name)
        except BaseException as error:
            if known is not None and isinstance(error, Unavailable):
                return known.found, False
            if known is not None:
                known.fresh_until = now
            raise
        if found is None:
            self._known.pop(name, None)
            return None, True
        self._known[name] = _Known(found, now + FRESH_S)
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return found, True

    def forget(self) -> None:
        """Marks all keys as stale. A stale key is used only if the database does not answer."""
        for known in self._known.values():
            known.fresh_until = 0.0


# Wrong keys, which this process counts by client address.
#
# The API refuses an address that sends many of them for a while. This must not lock out other callers behind the same
# proxy, so the API always accepts a key that cannot be guessed. It accepts a short key, which could be guessed, only if
# the key was used from the address before the wrong keys arrived.


BURST = 30
"""Wrong keys that an address may send in a burst."""
PER_SECOND = 0.5
"""Wrong keys per second that an address may send after that."""
MOST_COUNTED = 2 * BURST
"""The highest count, so that an address is free a minute after its last wrong key."""

MOST_ADDRESSES = 10_000
KNOWN_FOR_S = 3600.0
"""Seconds for which a valid short key counts as used from an address."""


class FailedKeys:
    """Counts wrong keys, in bounded memory."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By address: the count, and its time."""
        self._known: OrderedDict[tuple[str, str], float] = OrderedDict()
        """By address and key: the last time that the valid key was used."""

    def note(self, address: str) -> int | None:
        """Counts a wrong key. Returns the seconds to wait if there were too many."""
        address = network_of(address)
        count = min(self._count(address) + 1, MOST_COUNTED)
        _put(self._counts, address, (count, self._clock.monotonic()))
        return _wait(count)

    def wait_for(self, address: str, key_id: str) -> int | None:
        """Returns the seconds that this valid short key has to wait; None if it is accepted."""
        address = network_of(address)
        known, now = self._known.get((address, key_id)), self._clock.monotonic()
        wait = _wait(self._count(address))
        if wait is not None and (known is None or now - known > KNOWN_FOR_S):
            return wait
        _put(self._known, (address, key_id), now)
        return None

    def _count(self, address: str) -> float:
        count, at = self._counts.get(address, (0.0, 0.0))
        return max(0.0, count - (self._clock.monotonic() - at) * PER_SECOND)


def _wait(count: float) -> int | None:
    return math.ceil((count - BURST) / PER_SECOND) if count > BURST else None


Name = TypeVar("Name")
Value = TypeVar("Value")


def _put(kept: OrderedDict[Name, Value], name: Name, value: Value) -> None:
    kept[name] = value
    kept.move_to_end(name)
    if len(kept) > MOST_ADDRESSES:
        kept.popitem(last=False)


def network_of(address: str) -> str:
    """Returns the network from which one machine may choose its addresses: for IPv6 a /64."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    return str(IPv6Address(int(parsed) >> 64 << 64)) if isinstance(parsed, IPv6Address) else address


class Issued(NamedTuple):
    """A key and its new secret, which is not stored and cannot be looked up later."""

    key: ApiKey
    secret: str


@dataclass(frozen=True, kw_only=True)
class KeyIssuer:
    """Makes and rotates keys, for the API and the command line."""

    keys: ApiKeyStore
    clock: Clock
    ids: IdMaker
    random: Callable[[int], bytes]
    """Returns this many unpredictable bytes."""

    async def create(
        self, project_id: ProjectId, name: str, scopes: Sequence[str], *, expires_at: datetime | None, by: str
    ) -> Issued:
        """Makes a key. Raises `InvalidRequest`, and `NotFound` for an agent that the project lacks."""
        now = self.clock.now()
        check_new_key(name, expires_at, now)
        secret = new_secret(self.random(SECRET_BYTES))
        key = ApiKey(
            id=self.ids.key(),
            project_id=project_id,
            name=name.strip(),
            scopes=Scopes.parse(scopes).texts(),
            prefix=secret.prefix,
            created_at=now,
            created_by=by,
            expires_at=expires_at,
        )
        return Issued(await self.keys.create(key, secret, token_secret=self.random(SECRET_BYTES)), secret.text)

    async def rotate(self, project_id: ProjectId | None, key_id: KeyId, grace_s: int) -> Issued:
        """Gives the key a new secret; earlier secrets stay valid for `grace_s`. Raises as `ApiKeyStore.rotate`."""
        if not 0 <= grace_s <= LONGEST_GRACE_S:
            raise InvalidRequest(f"grace_s must be from 0 to {LONGEST_GRACE_S} seconds", field="grace_s")
        secret = new_secret(self.random(SECRET_BYTES))
        key = await self.keys.rotate(
            project_id,
            key_id,
            secret,
            grace=timedelta(seconds=grace_s),
            now=self.clock.now(),
            token_secret=self.random(SECRET_BYTES),
        )
        return Issued(key, secret.text)


# Tokens that open one run's stream for a limited time, for pages whose EventSource cannot send an API key.
#
# A token names its key, which signs it; nothing is stored. So every API process that knows the key can check the token,
# even if Redis does not answer. It expires at its time, or with its key. A configured key may be short, so it is
# stretched before it signs: guessing it from a signature is then expensive.


_COST = 2**14
"""scrypt's cost: some 50 ms and 16 MiB, once per process and configured key."""

LONGEST = 500
"""The most characters of a token."""


class TokenSignatures:
    """Signs tokens with the keys of their makers. `kind` keeps the tokens of different kinds apart."""

    def __init__(self, kind: bytes) -> None:
        self._kind = kind
        self._stretched: dict[bytes, bytes] = {}

    def of(self, signer: TokenSigner, said: str) -> str:
        """Returns the signature of a token's text: 43 characters of base64 for URLs."""
        signed = hmac.new(self._key(signer), self._kind + b" " + said.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(signed).decode().rstrip("=")

    def _key(self, signer: TokenSigner) -> bytes:
        if not signer.is_guessable:
            return signer.secret
        if signer.secret not in self._stretched:
            stretched = hashlib.scrypt(signer.secret, salt=self._kind, n=_COST, r=8, p=1, dklen=32)
            self._stretched[signer.secret] = stretched
        return self._stretched[signer.secret]


class StreamTokens:
    """Makes and reads tokens."""

    def __init__(self, keys: AcceptedKeys) -> None:
        self._keys = keys
        self._signatures = TokenSignatures(b"holdfast stream tokens")

    async def make(self, caller: Caller, run_id: RunId, expires_at: datetime) -> str:
        """Returns a token for this run's stream; its time is cut to whole seconds. Raises a 401 if the caller's key has
        become invalid since it was checked."""
        signer = await self._keys.signer(caller.key_id)
        if signer is None:
            raise _refusal("The key of this request is no longer valid")
        expires = int(expires_at.timestamp())
        return f"{expires}.{caller.key_id}.{self._signature(signer, caller.project_id, run_id, expires)}"

    async def caller_of(self, token: str, run_id: RunId, now: datetime) -> Caller:
        """Returns the caller who may read this run's stream. Raises a 401 for an invalid token."""
        expires, _, rest = token.partition(".")
        key_id, _, signature = rest.rpartition(".")
        is_number = expires.isascii() and expires.isdecimal() and len(expires) <= 11
        if not (is_number and key_id and signature.isascii() and key_id.isascii() and len(token) <= LONGEST):
            raise _refusal("The stream token is not valid")
        if datetime.fromtimestamp(int(expires), UTC) <= now:
            raise _refusal("The stream token has expired")
        signer = await self._keys.signer(key_id)
        if signer is None:
            raise _refusal("The stream token is not valid: its key is unknown or no longer valid")
        caller = signer.caller
        if not hmac.compare_digest(self._signature(signer, caller.project_id, run_id, int(expires)), signature):
            raise _refusal("The stream token is not valid for this run")
        return replace(caller, scopes=Scopes(Level.READ))

    def _signature(self, signer: TokenSigner, project_id: ProjectId, run_id: RunId, expires: int) -> str:
        return self._signatures.of(signer, f"{run_id} {expires} {project_id}")


def end_of_token(now: datetime, valid_for_s: int) -> datetime:
    """Returns the time at which a token that is made now expires."""
    return (now + timedelta(seconds=valid_for_s)).replace(microsecond=0)


def _refusal(reason: str) -> Refused:
    said = f"{reason}: ask for a new one, POST /v1/runs/{{run_id}}/stream-token with an API key"
    return Refused(401, ErrorCode.INVALID_STREAM_TOKEN, said, headers={"WWW-Authenticate": "Bearer"})
