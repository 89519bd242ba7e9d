"""Every key of this server, configured and stored. Finds the caller of a request without asking the database for each.

A key that was found is taken for known for `FRESH_S`; then the database is asked again, by one request. So every
process learns of a revocation within that time. While the database is away, keys that were known go on: they could
not be revoked meanwhile. Of others it cannot be said whether they are ours, so their requests are a 503 and no 401.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import NamedTuple

import structlog

from api.access.callers import EVERYBODY, Caller, ConfiguredKeys
from shared.concurrency import Clock
from shared.domain.api_keys import Scopes, digest_of, is_well_formed
from shared.domain.errors import Unavailable
from shared.sql.access.api_keys import ApiKeyStore, FoundKey

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

FRESH_S = 5.0
"""Seconds after which the database is asked again about a key, and whether there are any."""

MOST_KNOWN = 10_000
"""Keys that a process remembers."""

USE_NOTED = timedelta(minutes=1)
"""A key's last use is written at most so often."""


class Found(NamedTuple):
    """Whose key was sent, and whether somebody may have found it by trying."""

    caller: Caller
    is_guessable: bool


class TokenSigner(NamedTuple):
    """Whose stream tokens a secret signs. `is_guessable` is true of a secret that somebody may try out."""

    caller: Caller
    secret: bytes
    is_guessable: bool


class AcceptedKeys:
    """Finds keys. Raises `Unavailable` for what only the database could say."""

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
        """Whether a request needs a key: where one is configured, and where the database has ever had one.

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
        """Whose key this is."""
        configured = self._configured.find(secret)
        if configured is not None:
            return Found(configured.caller, configured.is_guessable)
        if not is_well_formed(secret):
            return None
        found, is_news = await self._by_digest.get(digest_of(secret))
        if found is None or not found.is_valid(self._clock.now()):
            return None
        if is_news:
            await self._note_use(found)
        return Found(_caller_of(found), is_guessable=False)

    async def signer(self, key_id: str) -> TokenSigner | None:
        """What signs the stream tokens that are made with this key; None for a key that has ended."""
        if key_id == EVERYBODY.key_id:
            return None if await self.are_required() else TokenSigner(EVERYBODY, b"", is_guessable=False)
        configured = self._configured.of_id(key_id)
        if configured is not None:
            return TokenSigner(configured.caller, configured.secret, is_guessable=True)
        found, _ = await self._by_id.get(key_id)
        if found is None or not found.is_valid(self._clock.now()):
            return None
        return TokenSigner(_caller_of(found), found.token_secret, is_guessable=False)

    def forget(self) -> None:
        """Takes nothing for known any more: this process has changed a key."""
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
            # The request does not depend on it.
            log.warning("use_of_key_not_noted", key_id=found.key.id, error=str(error))


def _caller_of(found: FoundKey) -> Caller:
    key = found.key
    return Caller(key.project_id, key.id, Scopes.parse(key.scopes), key.name)


class _Known:
    """A key, and until when nobody needs to ask about it."""

    def __init__(self, found: FoundKey, fresh_until: float) -> None:
        self.found = found
        self.fresh_until = fresh_until


class _KnownKeys:
    """The keys that were found lately, by one of their names."""

    def __init__(self, look_up: Callable[[str], Awaitable[FoundKey | None]], clock: Clock, most: int) -> None:
        self._most = most
        self._look_up = look_up
        self._clock = clock
        self._known: OrderedDict[str, _Known] = OrderedDict()

    async def get(self, name: str) -> tuple[FoundKey | None, bool]:
        """The key of this name, and whether the database was asked for it just now."""
        now, known = self._clock.monotonic(), self._known.get(name)
        if known is not None and now < known.fresh_until:
            self._known.move_to_end(name)
            return known.found, False
        if known is not None:
            known.fresh_until = now + FRESH_S  # other requests need not ask as well
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
        """Nothing is known any more but what can be said of it while the database is away."""
        for known in self._known.values():
            known.fresh_until = 0.0
