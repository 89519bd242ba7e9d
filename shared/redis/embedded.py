"""A Redis inside this process, for `holdfast dev` and tests: nothing in it outlives the process.

Its Lua costs ten times what the commands of a script cost, and each event of each run is appended by a script. So here
`append.lua` is said in Python, too. Both give the same commands and are held to the same tests.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from fakeredis import FakeServer
from fakeredis.aioredis import AsyncFakeSocket, FakeRedis
from redis.commands.core import AsyncScript
from redis.exceptions import ResponseError

from shared.redis.connection import Redis, text_of_script

Call = Callable[..., Any]
"""Gives a command to Redis, as `redis.call` in Lua."""


def connect_embedded(server: FakeServer | None = None) -> Redis:
    """A client of an embedded Redis. Clients of one `server` share its data."""
    return _EmbeddedRedis(server or FakeServer())


class _EmbeddedRedis(Redis):
    def __init__(self, server: FakeServer) -> None:
        super().__init__(cast("Any", FakeRedis(server=server)).connection_pool)
        self._server = server

    def register_script(self, script: Any) -> Any:
        """The script, or what stands for it here."""
        if script == text_of_script("append"):
            return _PythonScript(self, script, self._server, _append)
        return super().register_script(script)


class _PythonScript(AsyncScript):
    """A script of which each call is a function's: `work(call, keys, args)`. Nobody else has the server meanwhile."""

    def __init__(self, client: Redis, script: str, server: FakeServer, work: Callable[..., Any]) -> None:
        super().__init__(cast("Any", client), script)
        self._server = server
        self._work = work
        self._commands: _Commands | None = None

    async def __call__(
        self, keys: Sequence[Any] | None = None, args: Iterable[Any] | None = None, client: Any = None
    ) -> Any:
        """What the script answers. Raises `ResponseError`."""
        if client not in (None, self.registered_client):
            return cast("Any", await super().__call__(keys, args, client))  # logs are on another server
        if self._commands is None:
            self._commands = _Commands(self._server, 0, client_class=Redis)
        given = [_as_bytes(key) for key in keys or ()], [_as_bytes(arg) for arg in args or ()]
        with self._server.lock:
            self._server.dbs[0].time = time.time()  # by which it tells what has expired
            return self._work(self._commands.call, *given)


class _Commands(AsyncFakeSocket):
    """Commands without the way to the server, for who has its lock. As fakeredis gives a script's."""

    def call(self, command: str, *args: bytes) -> Any:
        """What the command answers. Raises `ResponseError`."""
        answer = self._run_command(*self._name_to_func(command), list(args), True)
        if isinstance(answer, Exception):
            raise ResponseError(str(answer))
        return answer


def _append(call: Call, keys: Sequence[bytes], args: Sequence[bytes]) -> list[Any]:
    """As `append.lua`, which says what it is given and what it answers."""
    events, fence = keys
    caller, first_seq, needs, lifetime, publish, channel, *entries = args
    holder: bytes | None = call("get", fence)
    if holder is not None and holder != caller and _fence_of(holder) >= _fence_of(caller):
        return [b"taken", 0]
    newest = call("xrevrange", events, b"+", b"-", b"COUNT", b"1")
    last = int(newest[0][0].partition(b"-")[0]) if newest else 0
    if holder != caller or last < int(needs):
        return [b"lost", last]

    first = max(int(first_seq), last + 1)
    new = entries[first - int(first_seq) :]
    for last, entry in enumerate(new, start=first):
        call("xadd", events, b"%d-0" % last, b"e", entry)
    call("pexpire", events, lifetime)
    call("pexpire", fence, lifetime)
    if new:
        call(publish.decode().lower(), channel, b"%d " % first + b"\n".join(new))
    return [b"ok", last]


def _fence_of(holder: bytes) -> int:
    return int(holder.partition(b" ")[0])


def _as_bytes(value: str | bytes | int) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
